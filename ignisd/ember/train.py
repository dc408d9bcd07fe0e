"""Trains ember from nothing on made-up conversations and public-domain English, on a CPU.

The run is a function of its seed: the data of a step is drawn from the seed and the step's number,
and a checkpoint holds weights, optimiser, step and time spent. It may be stopped at any moment and
goes on from its last checkpoint when started again with the same `--out`. With `--steps` a run that
was interrupted ends with the same bits as one that was not; with `--minutes` the learning rate and
the curriculum follow the clock.

Minutes are those of the whole machine: processor time over the number of processors, so that other
work beside it changes how long the run takes but not what it learns. Large pages for the arrays of
a step save a fifth of the time: GLIBC_TUNABLES=glibc.malloc.hugetlb=1.
"""

import argparse
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ignisd.ember import WEIGHTS_DIR, checkpoint
from ignisd.ember import tokenizer as ember_tokenizer
from ignisd.ember.curriculum import INVENTED, Conversation, Level, conversation
from ignisd.ember.english import Prose, training_prose
from ignisd.ember.evaluate import measure
from ignisd.ember.network import Batch, Params, Shape, forward, initial_params, weight_shapes
from ignisd.ember.packing import packed_batch

CHECKPOINT_NAME = "training.npz"
DEFAULT_SEED = 1
DEFAULT_SHAPE = Shape()


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training: up to which progress, on what rows, how hard."""

    until: float
    num_rows: int
    row_tokens: int
    level: Level


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that decides the outcome of a run besides its length."""

    shape: Shape = DEFAULT_SHAPE
    seed: int = DEFAULT_SEED
    tokenizer_dir: Path = WEIGHTS_DIR
    matrix_rate: float = 0.02
    other_rate: float = 4e-3
    weight_decay: float = 0.02
    warmup: float = 0.02
    cooldown_from: float = 0.4
    dtype_name: str = "bfloat16"
    text_rate: float = 0.06
    stages: tuple[Stage, ...] = (
        Stage(0.12, 32, 256, Level(max_facts=2, filler_turns=1, max_questions=4)),
        Stage(0.45, 16, 512, Level(4, 1, 6, 0.02, 0.05, 300, 1_800)),
        Stage(0.72, 8, 1024, Level(6, 3, 8, 0.03, 0.08, 400, 4_000)),
        Stage(0.88, 4, 2048, Level(8, 3, 8, 0.03, 0.08, 500, 8_000)),
        Stage(0.95, 2, 4096, Level(10, 4, 8, 0.03, 0.08, 500, 16_000)),
        Stage(1.00, 1, 8192, Level(12, 4, 8, 0.03, 0.08, 500, 32_000)),
    )

    def stage_at(self, progress: float) -> Stage:
        """The stage that a run is in when `progress` of it is done."""
        return next((stage for stage in self.stages if progress < stage.until), self.stages[-1])

    def rate_at(self, progress: float) -> float:
        """Factor on the learning rates: warm-up, plateau, then a straight line to a fiftieth."""
        if progress < self.warmup:
            return max(progress, 2e-3) / self.warmup
        if progress < self.cooldown_from:
            return 1.0
        return max(0.02, (1.0 - progress) / (1.0 - self.cooldown_from))


@dataclass(frozen=True, slots=True)
class Run:
    """Where a run stands.

    Args:
        step: updates made.
        tokens: tokens seen.
        spent_s: seconds of the whole machine so far, over all restarts.
    """

    params: Params
    optimiser: Any
    step: int = 0
    tokens: int = 0
    spent_s: float = 0.0


def optimiser_of(plan: Plan) -> optax.GradientTransformation:
    """Muon on the matrices of the layers (Jordan et al., 2024), Adam on everything else."""

    matrices = {
        name
        for name, size in weight_shapes(plan.shape).items()
        if len(size) == 2 and min(size) > 8 and name != "model.embed_tokens.weight"
    }

    def kinds(params: Params) -> dict[str, Any]:
        numbers = optax.contrib.MuonDimensionNumbers()
        return {name: numbers if name in matrices else None for name in params}

    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.contrib.muon(
            plan.matrix_rate,
            weight_decay=plan.weight_decay,
            adam_b2=0.98,
            adam_learning_rate=plan.other_rate,
            muon_weight_dimension_numbers=kinds,
        ),
    )


def loss_of(
    params: Params, batch: Batch, shape: Shape, dtype: jnp.dtype
) -> tuple[jax.Array, jax.Array]:
    """Weighted mean cross-entropy in nats; over the assistant's tokens alone, its sum and count."""
    logits = forward(params, batch, shape, dtype)[:, :-1]
    targets = batch.tokens[:, 1:]
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    losses = jax.nn.logsumexp(logits, -1) - chosen
    weights = batch.weights[:, 1:]
    answers = weights == 1.0
    weighted = jnp.sum(losses * weights) / jnp.sum(weights)
    return weighted, jnp.stack((jnp.sum(losses * answers), jnp.sum(answers)))


def update_program(plan: Plan) -> Any:
    """The jitted update: (params, optimiser, batch, rate) to (params, optimiser, losses)."""
    optimiser = optimiser_of(plan)
    dtype = jnp.dtype(plan.dtype_name)

    @partial(jax.jit, donate_argnums=(0, 1))
    def update(
        params: Params, moments: Any, batch: Batch, rate: jax.Array
    ) -> tuple[Params, Any, jax.Array]:
        gradient = jax.grad(loss_of, has_aux=True)
        (gradients, answer_loss) = gradient(params, batch, plan.shape, dtype)
        changes, moments = optimiser.update(gradients, moments, params)
        changes = jax.tree.map(lambda change: rate * change, changes)
        return optax.apply_updates(params, changes), moments, answer_loss

    return update


def begin(plan: Plan) -> Run:
    """A run that has not made a step."""
    params = initial_params(plan.shape, plan.seed)
    return Run(params, optimiser_of(plan).init(params))


def save_run(run: Run, directory: Path) -> None:
    """Writes the checkpoint under another name first, so that a kill leaves the old one whole."""
    leaves = jax.tree.leaves((run.params, run.optimiser))
    arrays = {f"leaf_{index}": np.asarray(leaf) for index, leaf in enumerate(leaves)}
    arrays["counters"] = np.array((run.step, run.tokens, run.spent_s), np.float64)
    unfinished = directory / ("new_" + CHECKPOINT_NAME)
    np.savez(unfinished, allow_pickle=False, **arrays)
    unfinished.replace(directory / CHECKPOINT_NAME)


def load_run(plan: Plan, directory: Path) -> Run:
    """The run that `directory` holds, or a new one.

    Raises:
        ValueError: the checkpoint belongs to a model of another shape.
    """
    path = directory / CHECKPOINT_NAME
    if not path.exists():
        return begin(plan)
    expected = jax.eval_shape(lambda: (begin(plan).params, begin(plan).optimiser))
    leaves, structure = jax.tree.flatten(expected)
    with np.load(path) as stored:
        step, tokens, spent_s = stored["counters"].tolist()
        arrays = [jnp.array(stored[f"leaf_{index}"]) for index in range(len(stored.files) - 1)]
    wanted, had = ([leaf.shape for leaf in many] for many in (leaves, arrays))
    if wanted != had:
        raise ValueError(f"{path} holds tensors of other shapes; choose another --out")
    params, optimiser = jax.tree.unflatten(structure, arrays)
    return Run(params, optimiser, int(step), int(tokens), spent_s)


def batch_of(plan: Plan, stage: Stage, step: int, tokenizer: Any, prose: Prose) -> Batch:
    """The data of one step: a function of the seed and the step's number."""

    def draw(rng: random.Random) -> Conversation | str:
        if prose.is_read and rng.random() < plan.text_rate:
            return prose.stretch(rng, rng.randrange(500, 4 * stage.row_tokens))
        return conversation(rng, stage.level, prose)

    rng = random.Random(f"{plan.seed}/{step}")
    return packed_batch(rng, draw, tokenizer, stage.num_rows, stage.row_tokens)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a run ends and how often it reports.

    Args:
        steps, minutes: its length; the earlier of the two counts.
        checkpoint_minutes: by the clock, so that a kill costs no more than this.
        stop_at_step: where to leave it unfinished, to go on later.
    """

    steps: int | None = None
    minutes: float | None = None
    stop_at_step: int | None = None
    report_steps: int = 20
    evaluate_minutes: float = 4.0
    checkpoint_minutes: float = 4.0
    probes: int = 64

    def progress(self, run: Run) -> float:
        """Share of the run that is done."""
        by_step = run.step / self.steps if self.steps else 0.0
        return max(by_step, run.spent_s / 60.0 / self.minutes if self.minutes else 0.0)


def train(
    plan: Plan,
    run: Run,
    limits: Limits,
    directory: Path,
    prose: Prose = INVENTED,
    is_told_to_stop: Callable[[], bool] = lambda: False,
) -> Run:
    """Trains until a limit, with reports, evaluations and checkpoints on the way."""
    tokenizer = ember_tokenizer.load(plan.tokenizer_dir)
    update = update_program(plan)
    evaluated_s, saved_s = run.spent_s, time.monotonic()
    reported = (run.tokens, run.spent_s)
    answer_losses: list[np.ndarray] = []
    while (progress := limits.progress(run)) < 1.0 and run.step != limits.stop_at_step:
        if is_told_to_stop():
            break
        began = time.process_time()
        stage = plan.stage_at(progress)
        batch = batch_of(plan, stage, run.step, tokenizer, prose)
        params, optimiser, answer_loss = update(
            run.params, run.optimiser, batch, jnp.float32(plan.rate_at(progress))
        )
        answer_losses.append(np.asarray(answer_loss))
        spent_s = run.spent_s + (time.process_time() - began) / (os.cpu_count() or 1)
        run = Run(params, optimiser, run.step + 1, run.tokens + batch.tokens.size, spent_s)
        if run.step % limits.report_steps == 0:
            speed = (run.tokens - reported[0]) / (run.spent_s - reported[1])
            total, count = np.sum(np.stack(answer_losses), 0)
            loss = total / max(count, 1)
            print(
                f"step {run.step}  {run.spent_s / 60:.1f} min  {progress:.1%}  "
                f"answer loss {loss:.4f}  {run.tokens:,} tokens  {speed:,.0f} tokens/s",
                flush=True,
            )
            answer_losses, reported = [], (run.tokens, run.spent_s)
        if run.spent_s - evaluated_s > 60 * limits.evaluate_minutes:
            print(_evaluation(plan, run, tokenizer, limits), flush=True)
            evaluated_s = run.spent_s
        if time.monotonic() - saved_s > 60 * limits.checkpoint_minutes:
            save_run(run, directory)
            saved_s = time.monotonic()
    save_run(run, directory)
    return run


def _evaluation(plan: Plan, run: Run, tokenizer: Any, limits: Limits) -> str:
    dtype = jnp.dtype(plan.dtype_name)
    rates = (
        (distance, measure(run.params, plan.shape, tokenizer, distance, limits.probes, dtype).rate)
        for distance in (64, 256)
    )
    return "  ".join(f"recall at {distance}: {rate:.1%}" for distance, rate in rates)


def main() -> None:
    """Starts or continues a run, and exports the weights at its end."""
    parser = argparse.ArgumentParser(
        prog="python -m ignisd.ember.train",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, required=True, help="directory of the checkpoint")
    parser.add_argument("--minutes", type=float, help="training time over all restarts")
    parser.add_argument("--steps", type=int, help="updates in all")
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--tokenizer", type=Path, default=WEIGHTS_DIR, help="its directory")
    parser.add_argument(
        "--texts", type=Path, help="cache of the public-domain texts, fetched if not there"
    )
    options = parser.parse_args()
    if options.minutes is None and options.steps is None:
        parser.error("give --minutes, --steps or both")
    options.out.mkdir(parents=True, exist_ok=True)
    plan = Plan(seed=options.seed, tokenizer_dir=options.tokenizer)
    prose = training_prose(options.texts)
    limits = Limits(options.steps, options.minutes)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    begun = load_run(plan, options.out)
    run = train(plan, begun, limits, options.out, prose, stop.is_set)
    if limits.progress(run) < 1.0:
        print(f"stopped after {run.step} steps; the same command goes on from there")
        return
    ember_tokenizer.save(ember_tokenizer.load(options.tokenizer), options.out)
    template = (WEIGHTS_DIR / "chat_template.jinja").read_text(encoding="utf-8")
    (options.out / "chat_template.jinja").write_text(template, encoding="utf-8")
    checkpoint.export(run.params, plan.shape, options.out)
    print(f"{run.step} steps, {run.tokens:,} tokens, {run.spent_s / 60:.1f} minutes: {options.out}")


if __name__ == "__main__":
    main()
