"""The training step: one trial, from encoded data to a model and a record of what was run."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import jax
import numpy as np

from dp_core.adaptive_clipping import split_noise
from dp_core.label_record import LabelRecord
from dp_core.layers import initial_parameters
from dp_core.losses import OBJECTIVES
from dp_core.mechanism import ALONE, MechanismRecord, proven_sensitivity
from dp_core.memory import keep_freed_memory
from dp_core.models import AdModel, CategoricalFeature, make_model
from dp_core.probe import Compiled
from dp_core.sampling import Sampler, make_sampler, steps_for_epochs
from dp_core.training import Hyperparameters, Method, Trainer, TrainState, as_traced, make_trainer
from tasks.batches import Dispatch, read_dispatches, spans
from tasks.canaries import CanaryTokens, canary_tokens, make_canaries, with_canaries
from tasks.checkpoint import Checkpoint, Progress, save_parameters
from tasks.config import load_config
from tasks.encoded import Prepared, Split, open_prepared, vocabulary_release
from tasks.errors import UserError
from tasks.evidence import canary_evidence, count_batch, probe_run
from tasks.hardware import choose_placement, is_first_process, plan_batches, use_compilation_cache
from tasks.home import home, whole_directory, write_json
from tasks.noisy_labels import NoisyLabels, draw_labels
from tasks.progress import Ticker, say
from tasks.randomness import Randomness
from tasks.side_by_side import first_alone, side_by_side, trials_at_once
from tasks.trained import is_trained, log_trained
from tasks.trial import Trial

PREDICTION_ROWS = 8192
CHECKPOINT_SECONDS = 60.0
# How many dispatches may wait for the device behind the one whose losses are read.
DISPATCHES_IN_FLIGHT = 1


class StepRefused(Exception):
    """A private step met examples without a finite gradient; nothing was updated."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step:,} was refused")
        self.step = step


class Stopped(Exception):
    """A trial was left alone because another one of its group failed."""


def train(group: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Trains the planned trials of a group, or finds them trained, and logs each as a run of its own in MLflow.

    One compiled program serves the whole group. Of several processes that train together only the first logs and
    returns something. If a trial fails, those that were finished are kept, and found by the next try.
    """
    trials = {item["number"]: Trial.model_validate(item["trial"]) for item in group["items"]}
    missing = [item for item in group["items"] if not is_trained(trials[item["number"]])]
    logged: dict[int, dict[str, Any]] = {}
    logging = threading.Lock()

    def log(item: Mapping[str, Any], *, reused: bool) -> None:
        with logging:
            logged[item["number"]] = log_trained(item, reused=reused)

    def train_one(item: Mapping[str, Any], should_stop: Callable[[], bool]) -> None:
        run_trial(trials[item["number"]], open_prepared(Path(item["prepared"])), should_stop=should_stop)
        if is_first_process():
            log(item, reused=False)

    side_by_side(train_one, missing, at_once=trials_at_once(load_config().hardware))
    if not is_first_process():
        return None
    for item in group["items"]:
        if item["number"] not in logged:
            log(item, reused=True)
    return [logged[item["number"]] for item in group["items"]]


def run_trial(
    trial: Trial,
    prepared: Prepared,
    *,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """DP-SGD from the first step (or the last checkpoint) to the finished trial's folder.

    ``stop_after`` abandons the run after that many steps, as an interruption would; so does ``should_stop``, with an
    error, at the next moment that it says so.
    """
    use_compilation_cache()
    keep_freed_memory()
    hardware = load_config().hardware
    placement = choose_placement(hardware)
    examples = prepared.split("train", trial.task)
    tokens = canary_tokens(prepared, trial.canaries)
    places = len(examples) + trial.canaries
    steps = steps_for_epochs(examples=places, batch_size=trial.batch_size, epochs=trial.epochs, sampler=trial.sampler)
    randomness = Randomness.for_trial(trial)
    model = _model(trial, prepared, tokens)
    method = Method(
        model=model,
        task=trial.task,
        optimizer=trial.optimizer,
        momentum=trial.momentum,
        private=trial.mechanism == "dp_sgd",
        clipping=trial.clipping or "fixed",
        microbatch_size=trial.microbatch_size,
        placement=placement,
    )
    with first_alone(method):
        trainer = make_trainer(method)
    hyperparameters = as_traced(_hyperparameters(trial, steps))
    params = initial_parameters(
        model, np.random.default_rng(trial.seed), *(part[:1] for part in (examples.integers, examples.categoricals))
    )

    state = trainer.init(params, hyperparameters)
    checkpoint = Checkpoint(home() / "trials" / ".unfinished" / trial.key, checkpoint_seconds)
    saved, progress = checkpoint.restore(state)
    if progress.steps:
        state = placement.put(saved)
        say(f"{trial.label()}: resuming at step {progress.steps:,} of {steps:,}")
    _toss_and_deal(progress, trial, randomness)
    sampler = make_sampler(
        trial.sampler,
        examples=places,
        expected_batch_size=trial.batch_size,
        steps=steps,
        # Without noise in training it only says how much room is left for large batches.
        target_delta=trial.target_delta or 1 / places,
        entropy=progress.sampling_entropy or randomness.sampling_entropy,
        microbatch_size=trial.microbatch_size,
    )
    canaries = make_canaries(tokens, examples) if tokens else None
    included = np.asarray(progress.included_canaries, bool)
    data = with_canaries(examples, canaries, included) if canaries else examples
    noisy: NoisyLabels | None = None
    if trial.mechanism == "label_dp":
        noisy = draw_labels(
            trial, np.asarray(examples.labels), progress.sampling_entropy or randomness.sampling_entropy
        )
        data = dataclasses.replace(examples, labels=noisy.labels)
    batches = plan_batches(hardware, model, params, prepared, sampler, placement)
    evaluation_steps = {round(steps * (k + 1) / trial.evaluations) for k in range(trial.evaluations)}
    last = steps if stop_after is None else min(stop_after, steps)
    validation = prepared.split("validation", trial.task)
    ticker = Ticker(trial.label(), steps, "steps")
    waiting: deque[tuple[Dispatch, jax.Array]] = deque()
    start = time.monotonic() - progress.seconds

    try:
        ranges = spans(progress.steps, last, evaluation_steps, batches.steps_per_dispatch)
        for dispatch in read_dispatches(data, sampler, batches.shape, placement, ranges, batches.steps_per_dispatch):
            if should_stop():
                raise Stopped(trial.label())
            with first_alone(method, "run", batches):
                state, losses = trainer.run(state, dispatch.steps, randomness.noise_key, hyperparameters)
            waiting.append((dispatch, losses))
            reached = dispatch.first + len(dispatch.sampled)
            # Several processes must agree when to save, so they do it where all evaluate.
            save = reached == stop_after or (
                reached in evaluation_steps if jax.process_count() > 1 else checkpoint.is_due()
            )
            pause = save or reached in evaluation_steps or reached == last
            while len(waiting) > (0 if pause else DISPATCHES_IN_FLIGHT):
                _count(progress, *waiting.popleft(), places, private=method.private)
                progress.seconds = time.monotonic() - start
                ticker.update(progress.steps)
            if reached in evaluation_steps:
                with first_alone(method, "predict"):
                    validation_loss = _evaluate(trainer, state, validation, trial.task)
                train_loss = fmean(progress.recent_losses)
                progress.curve.append(
                    {"step": reached, "train_loss": _finite(train_loss), "validation_loss": _finite(validation_loss)}
                )
                progress.recent_losses.clear()
            if save and reached < steps:
                checkpoint.save(placement.whole(state), progress, write=is_first_process())
        if last < steps:
            return
    except StepRefused as refusal:
        _blame_the_data(data, sampler, refusal.step, trial)
        say(f"{trial.label()}: diverged, step {refusal.step:,} has no finite gradients")
        progress.curve.append({"step": refusal.step, "train_loss": None, "validation_loss": None})

    progress.seconds = time.monotonic() - start
    test_loss = _evaluate(trainer, state, prepared.split("test", trial.task), trial.task)
    diverged = progress.steps < steps or not math.isfinite(test_loss)
    released = jax.tree.map(np.asarray, trainer.release(state))
    evidence: dict[str, Any] = {
        "batch_sizes": progress.batch_sizes,
        "participations": progress.participations.tolist(),
        "probe": None,
        "canaries": None,
        # From the array that batches were read from, not from what was drawn for it.
        "label_transitions": noisy.transitions(examples.labels, data.labels) if noisy else None,
    }
    if method.private and not diverged:
        clip_norm, compiled = float(state.l2_clip_norm), Compiled(method, batches.shape, batches.steps_per_dispatch)
        with first_alone(method, "probe", batches):
            probe = probe_run(compiled, released, hyperparameters, clip_norm, examples, randomness.noise_key)
        evidence["probe"] = probe.to_json()
        if tokens and canaries:
            evidence["canaries"] = canary_evidence(method, tokens, canaries, included.tolist(), params, released)
    mechanism: MechanismRecord | LabelRecord | None = noisy.record if noisy else None
    if method.private:
        mechanism = _mechanism_record(trial, hyperparameters, sampler, progress, prepared)
    record = {
        "trial": trial.model_dump(mode="json"),
        "mechanism": mechanism.to_json() if mechanism else None,
        "vocabulary": prepared.vocabulary,
        "validation_loss": progress.curve[-1]["validation_loss"],
        "test_loss": None if diverged else _finite(test_loss),
        "loss_name": OBJECTIVES[trial.task].reported_name,
        "curve": progress.curve,
        "steps": progress.steps,
        "seconds": progress.seconds,
        "steps_per_second": progress.steps / progress.seconds,
        "final_l2_clip_norm": _finite(float(state.l2_clip_norm)),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "examples": len(examples),
        "physical_batch_size": batches.shape.rows,
        "device": jax.devices()[0].device_kind,
        "devices": placement.devices,
        "jax": jax.__version__,
    }
    if is_first_process():
        with whole_directory(trial.folder) as folder:
            save_parameters(folder / "parameters.npz", released)
            write_json(folder / "evidence.json", evidence)
            write_json(folder / "record.json", record)
        checkpoint.discard()


def _toss_and_deal(progress: Progress, trial: Trial, randomness: Randomness) -> None:
    """Draws what must stay the same until the end of the run, unless it was drawn before an interruption."""
    if progress.included_canaries is None:
        progress.included_canaries = randomness.coins(trial.canaries).tolist()
    if progress.sampling_entropy is None and (trial.sampler != "poisson" or trial.mechanism == "label_dp"):
        # In an epoch that was begun with one order of the examples another would let some take part twice, and other
        # responses for the same labels would be a second release of them.
        progress.sampling_entropy = list(randomness.sampling_entropy)


def _model(trial: Trial, prepared: Prepared, canaries: CanaryTokens | None) -> AdModel:
    numbers = {"cross_layers": trial.cross_layers, "interaction_dimension": trial.interaction_dimension}
    sizes = [column.vocabulary_size for column in prepared.categorical_columns]
    if canaries:
        sizes[canaries.column] += canaries.number
    dimensions = [column.embedding_dimension for column in prepared.categorical_columns]
    return make_model(
        trial.model,
        [CategoricalFeature(*table) for table in zip(sizes, dimensions, strict=True)],
        hidden_layers=trial.hidden_layers,
        **{name: number for name, number in numbers.items() if number is not None},
    )


def _hyperparameters(trial: Trial, steps: int) -> Hyperparameters:
    plain = Hyperparameters(trial.learning_rate, steps, trial.batch_size)
    if trial.l2_clip_norm is None or trial.noise_multiplier is None:
        return plain
    private = plain._replace(
        l2_clip_norm=trial.l2_clip_norm,
        noise_multiplier=trial.noise_multiplier,
        sensitivity=ALONE if trial.sensitivity == "paper" else proven_sensitivity(trial.microbatch_size),
    )
    if trial.clipping != "adaptive":
        return private
    of_gradient, of_count = split_noise(trial.noise_multiplier)
    return private._replace(
        noise_multiplier=of_gradient, count_noise_multiplier=of_count, clip_quantile=trial.clip_quantile or 0.5
    )


def _count(progress: Progress, dispatch: Dispatch, losses: jax.Array, places: int, *, private: bool) -> None:
    """Adds the steps of a finished dispatch to the progress; raises if one of them was refused."""
    seen = [float(loss) for loss in np.asarray(losses)[: len(dispatch.sampled)]]
    for loss, sampled in zip(seen, dispatch.sampled, strict=True):
        if private and math.isnan(loss):
            raise StepRefused(progress.steps)
        progress.steps += 1
        count_batch(progress, sampled, places)
        progress.recent_losses.append(loss)


def _blame_the_data(data: Split, sampler: Sampler, step: int, trial: Trial) -> None:
    """Raises an error that names the rows, if a refused step's examples are not numbers themselves."""
    rows = np.sort(sampler.batch(step).indices)
    integers, _, labels = data.take(rows)
    # A missing integer is NaN by design.
    bad = rows[np.isinf(integers).any(axis=1) | ~np.isfinite(labels)]
    if len(bad):
        named = ", ".join(f"{row:,}" for row in bad[:5]) + (", …" if len(bad) > 5 else "")
        raise UserError(
            f"{trial.label()}: step {step:,} was refused, and nothing was updated: {len(bad)} of its examples have an "
            f"infinite feature or a label that is no finite number (rows {named} of the training part, from 0). "
            "Mend or remove them in the raw log and prepare it again."
        )


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


def _mechanism_record(
    trial: Trial, ran: Hyperparameters, sampler: Sampler, progress: Progress, prepared: Prepared
) -> MechanismRecord:
    """From the numbers that the compiled steps were given (in their 32 bits), not from the trial's description."""
    adaptive = trial.clipping == "adaptive"
    return MechanismRecord(
        sampler=sampler.name,
        examples=sampler.examples,
        expected_batch_size=sampler.expected_batch_size,
        max_batch_size=sampler.max_batch_size,
        steps=progress.steps,
        noise_multiplier=float(ran.noise_multiplier),
        l2_clip_norm=float(ran.l2_clip_norm),
        clipping=trial.clipping or "fixed",
        count_noise_multiplier=float(ran.count_noise_multiplier) if adaptive else None,
        microbatch_size=sampler.microbatch_size,
        sensitivity=float(ran.sensitivity),
        vocabulary=vocabulary_release(prepared),
    )


def _finite(value: float) -> float | None:
    """None for a run that diverged: JSON has no NaN, and a NaN must not win a comparison."""
    return float(value) if math.isfinite(value) else None
