"""Drawing the next token on the device, lane by lane, with each lane's own parameters.

Penalties first, then temperature, min-p, top-k and top-p, then one draw by the Gumbel rule: the
largest of logit plus noise. The noise is a function of the request's seed and of the token's
position alone, so it does not depend on what else the server did. Thresholds are found by
bisection over the ordered bit patterns of the logits, which needs no sort; equal logits at a
threshold stay together.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from flax import struct

from ignisd.model.forward import Leaf
from pallas_kernels.tiles import live_tiles, map_tiles


@struct.dataclass
class SamplerBank:
    """Sampling parameters and token counts, one row a lane.

    temperature, top_p, min_p, presence, frequency, repetition: [L] f32; top_k [L] int32;
    seed [L] uint32. `generated` [L, V] int32 counts each token in the answer so far; `seen`
    [L, V] uint8 marks those of the prompt. `last_token` [L] int32 is fed to the next step.
    """

    temperature: Leaf
    top_k: Leaf
    top_p: Leaf
    min_p: Leaf
    presence: Leaf
    frequency: Leaf
    repetition: Leaf
    seed: Leaf
    generated: Leaf
    seen: Leaf
    last_token: Leaf


def empty_bank(num_lanes: int, vocab_size: int) -> SamplerBank:
    """Greedy rows with nothing seen."""
    zeros = jnp.zeros(num_lanes, jnp.float32)
    return SamplerBank(
        temperature=zeros,
        top_k=jnp.zeros(num_lanes, jnp.int32),
        top_p=zeros + 1.0,
        min_p=zeros + 0.0,
        presence=zeros + 0.0,
        frequency=zeros + 0.0,
        repetition=zeros + 1.0,
        seed=jnp.zeros(num_lanes, jnp.uint32),
        generated=jnp.zeros((num_lanes, vocab_size), jnp.int32),
        seen=jnp.zeros((num_lanes, vocab_size), jnp.uint8),
        last_token=jnp.zeros(num_lanes, jnp.int32),
    )


def set_lane(bank: SamplerBank, lane: jax.Array, row: SamplerBank) -> SamplerBank:
    """The bank with one lane's row replaced; `row` has the leaves without the lane axis."""
    return jax.tree.map(
        lambda leaf, value: jax.lax.dynamic_update_index_in_dim(
            leaf, jnp.asarray(value, leaf.dtype), lane, 0
        ),
        bank,
        row,
    )


def _ordered_bits(x: jax.Array) -> jax.Array:
    """uint32 that order as the f32 values do."""
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))


def _highest_threshold(keys: jax.Array, weights: jax.Array, wanted: jax.Array) -> jax.Array:
    """The largest t for which the weights of keys >= t sum to `wanted` or more (0 if none)."""

    def step(i: jax.Array, threshold: jax.Array) -> jax.Array:
        candidate = threshold | (jnp.uint32(1) << (31 - i).astype(jnp.uint32))
        total = jnp.sum(jnp.where(keys >= candidate, weights, 0.0))
        return jnp.where(total >= wanted, candidate, threshold)

    return jax.lax.fori_loop(0, 32, step, jnp.uint32(0))


def _penalised(row: SamplerBank, logits: jax.Array) -> jax.Array:
    seen = (row.seen > 0) | (row.generated > 0)
    scaled = jnp.where(logits > 0, logits / row.repetition, logits * row.repetition)
    logits = jnp.where(seen, scaled, logits)
    count = row.generated.astype(jnp.float32)
    return logits - row.frequency * count - row.presence * (count > 0)


def _draw(row: SamplerBank, logits: jax.Array, position: jax.Array) -> jax.Array:
    # Less the largest first: divided by a very small temperature, logits themselves overflow.
    scaled = (logits - jnp.max(logits)) / row.temperature
    keys = _ordered_bits(scaled)
    weights = jnp.exp(scaled)
    keep = weights >= row.min_p
    one = jnp.ones_like(weights)
    by_count = jax.lax.cond(
        row.top_k > 0,
        lambda: _highest_threshold(keys, one, row.top_k.astype(jnp.float32)),
        lambda: jnp.uint32(0),
    )
    keep &= keys >= by_count
    kept = jnp.where(keep, weights, 0.0)
    by_mass = jax.lax.cond(
        row.top_p < 1.0,
        lambda: _highest_threshold(keys, kept, row.top_p * jnp.sum(kept)),
        lambda: jnp.uint32(0),
    )
    keep &= keys >= by_mass
    key = jax.random.fold_in(jax.random.key(row.seed), position)
    noise = jax.random.gumbel(key, scaled.shape, jnp.float32)
    return jnp.argmax(jnp.where(keep, scaled + noise, -jnp.inf)).astype(jnp.int32)


def sample_row(row: SamplerBank, logits: jax.Array, position: jax.Array) -> jax.Array:
    """The next token for one lane.

    Args:
        row: the lane's parameters and counts, without the lane axis.
        logits: [V] f32. position: int32, the index that the token will have in the sequence.

    Returns:
        int32.
    """
    changed = (row.repetition != 1.0) | (row.frequency != 0.0) | (row.presence != 0.0)
    logits = jax.lax.cond(changed, lambda: _penalised(row, logits), lambda: logits)
    return jax.lax.cond(
        row.temperature > 0.0,
        lambda: _draw(row, logits, position),
        lambda: jnp.argmax(logits).astype(jnp.int32),
    )


def _counted(bank: SamplerBank, lane: jax.Array, token: jax.Array) -> SamplerBank:
    return replace(
        bank,
        generated=bank.generated.at[lane, token].add(1),
        last_token=bank.last_token.at[lane].set(token),
    )


def sample_lane(
    bank: SamplerBank, lane: jax.Array, logits: jax.Array, position: jax.Array
) -> tuple[SamplerBank, jax.Array]:
    """Samples for one lane from logits [V]; returns the bank with the token counted, and it."""
    row = jax.tree.map(
        lambda leaf: jax.lax.dynamic_index_in_dim(leaf, lane, 0, keepdims=False), bank
    )
    token = sample_row(row, logits, position)
    return _counted(bank, lane, token), token


def sample_lanes(
    bank: SamplerBank, logits: jax.Array, positions: jax.Array, live: jax.Array
) -> tuple[SamplerBank, jax.Array]:
    """Samples for every live lane.

    Args:
        logits: [L, V] f32. positions: [L] int32. live: [L] bool.

    Returns:
        The bank with tokens counted, and tokens [L]; a dead lane keeps its last one.
    """

    structure = jax.tree.structure(bank)

    def lane(logits: jax.Array, at: jax.Array, *leaves: jax.Array) -> jax.Array:
        row = jax.tree.unflatten(structure, [leaf[0] for leaf in leaves])
        return sample_row(row, logits[0], at[0])[None]

    drawn = map_tiles(lane, live_tiles(live), logits, positions, *jax.tree.leaves(bank))
    tokens = jnp.where(live, drawn, bank.last_token)
    lanes = jnp.arange(live.shape[0])
    return (
        replace(
            bank,
            generated=bank.generated.at[lanes, tokens].add(live.astype(jnp.int32)),
            last_token=tokens,
        ),
        tokens,
    )
