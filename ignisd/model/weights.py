"""Checkpoint to device: every tensor checked first, then converted and put, one at a time."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from ignisd.errors import ConfigError
from ignisd.model.qwen3_5 import abstract
from ignisd.model.spec import ModelSpec
from ignisd.model.tensors import DTYPES, Entry, TensorReader, list_tensors
from ignisd.model.weight_spec import Params, Role, WeightSpec, leaves

Progress = Callable[[int, int], None]
"""Called after each tensor with bytes done and bytes in all, as they lie in the checkpoint."""

TEXT_PREFIX = "model."
MULTIMODAL_PREFIX = "model.language_model."

# Parts of a checkpoint that the text model does not read.
IGNORED_PREFIXES = ("model.visual.", "visual.", "mtp.", "model.mtp.")
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
HEAD_NAME = "lm_head.weight"

_MOST_NAMES = 8


def load(
    directory: Path,
    spec: ModelSpec,
    dtype: DTypeLike = jnp.bfloat16,
    progress: Progress | None = None,
) -> Params:
    """The weights of the checkpoint in `directory`, on the default device.

    Args:
        dtype: what matrices are held in, bfloat16 or float32; others are converted. Vectors are
            float32 always.
        progress: called after each tensor.

    Raises:
        ConfigError: a tensor is missing, unexpected, misshapen or of an unknown type, or a file is
            broken. All of it is found before the first byte is moved.
    """
    tree = abstract(spec, dtype)
    entries = match_tensors(leaves(tree), list_tensors(directory))
    total = sum(entry.num_bytes for entry in entries.values())
    done = 0
    reader = TensorReader()

    def put(weight: WeightSpec) -> jax.Array:
        nonlocal done
        entry = entries[weight.source]
        array = _put(reader, entry, weight)
        done += entry.num_bytes
        if progress is not None:
            progress(done, total)
        return array

    params: Params = jax.tree.map(put, tree)
    return params


def _put(reader: TensorReader, entry: Entry, weight: WeightSpec) -> jax.Array:
    """One tensor on the device, waited for, so that its host copy is free before the next."""
    view = reader.view(entry).reshape(weight.shape)
    # `jnp.array` copies always; `device_put` may alias the mapped file on the CPU backend.
    return jnp.array(view.astype(weight.dtype, copy=False)).block_until_ready()


def match_tensors(weights: Iterable[WeightSpec], found: Mapping[str, Entry]) -> dict[str, Entry]:
    """The checkpoint's entry for each weight, by the weight's `source` name.

    Names below `model.language_model.` are taken for those below `model.`. Vision, multi-token
    prediction and a head that a tied model does not read are left aside.

    Raises:
        ConfigError: naming the tensors that are missing, unexpected, misshapen or of a type that
            cannot be read.
    """
    multimodal = any(name.startswith(MULTIMODAL_PREFIX) for name in found)
    prefix = MULTIMODAL_PREFIX if multimodal else TEXT_PREFIX
    wanted = {_stored_name(weight.source, prefix): weight for weight in weights}
    missing = [name for name in wanted if name not in found]
    unexpected = [name for name in found if name not in wanted and not _is_ignored(name)]
    if missing or unexpected:
        raise ConfigError(
            f"the checkpoint does not fit its config.json: {_count(missing, 'missing')}, "
            f"{_count(unexpected, 'unexpected')}"
        )
    for name, weight in wanted.items():
        _check_entry(found[name], weight)
    return {weight.source: found[name] for name, weight in wanted.items()}


def _stored_name(source: str, prefix: str) -> str:
    if source.startswith(TEXT_PREFIX):
        return prefix + source.removeprefix(TEXT_PREFIX)
    return source


def _is_ignored(name: str) -> bool:
    return name.startswith(IGNORED_PREFIXES) or name.endswith(IGNORED_SUFFIXES) or name == HEAD_NAME


def _count(names: list[str], what: str) -> str:
    if not names:
        return f"0 tensors {what}"
    shown = ", ".join(sorted(names)[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{len(names)} tensors {what} ({shown}{more})"


def _check_entry(entry: Entry, weight: WeightSpec) -> None:
    if entry.shape != weight.source_shape:
        raise ConfigError(
            f"{entry.name} in {entry.file.name} has shape {list(entry.shape)}, "
            f"config.json wants {list(weight.source_shape)}"
        )
    if entry.dtype not in DTYPES:
        raise ConfigError(
            f"{entry.name} in {entry.file.name} is stored as {entry.dtype}; "
            f"this build reads {', '.join(DTYPES)}"
        )


def random_params(spec: ModelSpec, seed: int, dtype: DTypeLike = jnp.bfloat16) -> Params:
    """Random weights of `spec`'s shapes, the same for the same seed on every machine.

    Nothing sits at a neutral value, so a program that leaves a weight out gives other logits.
    """
    tree = abstract(spec, dtype)
    order = {weight.source: index for index, weight in enumerate(leaves(tree))}

    def draw(weight: WeightSpec) -> jax.Array:
        generator = np.random.default_rng([seed, order[weight.source]])
        return jnp.array(_draw(generator, weight).astype(weight.dtype)).block_until_ready()

    params: Params = jax.tree.map(draw, tree)
    return params


def _draw(generator: np.random.Generator, weight: WeightSpec) -> np.ndarray[Any, np.dtype[Any]]:
    """Numbers that keep activations near one and give decays from a few tokens to thousands."""
    if weight.role is Role.A_LOG:
        return np.log(generator.uniform(0.01, 16.0, weight.shape))
    if weight.role is Role.DT_BIAS:
        # The inverse of softplus at steps spread evenly in the logarithm.
        steps = np.exp(generator.uniform(np.log(1e-3), np.log(1e-1), weight.shape))
        return np.log(np.expm1(steps))
    normal = generator.standard_normal(weight.shape, np.float32)
    match weight.role:
        case Role.NORM:
            return normal * np.float32(0.1)
        case Role.SCALE:
            return 1 + normal * np.float32(0.1)
        case _:
            return normal * np.float32(weight.shape[-1] ** -0.5)
