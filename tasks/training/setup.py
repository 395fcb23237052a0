"""Sets up the run of one trial: its data, model, sampler and compiled trainer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dp_core.accounting.banded_noise import toeplitz_coefficients
from dp_core.accounting.mechanism import ALONE, proven_sensitivity
from dp_core.accounting.noise_split import split_noise
from dp_core.audit.step_log import row_hashes
from dp_core.clipping.factors import clip_factor
from dp_core.clipping.layers import initial_parameters
from dp_core.epochs import steps_for_epochs
from dp_core.models.mlp import AdModel
from dp_core.sampling import Sampler, make_sampler
from dp_core.training.lazy_updates import lazy_tables
from dp_core.training.method import Method
from dp_core.training.placement import Placement
from dp_core.training.step import Hyperparameters, Trainer, TrainState, as_traced, make_trainer
from dp_core.training.witness import checksum_of_given, state_checksum
from tasks.config.dataset import TaskName
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared, Split, open_prepared
from tasks.privacy.label_rate import draw_label_sum, with_initial_bias
from tasks.runtime.memory import keep_freed_memory
from tasks.runtime.progress import say
from tasks.training.batches import Dispatch, read_dispatches, spans
from tasks.training.canaries import Canaries, CanaryTokens, canary_tokens, make_canaries, with_canaries
from tasks.training.checkpoint import Checkpoint, Progress, checkpoint_of, digest
from tasks.training.hardware import (
    BatchPlan,
    choose_placement,
    is_first_process,
    plan_batches,
    use_compilation_cache,
    use_one_blas_thread,
)
from tasks.training.noisy_labels import NoisyLabels, draw_labels
from tasks.training.randomness import Randomness
from tasks.training.side_by_side import first_alone
from tasks.training.trial import Trial
from tasks.training.warm_start import starting_parameters

# Steps of a dispatch that the audit runs again.
REPLAYED_STEPS = 2


class TrainingData(NamedTuple):
    """What a run trains on.

    Attributes:
      examples: The training split as it was prepared.
      trained_on: What batches are read from: the examples, followed by the canaries' slots or with noisy labels.
      canaries: The canaries, if the trial has any.
      noisy_labels: The responses that replace the labels, if the trial is LabelDP.
    """

    examples: Split
    trained_on: Split
    canaries: Canaries | None
    noisy_labels: NoisyLabels | None


@dataclasses.dataclass(frozen=True)
class TrialRun:
    """What stays the same during the run of a trial. What changes is a ``TrainState`` and a ``Progress``.

    Attributes:
      steps: The number of steps of the whole run.
      initial_params: The model's parameters before the first step.
      batches: How batches are cut to fit the device.
      row_hashes: The hash of every row that batches are read from, for the audit.
      given: The checksum of the method, noise key and numbers that every step must have, for the audit.
    """

    trial: Trial
    prepared: Prepared
    data: TrainingData
    validation: Split
    steps: int
    sampler: Sampler
    method: Method
    trainer: Trainer
    hyperparameters: Hyperparameters
    initial_params: Any
    batches: BatchPlan
    row_hashes: np.ndarray
    given: int
    randomness: Randomness
    checkpoint: Checkpoint

    @property
    def placement(self) -> Placement:
        return self.method.placement

    @property
    def evaluation_steps(self) -> frozenset[int]:
        """The steps after which the validation split is evaluated; the last step is one of them."""
        evaluations = self.trial.evaluations
        return frozenset(round(self.steps * (k + 1) / evaluations) for k in range(evaluations))

    def dispatches(self, first: int, last: int) -> Iterator[Dispatch]:
        """Samples and reads the batches of steps ``first`` to ``last``.

        A dispatch ends at every evaluation. What the audit replays is a dispatch of its own.
        """
        shape, longest = self.batches
        recorded = self.recorded_dispatches(first, last)
        ends = self.evaluation_steps | recorded | {start + REPLAYED_STEPS for start in recorded}
        ranges = spans(first, last, ends, longest)
        return read_dispatches(self.data.trained_on, self.sampler, shape, self.placement, ranges, longest)

    def recorded_dispatches(self, first: int, last: int) -> frozenset[int]:
        """The first steps of the dispatches that the audit replays: one chosen at random, and the last."""
        if self.trial.mechanism != "dp_sgd" or first >= last:
            return frozenset()
        latest = max(first, last - REPLAYED_STEPS)
        chosen = np.random.default_rng(int(self.trial.key, 16)).integers(first, latest + 1)
        return frozenset([int(chosen), latest])


def set_up(
    trial: Trial, prepared: Prepared, hardware: Hardware, *, checkpoint_seconds: float
) -> tuple[TrialRun, TrainState, Progress]:
    """Returns the run of a trial, with the state and progress to start from: fresh, or the last checkpoint's."""
    use_compilation_cache()
    use_one_blas_thread()
    keep_freed_memory()
    placement = choose_placement(hardware)
    examples = prepared.split("train", trial.task)
    tokens = canary_tokens(prepared, trial.canaries)
    # A canary has a slot whether it is in the training data or not: which ones are in is secret, their number is not.
    slots = len(examples) + trial.canaries
    steps = steps_for_epochs(examples=slots, batch_size=trial.batch_size, epochs=trial.epochs, sampler=trial.sampler)
    randomness = Randomness.for_trial(trial)
    method = _method(trial, build_model(trial, prepared, tokens), placement, steps)
    with first_alone(method):
        trainer = make_trainer(method)
    hyperparameters = as_traced(_hyperparameters(trial, steps))
    params = _initial_params(trial, prepared, method.model, examples)

    state = trainer.init(params, hyperparameters)
    checkpoint = checkpoint_of(trial.key, checkpoint_seconds, secret=trial.randomness == "secret")
    saved, progress = checkpoint.restore(state)
    _draw_once(progress, trial, randomness, examples)
    entropy = progress.sampling_entropy or randomness.sampling_entropy
    data = _training_data(trial, examples, tokens, progress, randomness.label_entropy or entropy)
    if trial.initial_bias != "zero":
        labels = data.trained_on.labels if trial.mechanism == "label_dp" else examples.labels
        params = with_initial_bias(trial, params, np.asarray(labels), progress.label_sum)
        state = trainer.init(params, hyperparameters)
    if progress.steps:
        state = placement.put(saved)
        say(f"{trial.label()}: resuming at step {progress.steps:,} of {steps:,}")
    if is_first_process():
        lasting = progress.sampling_entropy is not None
        progress.interruptions = checkpoint.attempts.begin(progress.steps, drawn_again=_drawn_again(trial, lasting))
    progress.attempts.append({"step": progress.steps, "state": digest(placement.whole(state))})
    progress.log.state = state_checksum(state)

    sampler = make_sampler(
        trial.sampler,
        examples=slots,
        expected_batch_size=trial.batch_size,
        steps=steps,
        # LabelDP has δ = 0. Without noise in training, δ only sets how much room there is for large batches.
        target_delta=trial.target_delta or 1 / slots,
        entropy=entropy,
        microbatch_size=trial.microbatch_size,
        bands=trial.bands,
    )
    run = TrialRun(
        trial=trial,
        prepared=prepared,
        data=data,
        validation=prepared.split("validation", trial.task),
        steps=steps,
        sampler=sampler,
        method=method,
        trainer=trainer,
        hyperparameters=hyperparameters,
        initial_params=params,
        batches=plan_batches(hardware, method.model, params, prepared, sampler, placement),
        row_hashes=_row_hashes(prepared.path, trial.task) if data.trained_on is examples else _hashed(data.trained_on),
        given=int(jax.jit(checksum_of_given, static_argnums=0)(method, randomness.noise_key, hyperparameters)),
        randomness=randomness,
        checkpoint=checkpoint,
    )
    return run, state, progress


@functools.lru_cache(maxsize=4)
def _row_hashes(folder: Path, task: TaskName) -> np.ndarray:
    """Returns the hash of every training example, which the trials of a dataset share."""
    return _hashed(open_prepared(folder).split("train", task))


def _hashed(split: Split) -> np.ndarray:
    return row_hashes(split.integers, split.categoricals, split.labels)


def _method(trial: Trial, model: AdModel, placement: Placement, steps: int) -> Method:
    tables = dict(zip(model.vocabulary_sizes, model.features, strict=True))
    return Method(
        model=model,
        task=trial.task,
        optimizer=trial.optimizer,
        momentum=trial.momentum,
        private=trial.mechanism in ("dp_sgd", "clipped_only"),
        clipping=trial.clipping or "fixed",
        microbatch_size=trial.microbatch_size,
        averaging=trial.averaging,
        # A partial training of a search may have fewer steps than the whole one has bands.
        noise_coefficients=toeplitz_coefficients(min(trial.bands, steps), steps),
        placement=placement,
        lazy_tables=lazy_tables(trial.table_updates, tables, trial.batch_size),
    )


def build_model(trial: Trial, prepared: Prepared, canaries: CanaryTokens | None) -> AdModel:
    """Builds the trial's model for the prepared columns, with embedding rows for the canaries' tokens."""
    features = prepared.features()
    if canaries:
        feature = features[canaries.column]
        features[canaries.column] = feature._replace(vocabulary_size=feature.vocabulary_size + canaries.number)
    return trial.model.build(features)


def _initial_params(trial: Trial, prepared: Prepared, model: AdModel, examples: Split) -> Any:
    """Returns the parameters before the first step: random ones, or the released ones of the trial that it names."""
    drawn = initial_parameters(
        model, np.random.default_rng(trial.seed), examples.integers[:1], examples.categoricals[:1]
    )
    return drawn if trial.start_from is None else starting_parameters(trial, prepared, drawn)


def _hyperparameters(trial: Trial, steps: int) -> Hyperparameters:
    plain = Hyperparameters(
        trial.learning_rate,
        steps,
        trial.batch_size,
        warmup=trial.warmup,
        weight_decay=trial.weight_decay,
        averaging_share=trial.averaging_share,
    )
    if trial.l2_clip_norm is None or trial.noise_multiplier is None:
        return plain
    private = plain._replace(
        l2_clip_norm=trial.l2_clip_norm,
        noise_multiplier=trial.noise_multiplier,
        sensitivity=ALONE if trial.sensitivity == "paper" else proven_sensitivity(trial.microbatch_size),
    )
    if not clip_factor(trial.clipping or "fixed").adaptive:
        return private
    noisy = trial.mechanism != "clipped_only"
    of_gradient, of_count = split_noise(trial.noise_multiplier) if noisy else (0.0, 0.0)
    return private._replace(
        noise_multiplier=of_gradient, count_noise_multiplier=of_count, clip_quantile=trial.clip_quantile or 0.5
    )


def _draw_once(progress: Progress, trial: Trial, randomness: Randomness, examples: Split) -> None:
    """Draws what must stay the same until the run ends, unless it was drawn before an interruption."""
    if progress.included_canaries is None:
        progress.included_canaries = randomness.coins(trial.canaries).tolist()
    lasting = trial.sampler != "poisson" or trial.bands > 1 or trial.mechanism == "label_dp"
    if progress.sampling_entropy is None and lasting:
        # A second order of the examples within an epoch would let some take part twice, and so would a second
        # assignment to parts. Second responses to the same labels would be a second release of them.
        progress.sampling_entropy = list(randomness.sampling_entropy)
    if progress.label_sum is None and trial.initial_bias != "zero":
        progress.label_sum = draw_label_sum(trial, np.asarray(examples.labels), randomness.sampling_entropy)


def _drawn_again(trial: Trial, lasting: bool) -> list[str]:
    """Returns what is new when steps are run again. What lasts for a whole run is drawn once, like canaries."""
    if trial.randomness == "seeded":
        return []
    return [*(["noise"] if trial.mechanism == "dp_sgd" else []), *([] if lasting else ["batches"])]


def _training_data(
    trial: Trial, examples: Split, tokens: CanaryTokens | None, progress: Progress, label_entropy: Sequence[int]
) -> TrainingData:
    if trial.mechanism == "label_dp":
        noisy = draw_labels(trial, np.asarray(examples.labels), label_entropy)
        return TrainingData(examples, dataclasses.replace(examples, labels=noisy.labels), None, noisy)
    if tokens is None:
        return TrainingData(examples, examples, None, None)
    canaries = Canaries(tokens, make_canaries(tokens, examples), np.asarray(progress.included_canaries, bool))
    return TrainingData(examples, with_canaries(examples, canaries.rows, canaries.included), canaries, None)
