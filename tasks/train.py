"""The training step: one trial, from encoded data to a model and a record of what was run."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.clipping import Batch
from dp_core.layers import initial_parameters
from dp_core.losses import OBJECTIVES
from dp_core.mechanism import MechanismRecord
from dp_core.model import AdModel
from dp_core.sampling import PoissonSampler, make_sampler, steps_for_epochs
from dp_core.training import Hyperparameters, Trainer, TrainState, as_traced, make_trainer
from tasks.checkpoint import Checkpoint, Progress, save_parameters
from tasks.encoded import Prepared, Split, open_prepared
from tasks.home import home, whole_directory, write_json
from tasks.progress import Ticker, say
from tasks.trained import is_trained, log_trained
from tasks.trial import Trial

PREDICTION_ROWS = 8192
CHECKPOINT_SECONDS = 60.0
STEPS_IN_FLIGHT = 2


def train(item: Mapping[str, Any]) -> dict[str, Any]:
    """Trains one planned trial, or finds it trained, and logs it as a run of its own in MLflow."""
    trial = Trial.model_validate(item["trial"])
    reused = is_trained(trial)
    if not reused:
        run_trial(trial, open_prepared(Path(item["prepared"])))
    return log_trained(item, reused=reused)


def run_trial(
    trial: Trial, prepared: Prepared, *, checkpoint_seconds: float = CHECKPOINT_SECONDS, stop_after: int | None = None
) -> None:
    """DP-SGD from the first step (or the last checkpoint) to the finished trial's folder.

    ``stop_after`` abandons the run after that many steps, as an interruption would.
    """
    _use_compilation_cache()
    objective = OBJECTIVES[trial.task]
    data = prepared.split("train", trial.task)
    steps = steps_for_epochs(examples=len(data), batch_size=trial.batch_size, epochs=trial.epochs)
    randomness = _Randomness.for_trial(trial)
    sampler = make_sampler(
        examples=len(data),
        expected_batch_size=trial.batch_size,
        steps=steps,
        target_delta=trial.target_delta,
        entropy=randomness.sampling_entropy,
    )
    model = AdModel(
        embeddings=tuple((c.vocabulary_size, c.embedding_dimension) for c in prepared.categorical_columns),
        hidden_layers=trial.hidden_layers,
    )
    trainer = make_trainer(
        model,
        task=trial.task,
        optimizer=trial.optimizer,
        momentum=trial.momentum,
        private=trial.mechanism == "dp_sgd",
    )
    hyperparameters = as_traced(
        Hyperparameters(
            learning_rate=trial.learning_rate,
            total_steps=steps,
            expected_batch_size=trial.batch_size,
            l2_clip_norm=math.inf if trial.l2_clip_norm is None else trial.l2_clip_norm,
            noise_multiplier=trial.noise_multiplier or 0.0,
        )
    )

    first = _gather(data, sampler, 0)[0]
    params = initial_parameters(model, np.random.default_rng(trial.seed), first.integers, first.categoricals)
    state = trainer.init(params)
    checkpoint = Checkpoint(home() / "trials" / ".unfinished" / trial.key, checkpoint_seconds)
    state, progress = checkpoint.restore(state)
    if progress.steps:
        say(f"{trial.label()}: resuming at step {progress.steps:,} of {steps:,}")
    evaluation_steps = {round(steps * (k + 1) / trial.evaluations) for k in range(trial.evaluations)}
    validation = prepared.split("validation", trial.task)
    ticker = Ticker(trial.label(), steps, "steps")
    losses: list[jax.Array] = []
    start = time.monotonic() - progress.seconds

    while progress.steps < steps:
        batch, size = _gather(data, sampler, progress.steps)
        state, loss = trainer.step(state, batch, randomness.noise_key, hyperparameters)
        losses.append(loss)
        # The next batches are drawn while the device works, but not arbitrarily far ahead.
        losses[max(0, len(losses) - 1 - STEPS_IN_FLIGHT)].block_until_ready()
        progress.steps += 1
        progress.sampled_examples += size
        progress.largest_batch = max(progress.largest_batch, size)
        progress.seconds = time.monotonic() - start
        ticker.update(progress.steps)
        if progress.steps in evaluation_steps:
            _collect(losses, progress)
            progress.curve.append(
                {
                    "step": progress.steps,
                    "train_loss": _finite(fmean(progress.recent_losses)),
                    "validation_loss": _finite(_evaluate(trainer, state, validation, trial.task)),
                }
            )
            progress.recent_losses.clear()
        if progress.steps == stop_after or checkpoint.is_due():
            _collect(losses, progress)
            checkpoint.save(state, progress)
        if progress.steps == stop_after:
            return

    progress.seconds = time.monotonic() - start
    record = {
        "trial": trial.model_dump(mode="json"),
        "mechanism": _mechanism_record(hyperparameters, sampler, progress).to_json()
        if trial.epsilon is not None
        else None,
        "validation_loss": progress.curve[-1]["validation_loss"],
        "test_loss": _finite(_evaluate(trainer, state, prepared.split("test", trial.task), trial.task)),
        "loss_name": objective.reported_name,
        "curve": progress.curve,
        "steps": progress.steps,
        "seconds": progress.seconds,
        "steps_per_second": progress.steps / progress.seconds,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "examples": len(data),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
    }
    with whole_directory(trial.folder) as folder:
        save_parameters(folder / "parameters.npz", trainer.release(state))
        write_json(folder / "record.json", record)
    checkpoint.discard()


@dataclasses.dataclass(frozen=True)
class _Randomness:
    """Where a run's noise and batches come from: its seed, or the operating system."""

    noise_key: jax.Array
    sampling_entropy: tuple[int, ...]

    @classmethod
    def for_trial(cls, trial: Trial) -> _Randomness:
        if trial.randomness == "seeded":
            return cls(jax.random.key(trial.seed), (trial.seed, 0))
        # Noise and batches are secret: whoever knows them can undo the protection. They are kept
        # nowhere; after an interruption the steps that are run again draw new ones.
        secret_key = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(os.urandom(8), np.uint32)))
        return cls(secret_key, (int.from_bytes(os.urandom(16), "little"),))


def _gather(data: Split, sampler: PoissonSampler, step: int) -> tuple[Batch, int]:
    sampled = sampler.batch(step)
    integers, categoricals, labels = data.take(sampled.indices)
    return Batch(integers, categoricals, labels, sampled.mask), sampled.size


def _evaluate(trainer: Trainer, state: TrainState, split: Split, task: str) -> float:
    """The reported loss over a whole split, predicted in pieces of one shape."""
    logits = []
    for start in range(0, len(split), PREDICTION_ROWS):
        # The last piece repeats its final row up to the common shape, and drops the repeats.
        rows = np.arange(start, start + PREDICTION_ROWS)
        integers, categoricals, _ = split.take(np.minimum(rows, len(split) - 1))
        piece = np.asarray(trainer.predict(state, integers, categoricals))
        logits.append(piece[: len(split) - start])
    return OBJECTIVES[task].reported_loss(np.concatenate(logits), np.asarray(split.labels))


def _collect(losses: list[jax.Array], progress: Progress) -> None:
    """Moves the losses of the latest steps from the device into the progress."""
    progress.recent_losses += [float(loss) for loss in jax.device_get(losses)]
    losses.clear()


def _mechanism_record(ran: Hyperparameters, sampler: PoissonSampler, progress: Progress) -> MechanismRecord:
    """From the numbers that the compiled step was given (in its 32 bits), not from the trial's description."""
    return MechanismRecord(
        sampler="poisson",
        examples=sampler.examples,
        sampling_probability=sampler.sampling_probability,
        expected_batch_size=sampler.expected_batch_size,
        max_batch_size=sampler.max_batch_size,
        steps=progress.steps,
        noise_multiplier=float(ran.noise_multiplier),
        l2_clip_norm=float(ran.l2_clip_norm),
        sampled_examples=progress.sampled_examples,
        largest_batch=progress.largest_batch,
    )


def _finite(value: float) -> float | None:
    """None for a run that diverged: JSON has no NaN, and a NaN must not win a comparison."""
    return float(value) if math.isfinite(value) else None


def _use_compilation_cache() -> None:
    jax.config.update("jax_compilation_cache_dir", str(home() / "cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
