"""From settings and a machine to the memory plan of a model, before any of its weights is read."""

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ignisd.engine.capacity import MemoryPlan, Sizes, budget_for, plan_memory, settle
from ignisd.engine.tier_plan import TierSizes, plan_tiers
from ignisd.errors import ConfigError
from ignisd.machine import read_host_memory
from ignisd.model.qwen3_5 import abstract
from ignisd.model.spec import ModelSpec, read_spec
from ignisd.model.tensors import list_tensors
from ignisd.model.weight_spec import leaves, total_bytes
from ignisd.model.weights import match_tensors
from ignisd.retaining import policy_of
from ignisd.settings import Settings
from state.retention import RetentionPolicy
from state.spec import KvFormat, StateSpec

EMBEDDED = "ember"
NUM_IMAGES = 3
"""Images that one prefill pass yields at most; a chunk with more cuts is split."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a model is planned for.

    Args:
        platform: jax's name of the backend, e.g. cpu or gpu.
        host_bytes: main memory that the process may use.
        device_bytes: memory of the accelerator; None where there is none.
    """

    platform: str
    host_bytes: int
    device_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """A model and what it will hold.

    Args:
        name: as clients call it.
        folder: where its checkpoint lies.
        spec: its geometry.
        platform: the backend that it is planned for.
        sizes: how many of each thing the engine has.
        kept: what a sequence keeps.
        policy: what is kept of a prompt.
        tiers: what lies below the device.
        memory: every byte.
    """

    name: str
    folder: Path
    spec: ModelSpec
    platform: str
    sizes: Sizes
    kept: StateSpec
    policy: RetentionPolicy
    tiers: TierSizes
    memory: MemoryPlan


def this_machine() -> Machine:
    """The machine that this process runs on, and its backend."""
    platform = jax.default_backend()
    stats = None if platform == "cpu" else jax.devices()[0].memory_stats()
    device_bytes = None if stats is None else int(stats["bytes_limit"])
    return Machine(platform, read_host_memory().usable_bytes, device_bytes)


def find_model(name: str, models_dir: Path | None) -> tuple[str, Path]:
    """The name that clients use and the folder of a model.

    Args:
        name: of the embedded model, a folder, or a name below `models_dir`.

    Raises:
        ConfigError: there is no such folder.
    """
    if name == EMBEDDED:
        return name, Path(str(files("ignisd.ember") / "weights"))
    places = [(Path(name).resolve().name, Path(name))]
    if models_dir is not None:  # where the folder's own name counts, not that of what it links to
        places.insert(0, (Path(name).name, models_dir / name))
    for known_as, folder in places:
        if (folder / "config.json").is_file():
            return known_as, folder
    tried = " and ".join(str(folder) for _, folder in places)
    raise ConfigError(
        f"--model {name}: no config.json in {tried}; name the embedded model "
        f"({EMBEDDED}), a checkpoint folder, or a folder below --models-dir"
    )


def plan_model(settings: Settings, machine: Machine) -> Planned:
    """Plans what the settings name; of the checkpoint, its config and its headers are read.

    Raises:
        ConfigError: the model does not fit, naming numbers and flags; or the checkpoint is broken.
    """
    name, folder = find_model(settings.model, settings.models_dir)
    spec = read_spec(folder)
    kept = spec.state_spec(settings.model_kv_format)
    sizes = settle(settings, machine.platform, spec.max_position, kept.image_bytes)
    policy = policy_of(settings, kept, sizes.chunk_tokens)
    weights = abstract(spec, weights_dtype(settings.model_kv_format))
    match_tensors(leaves(weights), list_tensors(folder))
    budget = budget_for(settings, machine.platform, machine.host_bytes, machine.device_bytes)
    tiers = plan_tiers(settings, machine.platform, sizes, budget, kept)
    memory = plan_memory(
        kept,
        sizes,
        budget,
        weights_bytes=total_bytes(weights),
        workspace_bytes=_workspace_bytes(spec, sizes.chunk_tokens),
        # Counts of generated tokens, marks of prompt tokens, and logits.
        sampling_bytes=sizes.num_lanes * spec.vocab_size * (4 + 1 + 4),
        num_captures=NUM_IMAGES + 1,
        pool=settings.vram_kv_pool_bytes,
        below=tiers.lines(machine.platform),
    )
    return Planned(name, folder, spec, machine.platform, sizes, kept, policy, tiers, memory)


def weights_dtype(kv_format: KvFormat) -> np.dtype[Any]:
    """What matrices are held in: as precise as the pool."""
    dtype: np.dtype[Any] = jnp.dtype(jnp.float32 if kv_format is KvFormat.F32 else jnp.bfloat16)
    return dtype


def _workspace_bytes(spec: ModelSpec, chunk_tokens: int) -> int:
    """Activations of one chunk that are alive together, at four bytes a number: an upper bound."""
    attention = 4 * spec.num_heads * spec.head_dim + 2 * spec.num_kv_heads * spec.head_dim
    delta = 3 * spec.conv_channels + 3 * spec.value_width
    widest = 4 * spec.hidden_size + max(attention, delta, 3 * spec.intermediate_size)
    return 4 * chunk_tokens * widest
