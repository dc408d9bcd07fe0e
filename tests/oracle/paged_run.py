"""Feeds one sequence to the serving programs: prefill in chunks, then one decode step a token."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from ignisd.model import forward
from ignisd.model.forward import Chunk, ForwardSpec
from ignisd.model.spec import ModelSpec
from ignisd.model.weight_spec import Params
from state.device import LaneBank, empty_pool, empty_state
from state.spec import PAGE_TOKENS, KvFormat

NUM_LANES = 2
LANE = 1
"""The sequence runs in the last lane; the others stay dead."""

NUM_TABLE = 8
CHUNK = forward.LEAST_ROWS


class PagedRun:
    """The programs of one checkpoint, compiled once.

    Pages of the sequence are handed out backwards, so that a table that is ignored shows.
    """

    def __init__(self, model: ModelSpec, params: Params, kv_format: KvFormat) -> None:
        self._spec = ForwardSpec(model, kv_format)
        self._params = params
        self._table = jnp.arange(NUM_TABLE, 0, -1, dtype=jnp.int32)
        self._prefill = jax.jit(partial(forward.prefill, self._spec))
        self._decode = jax.jit(partial(forward.decode, self._spec))
        self._logits = jax.jit(partial(forward.logits, self._spec))

    def logits(self, tokens: NDArray[np.int32], length: int) -> NDArray[np.float32]:
        """Logits [len(tokens) - length + 1, V]: after the prompt, then after each later token."""
        state_spec = self._spec.model.state_spec(self._spec.kv_format)
        pool = empty_pool(state_spec, NUM_TABLE + 1)
        bank = LaneBank(empty_state(state_spec, NUM_LANES))
        images = empty_state(state_spec, 1)
        for start in range(0, length, CHUNK):
            part = tokens[start : min(start + CHUNK, length)]
            chunk = Chunk(
                tokens=jnp.array(np.pad(part, (0, CHUNK - len(part))), jnp.int32),
                num_tokens=jnp.int32(len(part)),
                lane=jnp.int32(LANE),
                table=self._table,
                keep=jnp.zeros(CHUNK // PAGE_TOKENS, jnp.int32),
            )
            pool, bank, images, hidden = self._prefill(self._params, pool, bank, images, chunk)
        live = jnp.arange(NUM_LANES) == LANE
        # Both passes give logits in one shape: a row a lane.
        rows = [self._logits(self._params, jnp.where(live[:, None], hidden, 0), live)[LANE]]
        tables = jnp.where(live[:, None], self._table, 0)
        for token in tokens[length:]:
            fed = jnp.full(NUM_LANES, token, jnp.int32)
            pool, bank, hidden = self._decode(self._params, pool, bank, fed, tables, live)
            rows.append(self._logits(self._params, hidden, live)[LANE])
        return np.asarray(jnp.stack(rows))
