"""Trains one trial: DP-SGD (Algorithm 1 of the paper), or plain SGD for baselines and LabelDP."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from statistics import fmean

import jax
import numpy as np

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.audit.replay import Recording, own_copy
from dp_core.clipping.factors import clip_factor
from dp_core.cyclic_sampling import CyclicPoissonSampler
from dp_core.evaluation.recalibration import Recalibration
from dp_core.models.digest import parameters_digest
from dp_core.training.generators import generator_of
from dp_core.training.losses import OBJECTIVES
from dp_core.training.noise import noise_support
from dp_core.training.step import TrainState
from dp_core.training.witness import DispatchReport
from tasks.config.loading import Hardware, load_config
from tasks.data.prepared import Prepared, Split, vocabulary_release
from tasks.evaluation.recalibrating import evidence_of, shift_of, shifted
from tasks.evaluation.tested import NOT_TESTED, Tested, tested
from tasks.privacy.label_rate_budget import label_rate_noise
from tasks.runtime.errors import Stopped, UserError, may_pass
from tasks.runtime.progress import Ticker, say
from tasks.training.batches import Dispatch
from tasks.training.checkpoint import Progress, checkpoint_of
from tasks.training.evidence import count_batch, gather_evidence, log_dispatch, log_step
from tasks.training.finished import CurvePoint, TrialRecord, flat_parameters, write_finished
from tasks.training.hardware import is_first_process
from tasks.training.setup import TrialRun, set_up
from tasks.training.side_by_side import first_alone
from tasks.training.trial import Trial

PREDICTION_ROWS = 8192
CHECKPOINT_SECONDS = 60.0
# How many dispatches the device may have queued while the host waits for the losses of an earlier one.
DISPATCHES_IN_FLIGHT = 1


class StepRefused(Exception):
    """A private step had examples without a finite gradient; it updated nothing."""

    def __init__(self, step: int) -> None:
        super().__init__(f"step {step:,} was refused")
        self.step = step


def run_trial(
    trial: Trial,
    prepared: Prepared,
    *,
    hardware: Hardware | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    stop_after: int | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    watch: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Trains a trial, from the first step or the last checkpoint to the finished trial's folder.

    Args:
      trial: The trial.
      prepared: The dataset that it names.
      hardware: What to train on; by default, what the configuration says.
      checkpoint_seconds: The time between checkpoints.
      stop_after: Abandons the run after this many steps, with a checkpoint, as an interruption would.
      should_stop: Asked before each dispatch; if True, the run raises ``Stopped``.
      watch: Called with the progress after each dispatch and its evaluation, if there was one.
    """
    hardware = hardware or load_config().hardware
    with _destroyed_after_failure(trial):
        _run(trial, prepared, hardware, checkpoint_seconds, stop_after, should_stop, watch)


@contextlib.contextmanager
def _destroyed_after_failure(trial: Trial) -> Iterator[None]:
    """Deletes the checkpoints of a secret run that fails, unless trying again may help: then it goes on from them."""
    try:
        yield
    except Exception as error:
        goes_on = isinstance(error, Stopped | MemoryError) or may_pass(error)
        if trial.randomness == "secret" and not goes_on and is_first_process():
            checkpoint_of(trial.key).discard()
        raise


def _run(
    trial: Trial,
    prepared: Prepared,
    hardware: Hardware,
    checkpoint_seconds: float,
    stop_after: int | None,
    should_stop: Callable[[], bool],
    watch: Callable[[Progress], None],
) -> None:
    run, state, progress = set_up(trial, prepared, hardware, checkpoint_seconds=checkpoint_seconds)
    recordings: list[Recording] = []
    state, refused = _train(
        run, state, progress, recordings, stop_after=stop_after, should_stop=should_stop, watch=watch
    )
    run.checkpoint.attempts.close()
    if refused is None and progress.steps < run.steps:
        return  # interrupted by stop_after: the checkpoint has everything
    if refused is not None:
        # Nothing is released of it, but its losses are looked at.
        state, _ = run.trainer.settle(state, run.randomness.noise_key, run.hyperparameters)
        try:
            _blame_the_data(run, refused)
        except UserError:
            run.checkpoint.discard()  # the data must be prepared again, so that nothing resumes from it
            raise
        say(f"{trial.label()}: diverged, step {refused:,} has no finite gradients")
        progress.curve.append({"step": refused, "train_loss": None, "validation_loss": None})
    _finish(run, state, progress, recordings)


def _train(
    run: TrialRun,
    state: TrainState,
    progress: Progress,
    recordings: list[Recording],
    *,
    stop_after: int | None,
    should_stop: Callable[[], bool],
    watch: Callable[[Progress], None],
) -> tuple[TrainState, int | None]:
    """Runs the steps that are left; returns the last state and the number of the step that was refused, if one was.

    The dispatches that the audit replays are appended to ``recordings``.
    """
    last = run.steps if stop_after is None else min(stop_after, run.steps)
    ticker = Ticker(run.trial.label(), run.steps, "steps")
    in_flight: deque[tuple[Dispatch, DispatchReport]] = deque()
    recorded = run.recorded_dispatches(progress.steps, last)
    start = time.monotonic() - progress.seconds
    refused = None
    try:
        # Sample the batches of a few steps. The next dispatch is read while the device computes this one.
        for dispatch in run.dispatches(progress.steps, last):
            if should_stop():
                raise Stopped(run.trial.label())
            before = own_copy(run.placement, state) if dispatch.first in recorded else None
            run.checkpoint.attempts.reached(dispatch.first + len(dispatch.sampled))
            # For each step: per-example gradients, clip, sum, add noise, divide by the expected batch size, update.
            with first_alone(run.method, "run", run.batches):
                state, reports = run.trainer.run(state, dispatch.steps, run.randomness.noise_key, run.hyperparameters)
            in_flight.append((dispatch, reports))
            if before is not None:
                recordings.append(Recording(dispatch.first, dispatch.steps, before, own_copy(run.placement, state)))

            reached = dispatch.first + len(dispatch.sampled)
            evaluate_now = reached in run.evaluation_steps
            save_now = reached == stop_after or _checkpoint_is_due(run, reached)
            drain = evaluate_now or save_now or reached == last
            while len(in_flight) > (0 if drain else DISPATCHES_IN_FLIGHT):
                _count_steps(run, progress, *in_flight.popleft())
                progress.seconds = time.monotonic() - start
                ticker.update(progress.steps)

            if evaluate_now:
                # At fixed steps, and for good: a second draw of the same noise would be a second release.
                state = _settled(run, state, progress)
                progress.curve.append(_evaluate_validation(run, state, progress, reached))
                progress.recent_losses.clear()
                state = state if reached == run.steps else run.trainer.resume(state)
            watch(progress)
            if save_now and reached < run.steps:
                run.checkpoint.save(run.placement.whole(state), progress, write=is_first_process())
    except StepRefused as refusal:
        refused = refusal.step
    progress.seconds = time.monotonic() - start
    return state, refused


def _settled(run: TrialRun, state: TrainState, progress: Progress) -> TrainState:
    """Returns the state with no noise pending, as it must be to be evaluated or released."""
    with first_alone(run.method, "settle"):
        state, report = run.trainer.settle(state, run.randomness.noise_key, run.hyperparameters)
    if report is not None:
        log_dispatch(run, progress, report)
    return state


def _checkpoint_is_due(run: TrialRun, reached: int) -> bool:
    # Several processes must save at the same step, and their clocks differ: they save where they evaluate.
    return reached in run.evaluation_steps if jax.process_count() > 1 else run.checkpoint.is_due()


def _count_steps(run: TrialRun, progress: Progress, dispatch: Dispatch, reports: DispatchReport) -> None:
    """Waits for a dispatch and adds its steps to the progress. Raises ``StepRefused`` at a step that was refused."""
    log_dispatch(run, progress, reports)
    columns = [np.asarray(column)[: len(dispatch.sampled)].tolist() for column in reports[:4]]
    for sampled, loss, *reported in zip(dispatch.sampled, *columns, strict=True):
        if run.method.private and math.isnan(loss):
            raise StepRefused(progress.steps)
        progress.steps += 1
        count_batch(progress, sampled.indices, run.sampler.examples)
        log_step(run, progress, sampled, reported)
        progress.recent_losses.append(loss)


def _blame_the_data(run: TrialRun, step: int) -> None:
    """Raises a ``UserError`` that names the rows, if examples of a refused step have values that are not finite."""
    rows = np.sort(run.sampler.batch(step).indices)
    integers, _, labels = run.data.trained_on.take(rows)
    # A missing integer is NaN by design.
    bad = rows[np.isinf(integers).any(axis=1) | ~np.isfinite(labels)]
    if len(bad):
        named = ", ".join(f"{row:,}" for row in bad[:5]) + (", …" if len(bad) > 5 else "")
        raise UserError(
            f"{run.trial.label()}: step {step:,} was refused and updated nothing: {len(bad)} of its examples have an "
            f"infinite feature or a non-finite label (rows {named} of the training split, counted from 0). "
            "Fix or remove them in the raw log, then prepare it again."
        )


def _evaluate_validation(run: TrialRun, state: TrainState, progress: Progress, step: int) -> CurvePoint:
    with first_alone(run.method, "predict"):
        validation_loss, metrics = _evaluate(run, state, run.validation)
    return {
        "step": step,
        "train_loss": _finite(fmean(progress.recent_losses)),
        "validation_loss": _finite(validation_loss),
        "validation_metrics": _only_finite(metrics),
    }


def _evaluate(run: TrialRun, state: TrainState, split: Split) -> tuple[float, dict[str, float]]:
    """Returns the reported loss and all metrics over a whole split."""
    return OBJECTIVES[run.trial.task].evaluate(_predict(run, state, split), np.asarray(split.labels))


def _predict(run: TrialRun, state: TrainState, split: Split) -> np.ndarray:
    """Returns the logits of a whole split, predicted in pieces of one shape."""
    logits = []
    for start in range(0, len(split), PREDICTION_ROWS):
        # The last piece is padded with copies of its final row, which are dropped again.
        rows = np.arange(start, start + PREDICTION_ROWS)
        integers, categoricals, _ = split.take(np.minimum(rows, len(split) - 1))
        piece = np.asarray(run.trainer.predict(state, integers, categoricals))
        logits.append(piece[: len(split) - start])
    return np.concatenate(logits)


def _finish(run: TrialRun, state: TrainState, progress: Progress, recordings: list[Recording]) -> None:
    """Evaluates the model on the test split, measures the step that trained it, and writes the trial's folder."""
    test = run.prepared.split("test", run.trial.task)
    made, validation_loss = _recalibration(run, state, progress) or (None, None)
    logits = _predict(run, state, test) + np.float32(made.shift if made else 0.0)
    found = tested(run.trial.task, logits, np.asarray(test.labels))
    diverged = progress.steps < run.steps or found["test_loss"] is None
    released = jax.tree.map(np.asarray, run.trainer.release(state))
    evidence = gather_evidence(run, progress, state, released, recordings, diverged=diverged)
    record = _record(run, state, progress, NOT_TESTED if diverged else found)
    if progress.interruptions:
        record["interruptions"] = progress.interruptions
    if made is not None and not diverged:
        trained, released = released, shifted(released, made.shift)
        evidence["released"] = parameters_digest(flat_parameters(released))
        evidence["recalibration"] = evidence_of(made, run.trial, trained, released)
        record["recalibration"], record["validation_loss"] = made.to_json(), validation_loss
    if is_first_process():
        # Whether and when a run diverges depends on the data, so its parameters are no release that ε covers.
        write_finished(run.trial, record, evidence, None if diverged else released)
        run.checkpoint.discard()


def _recalibration(run: TrialRun, state: TrainState, progress: Progress) -> tuple[Recalibration, float | None] | None:
    """Returns the shift of a trial that asks for one, and the validation loss with it.

    None for other trials, and for a run that was refused, which releases nothing.
    """
    if run.trial.recalibration == "none" or progress.steps < run.steps:
        return None
    logits, labels = _predict(run, state, run.validation), np.asarray(run.validation.labels)
    made = shift_of(run.trial, logits, labels, run.randomness.sampling_entropy)
    loss, _ = OBJECTIVES[run.trial.task].evaluate(logits + np.float32(made.shift), labels)
    return made, _finite(loss)


def _record(run: TrialRun, state: TrainState, progress: Progress, found: Tested) -> TrialRecord:
    noisy = run.data.noisy_labels
    # A run that diverged is accounted for all steps that were planned: where it stopped depends on the data.
    steps = run.steps if found["test_loss"] is None else progress.steps
    private = run.trial.mechanism == "dp_sgd"
    mechanism = noisy.record if noisy else _mechanism_record(run, steps) if private else None
    return {
        "trial": run.trial.model_dump(mode="json"),
        "mechanism": mechanism.to_json() if mechanism else None,
        "vocabulary": run.prepared.vocabulary,
        "validation_loss": progress.curve[-1]["validation_loss"],
        **found,
        "loss_name": OBJECTIVES[run.trial.task].reported_name,
        "curve": progress.curve,
        "steps": progress.steps,
        "seconds": progress.seconds,
        "started": progress.started,
        "ended": time.time(),
        "steps_per_second": progress.steps / progress.seconds,
        "final_l2_clip_norm": _finite(float(state.l2_clip_norm)),
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(run.initial_params)),
        "examples": len(run.data.examples),
        "physical_batch_size": run.batches.shape.rows,
        "device": jax.devices()[0].device_kind,
        "devices": run.placement.devices,
        "jax": jax.__version__,
    }


def _mechanism_record(run: TrialRun, steps: int) -> MechanismRecord:
    """Describes the mechanism by the float32 numbers that the compiled steps were given, not by the trial's."""
    ran, sampler, clipping = run.hyperparameters, run.sampler, run.method.clipping
    return MechanismRecord(
        sampler=sampler.name,
        examples=sampler.examples,
        expected_batch_size=sampler.expected_batch_size,
        max_batch_size=sampler.max_batch_size,
        steps=steps,
        noise_multiplier=float(ran.noise_multiplier),
        l2_clip_norm=float(ran.l2_clip_norm),
        clipping=clipping,
        count_noise_multiplier=float(ran.count_noise_multiplier) if clip_factor(clipping).adaptive else None,
        microbatch_size=sampler.microbatch_size,
        sensitivity=float(ran.sensitivity),
        vocabulary=vocabulary_release(run.prepared),
        coordinates=sum(leaf.size for leaf in jax.tree.leaves(run.initial_params)),
        noise_support=noise_support(),
        noise_summands=generator_of(run.randomness.noise_key).summands,
        label_rate_noise_multiplier=label_rate_noise(run.trial.initial_bias_epsilon, run.trial.target_delta),
        bands=sampler.parts if isinstance(sampler, CyclicPoissonSampler) else 1,
    )


def _finite(value: float) -> float | None:
    """Returns None for NaN or infinity: JSON has no NaN, and a diverged run must not win a comparison."""
    return float(value) if math.isfinite(value) else None


def _only_finite(metrics: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in metrics.items() if math.isfinite(value)}
