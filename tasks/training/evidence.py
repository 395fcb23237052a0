"""Evidence for the audit: what was measured on the run itself, besides the record of what it believes it ran.

Evidence is not private. It is for people who may see the training data, and stays in the trial's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dp_core.audit.key_checks import KeyEvidence, compare_keys
from dp_core.audit.probe import Compiled, Probe, probe_step
from dp_core.audit.probe_batches import unusual_first
from dp_core.audit.replay import Recording, Replay, replay
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.audit.step_log import expected_rows
from dp_core.clipping.microbatches import make_microbatches
from dp_core.cyclic_sampling import CyclicPoissonSampler
from dp_core.models.digest import parameters_digest
from dp_core.sampling import SampledBatch
from dp_core.training.generators import generator_of
from dp_core.training.noise import noise_support
from dp_core.training.step import Hyperparameters, TrainState
from dp_core.training.witness import DispatchReport, state_checksum
from tasks.privacy.audit_evidence import CanaryEvidence, Evidence
from tasks.privacy.label_rate import label_rate_evidence
from tasks.training.canaries import attacks
from tasks.training.checkpoint import Progress, digest
from tasks.training.finished import flat_parameters
from tasks.training.randomness import Randomness, changed_descriptions
from tasks.training.setup import TrialRun
from tasks.training.side_by_side import first_alone

# Examples to probe with, and examples that they are chosen from.
PROBED_EXAMPLES, SEARCHED_EXAMPLES = 256, 4096
# Programs that were probed in this process. Trials of one program are probed each, but thoroughly only the first one.
_thoroughly_probed: set[Compiled] = set()
# Secret keys that are drawn to see that no two are the same.
DRAWN_KEYS = 128


def count_batch(progress: Progress, sampled: np.ndarray, slots: int) -> None:
    """Counts the batch of the last step. The audit checks the sampler by these counts."""
    if progress.sampling is None:
        progress.sampling = SamplingCounts(slots)
    progress.sampling.add(progress.steps - 1, sampled)


def log_step(run: TrialRun, progress: Progress, sampled: SampledBatch, reported: Sequence[int]) -> None:
    """Compares the step's report from the device (its counter, rows and checksum) with the batch that was sampled."""
    microbatches = make_microbatches(run.sampler.microbatch_size)
    expected = expected_rows(
        sampled,
        run.row_hashes,
        present=run.data.trained_on.present(sampled.indices),
        largest_group=microbatches.largest if microbatches else None,
    )
    number, rows, checksum = reported
    progress.log.add((number, rows, checksum), expected)


def log_dispatch(run: TrialRun, progress: Progress, reports: DispatchReport) -> None:
    """Compares what a dispatch was given with the run's key and numbers, and its first state with the last one so far.

    The first dispatch of an attempt is compared with the state that the attempt began with.
    """
    progress.log.add_dispatch(
        given=int(reports.given) == run.given, before=int(reports.before), after=int(reports.after)
    )


def gather_evidence(
    run: TrialRun,
    progress: Progress,
    state: TrainState,
    released: Any,
    recordings: Sequence[Recording],
    *,
    diverged: bool,
) -> Evidence:
    """Collects what was counted during the run, and measures the compiled step and the canaries.

    A run that diverged releases nothing, so there is nothing to probe or attack.

    Args:
      run: The run.
      progress: Its counts.
      state: The state after the last step.
      released: The model's parameters after the last step.
      recordings: The dispatches to replay.
      diverged: Whether the run diverged.
    """
    # What only clips promises nothing, so there is nothing to hold it to.
    data, promises = run.data, run.trial.mechanism == "dp_sgd"
    probed = promises and not diverged
    sampling = progress.sampling or SamplingCounts(run.sampler.examples)
    noisy = data.noisy_labels
    evidence: Evidence = {
        "sampling": sampling.to_json(),
        "program": _program(run, released),
        "log": progress.log.to_json(),
        "last_state": state_checksum(state),
        "keys": _keys(run, progress)._asdict() if promises else None,
        "device_steps": int(state.step),
        "releases_the_last_state": _is_the_last(run, state, released),
        "attempts": progress.attempts,
        "saves": progress.saves,
        "initial_state": digest(run.placement.whole(run.trainer.init(run.initial_params, run.hyperparameters))),
        "released": None if diverged else parameters_digest(flat_parameters(released)),
        "replays": [_replay(run, recording)._asdict() for recording in recordings] if probed else None,
        "probe": _probe(run, released, float(state.l2_clip_norm)).to_json() if probed else None,
        "canaries": _canary_evidence(run, released) if probed else None,
        # From the array that batches were read from, not from the draw that should be in it.
        "label_transitions": noisy.transitions(data.examples.labels, data.trained_on.labels) if noisy else None,
        "histogram_noise": noisy.histogram_noise if noisy else None,
    }
    label_rate = label_rate_evidence(
        run.trial, run.initial_params, np.asarray(data.examples.labels), progress.label_sum
    )
    if label_rate is not None:
        evidence["label_rate"] = {**label_rate}
    if run.method.bands > 1:
        evidence["noise_coefficients"] = list(run.method.noise_coefficients)
    if run.trial.start_from is not None:
        evidence["initial_parameters"] = parameters_digest(flat_parameters(run.initial_params))
    return evidence


def _probe(run: TrialRun, params: Any, l2_clip_norm: float) -> Probe:
    """Measures the compiled step at the run's last parameters, on a few of its examples."""
    examples = run.data.examples
    # Every trial looks at other examples, so that a sweep looks at many.
    seed = int(run.trial.key, 16) % 2**32
    rng = np.random.default_rng(seed)
    compiled = Compiled(run.method, run.batches.shape, run.batches.steps_per_dispatch)
    thorough = compiled not in _thoroughly_probed
    wanted = SEARCHED_EXAMPLES if thorough else PROBED_EXAMPLES
    parts = examples.take(np.sort(rng.choice(len(examples), min(wanted, len(examples)), replace=False)))
    if thorough:
        chosen = unusual_first(parts[1], rng)[:PROBED_EXAMPLES]
        parts = tuple(part[chosen] for part in parts)
    hyperparameters = Hyperparameters(*map(float, run.hyperparameters))._replace(l2_clip_norm=l2_clip_norm)
    # A key that no step of the run has used.
    key = jax.random.fold_in(run.randomness.noise_key, 2**31 - 1)
    with first_alone(run.method, "probe", run.batches):
        probe = probe_step(compiled, params, hyperparameters, key, parts, seed=seed, thorough=thorough)
    _thoroughly_probed.add(compiled)
    return probe


def _keys(run: TrialRun, progress: Progress) -> KeyEvidence:
    """Compares the run's randomness with that of other runs."""
    trial = run.trial
    secret = trial.randomness == "secret"
    others = [trial] * DRAWN_KEYS if secret else changed_descriptions(trial)
    # A dealt epoch keeps the entropy of the first attempt.
    own = run.randomness.drawn()._replace(sampling=tuple(progress.sampling_entropy or run.randomness.sampling_entropy))
    return compare_keys(
        own,
        Randomness.for_trial(trial).drawn(),
        [Randomness.for_trial(other).drawn() for other in others],
        secret=secret,
        sampler_entropy=run.sampler.entropy,
    )


def _replay(run: TrialRun, recording: Recording) -> Replay:
    return replay(recording, run.trainer, run.placement, run.randomness.noise_key, run.hyperparameters)


def _program(run: TrialRun, released: Any) -> dict[str, Any]:
    """Returns what the objects that trained say of themselves, by the names of the mechanism's record."""
    return {
        "sampler": run.sampler.name,
        "examples": run.sampler.examples,
        "expected_batch_size": run.sampler.expected_batch_size,
        "max_batch_size": run.sampler.max_batch_size,
        "clipping": run.method.clipping,
        "microbatch_size": run.method.microbatch_size,
        "coordinates": sum(leaf.size for leaf in jax.tree.leaves(released)),
        "noise_support": noise_support(),
        "noise_summands": generator_of(run.randomness.noise_key).summands,
        "bands": run.sampler.parts if isinstance(run.sampler, CyclicPoissonSampler) else 1,
    }


def _is_the_last(run: TrialRun, state: TrainState, released: Any) -> bool:
    """Returns whether the released parameters are those of the last state, to the bit: its average with averaging."""
    whole = run.placement.whole(state)
    held = whole.params if run.trial.averaging == "none" else whole.update_state.average
    last = run.placement.trim_tables(held, run.method.model.vocabulary_sizes)
    return bool(jax.tree.all(jax.tree.map(lambda a, b: np.array_equal(a, b, equal_nan=True), last, released)))


def _canary_evidence(run: TrialRun, released: Any) -> CanaryEvidence | None:
    canaries = run.data.canaries
    if canaries is None:
        return None
    scores = attacks(run.method.model, run.method.task, canaries, run.initial_params, released)
    return {
        "attacks": {name: values.tolist() for name, values in scores.items()},
        "included": canaries.included.tolist(),
    }
