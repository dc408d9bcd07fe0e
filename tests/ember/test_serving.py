"""The shipped weights give the same logits in the serving programs as in the training ones."""

import random

import jax
import jax.numpy as jnp
import numpy as np

from ignisd.ember import WEIGHTS_DIR, checkpoint, curriculum, network, tokenizer
from ignisd.ember.render import render
from ignisd.model import weights
from ignisd.model.spec import read_spec
from state.spec import KvFormat
from tests.oracle.paged_run import PagedRun

NUM_TOKENS = 256
NUM_PROMPT = 248


def conversation_tokens():
    rng = random.Random(12)
    tokens: list[int] = []
    while len(tokens) < NUM_TOKENS:
        talk = curriculum.conversation(rng, curriculum.Level())
        tokens += tokenizer.load().encode(render(talk.messages)).ids
    return np.array(tokens[:NUM_TOKENS], np.int32)


def test_serving_and_training_agree_on_the_shipped_weights():
    tokens = conversation_tokens()
    spec = read_spec(WEIGHTS_DIR)
    served = PagedRun(spec, weights.load(WEIGHTS_DIR, spec, jnp.float32), KvFormat.F32)
    logits = served.logits(tokens[:-1], NUM_PROMPT)

    params, shape = checkpoint.read(WEIGHTS_DIR)
    row = jnp.asarray(tokens)[None]
    zeros = jnp.zeros_like(row)
    batch = network.Batch(row, jnp.arange(NUM_TOKENS)[None], zeros, zeros)
    program = jax.jit(lambda batch: network.forward(params, batch, shape, jnp.float32))
    trained = np.asarray(program(batch))[0, NUM_PROMPT - 1 : NUM_TOKENS - 1]

    assert logits.shape == trained.shape
    assert np.abs(logits - trained).max() <= 1e-4 * np.abs(trained).max()
