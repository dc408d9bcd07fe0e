"""Checkpoints in every layout that is read, and every fault that is named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ignisd.errors import ConfigError
from ignisd.model.qwen3_5 import abstract
from ignisd.model.spec import ModelSpec, from_config
from ignisd.model.weight_spec import Params, leaves, total_bytes, total_size
from ignisd.model.weights import load, random_params
from tests.model.checkpoints import save_checkpoint, stored_tensors
from tests.model.make_random_checkpoint import SIZES
from tests.model.test_spec import BIG

TIED = SIZES["tiny"]
UNTIED = replace(TIED, tied=False)


def _assert_equal(found: Params, wanted: Params) -> None:
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    assert [x.dtype for x in jax.tree.leaves(found)] == [x.dtype for x in jax.tree.leaves(wanted)]


@pytest.mark.parametrize("spec", [TIED, UNTIED], ids=["tied", "untied"])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_a_saved_checkpoint_loads_back(spec: ModelSpec, dtype: Any, tmp_path: Path) -> None:
    params = random_params(spec, 1, dtype)
    save_checkpoint(tmp_path, spec, params)
    loaded = load(tmp_path, spec, dtype)
    _assert_equal(loaded, params)
    assert ("head" in loaded) is not spec.tied
    for array, weight in zip(jax.tree.leaves(loaded), leaves(abstract(spec, dtype)), strict=True):
        assert (array.shape, array.dtype) == (weight.shape, weight.dtype)
        assert array.dtype == (dtype if weight.role in ("matrix", "embedding") else jnp.float32)


@pytest.mark.parametrize("stored", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("held", [jnp.bfloat16, jnp.float32])
def test_every_stored_type_converts_to_every_held_type(
    stored: Any, held: Any, tmp_path: Path
) -> None:
    params = random_params(TIED, 2, jnp.float32)
    tensors = {name: x.astype(stored) for name, x in stored_tensors(TIED, params).items()}
    save_file(tensors, tmp_path / "model.safetensors")
    loaded = load(tmp_path, TIED, held)
    for array, weight in zip(jax.tree.leaves(loaded), leaves(abstract(TIED, held)), strict=True):
        once = tensors[weight.source].reshape(weight.shape).astype(weight.dtype)
        np.testing.assert_array_equal(np.asarray(array), once)


def _shard(directory: Path, tensors: dict[str, np.ndarray], count: int) -> Path:
    """`tensors` dealt to `count` files and an index; returns the index."""
    names = sorted(tensors)
    placed: dict[str, str] = {}
    for shard in range(count):
        file = f"model-{shard + 1:05}-of-{count:05}.safetensors"
        mine = names[shard::count]
        save_file({name: tensors[name] for name in mine}, directory / file)
        placed |= dict.fromkeys(mine, file)
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": placed}))
    return index


@pytest.mark.parametrize("multimodal", [False, True])
def test_shards_both_prefixes_and_ignored_parts(multimodal: bool, tmp_path: Path) -> None:
    params = random_params(UNTIED, 3, jnp.bfloat16)
    tensors = stored_tensors(UNTIED, params)
    if multimodal:
        tensors = {
            name.replace("model.", "model.language_model.", 1)
            if name.startswith("model.")
            else name: array
            for name, array in tensors.items()
        }
        tensors["model.visual.patch_embed.proj.bias"] = np.zeros(3, np.float32)
    tensors["mtp.layers.0.mlp.up_proj.weight"] = np.zeros((2, 2), np.int64)
    _shard(tmp_path, tensors, 3)
    _assert_equal(load(tmp_path, UNTIED, jnp.bfloat16), params)


def test_a_tied_model_ignores_a_stored_head(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, UNTIED, random_params(UNTIED, 4))
    assert "head" not in load(tmp_path, TIED)


def test_progress_counts_the_bytes_of_the_checkpoint(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, TIED, random_params(TIED, 5))
    seen: list[tuple[int, int]] = []
    load(tmp_path, TIED, progress=lambda done, total: seen.append((done, total)))
    done = [each[0] for each in seen]
    assert len(seen) == len(leaves(abstract(TIED)))
    assert done == sorted(set(done))
    assert seen[-1][0] == seen[-1][1] == total_bytes(abstract(TIED))


def test_loaded_weights_do_not_alias_the_file(tmp_path: Path) -> None:
    """A checkpoint that is replaced while it is served must not change the model."""
    save_checkpoint(tmp_path, TIED, random_params(TIED, 6))
    loaded = load(tmp_path, TIED)
    before = jax.tree.map(np.array, loaded)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    _assert_equal(loaded, before)


def _refusal(directory: Path, spec: ModelSpec = UNTIED) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, spec)
    return str(caught.value)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path, UNTIED, random_params(UNTIED, 7))
    return tmp_path


def _rewrite(directory: Path, **changes: np.ndarray | None) -> None:
    """Replace tensors of the checkpoint; None removes one."""
    path = directory / "model.safetensors"
    tensors = load_file(path) | {name: x for name, x in changes.items() if x is not None}
    save_file({name: x for name, x in tensors.items() if changes.get(name, 0) is not None}, path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    assert "holds neither model.safetensors nor" in _refusal(tmp_path)


def test_missing_and_unexpected_tensors_are_listed(checkpoint: Path) -> None:
    _rewrite(
        checkpoint,
        **{
            "lm_head.weight": None,
            "model.layers.0.linear_attn.A_log": None,
            "model.layers.9.mlp.up_proj.weight": np.zeros(1, np.float32),
        },
    )
    assert (
        "2 tensors missing (lm_head.weight, model.layers.0.linear_attn.A_log), "
        "1 tensors unexpected (model.layers.9.mlp.up_proj.weight)"
    ) in _refusal(checkpoint)


def test_a_long_list_of_names_is_cut(checkpoint: Path) -> None:
    _rewrite(checkpoint, **{f"model.extra.{i:02}": np.zeros(1, np.float32) for i in range(30)})
    message = _refusal(checkpoint)
    assert "30 tensors unexpected (model.extra.00, " in message
    assert "model.extra.07 and 22 more)" in message


def test_a_misshapen_tensor_is_named_with_both_shapes(checkpoint: Path) -> None:
    name = "model.layers.0.linear_attn.conv1d.weight"
    channels = UNTIED.conv_channels
    _rewrite(checkpoint, **{name: np.zeros((channels, 4), np.float32)})
    message = _refusal(checkpoint)
    assert f"{name} in model.safetensors has shape [{channels}, 4]" in message
    assert f"config.json wants [{channels}, 1, 4]" in message


def test_an_unknown_type_is_named(checkpoint: Path) -> None:
    name = "model.layers.1.self_attn.q_norm.weight"
    _rewrite(checkpoint, **{name: np.zeros(UNTIED.head_dim, np.int32)})
    assert f"{name} in model.safetensors is stored as I32" in _refusal(checkpoint)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_a_truncated_file_is_told_from_its_size(checkpoint: Path, keep: int) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[:keep])
    message = _refusal(checkpoint)
    assert "truncated" in message
    assert f"has {len(content[:keep])} bytes" in message
    if keep == -1:
        assert f"wants {len(content)}" in message


def _with_header(path: Path, header: bytes, body: bytes = b"") -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + body)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{nonsense", "a header that is no JSON"),
        (b"[]", "a header that is no object"),
        (b'{"a": {"dtype": "F32"}}', "the header entry of a is malformed"),
        (
            b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}',
            "the header entry of a is malformed",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}',
            "the header entry of a is malformed",
        ),
        (
            b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
            "a of shape [2] in F32 wants 8 bytes, has 4",
        ),
    ],
)
def test_a_broken_header_is_named(header: bytes, message: str, tmp_path: Path) -> None:
    _with_header(tmp_path / "model.safetensors", header, bytes(16))
    assert message in _refusal(tmp_path)


def test_an_index_that_does_not_fit_its_shards_is_named(tmp_path: Path) -> None:
    tensors = stored_tensors(UNTIED, random_params(UNTIED, 8))
    index = _shard(tmp_path, tensors, 2)
    content = json.loads(index.read_text())

    def refusal(placed: object) -> str:
        index.write_text(json.dumps({"weight_map": placed}))
        return _refusal(tmp_path)

    placed = content["weight_map"]
    (other,) = set(placed.values()) - {placed["lm_head.weight"]}
    assert f"places lm_head.weight in {other}, which does not hold it" in refusal(
        placed | {"lm_head.weight": other}
    )
    assert "absent.safetensors cannot be read" in refusal(
        placed | {"lm_head.weight": "absent.safetensors"}
    )
    assert "wanted a plain file name" in refusal(placed | {"lm_head.weight": "../x.safetensors"})
    assert "has no weight_map" in refusal([])
    index.write_text(json.dumps(content))
    load(tmp_path, UNTIED)


def test_weights_are_held_in_bf16_or_f32_only() -> None:
    with pytest.raises(ConfigError, match="held as float16, wanted bfloat16 or float32"):
        abstract(TIED, jnp.float16)


def test_the_27b_plan_has_the_published_size() -> None:
    """Vision tower and MTP layer make up the rest of the card's 27.78 billion."""
    spec = from_config(BIG)
    assert 26.8e9 < total_size(abstract(spec)) < 27.0e9
    vectors = sum(w.size for w in leaves(abstract(spec)) if w.dtype == np.float32)
    assert total_bytes(abstract(spec)) == 2 * total_size(abstract(spec)) + 2 * vectors


def test_random_weights_follow_the_seed_and_are_never_neutral() -> None:
    first, again, other = (random_params(TIED, seed) for seed in (1, 1, 2))
    _assert_equal(first, again)
    for one, two in zip(jax.tree.leaves(first), jax.tree.leaves(other), strict=True):
        assert not np.array_equal(one, two)
        assert np.isfinite(np.asarray(one, np.float32)).all()
        assert np.asarray(one, np.float32).std() > 0.01
