"""Evidence for the audit: what was measured on the run itself, besides the record of what it believes it ran.

Evidence is not private. It is for people who may see the training data, and stays in the trial's folder.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from dp_core.audit.probe import Compiled, Probe, probe_step
from dp_core.audit.sampling_counts import SamplingCounts
from tasks.training.canaries import attacks
from tasks.training.checkpoint import Progress
from tasks.training.finished import CanaryEvidence, Evidence
from tasks.training.setup import TrialRun
from tasks.training.side_by_side import first_alone

PROBED_EXAMPLES = 8


def count_batch(progress: Progress, sampled: np.ndarray, slots: int) -> None:
    """Counts the batch of the last step. The audit checks the sampler by these counts."""
    if progress.sampling is None:
        progress.sampling = SamplingCounts(slots)
    progress.sampling.add(progress.steps - 1, sampled)


def gather_evidence(
    run: TrialRun, progress: Progress, released: Any, l2_clip_norm: float, *, diverged: bool
) -> Evidence:
    """Collects the counts of the sampler, and measures the compiled step and the canaries.

    A run that diverged releases nothing, so there is nothing to probe or attack.

    Args:
      run: The run.
      progress: Its counts.
      released: The model's parameters after the last step.
      l2_clip_norm: The clip norm after the last step.
      diverged: Whether the run diverged.
    """
    data, probed = run.data, run.method.private and not diverged
    sampling = progress.sampling or SamplingCounts(run.sampler.examples)
    noisy = data.noisy_labels
    return {
        "sampling": sampling.to_json(),
        "probe": _probe(run, released, l2_clip_norm).to_json() if probed else None,
        "canaries": _canary_evidence(run, released) if probed else None,
        # From the array that batches were read from, not from the draw that should be in it.
        "label_transitions": noisy.transitions(data.examples.labels, data.trained_on.labels) if noisy else None,
        "histogram_noise": noisy.histogram_noise if noisy else None,
    }


def _probe(run: TrialRun, params: Any, l2_clip_norm: float) -> Probe:
    """Measures the compiled step at the run's last parameters, on a few of its examples."""
    examples = run.data.examples
    rows = np.random.default_rng(0).choice(len(examples), min(PROBED_EXAMPLES, len(examples)), replace=False)
    compiled = Compiled(run.method, run.batches.shape, run.batches.steps_per_dispatch)
    hyperparameters = run.hyperparameters._replace(l2_clip_norm=l2_clip_norm)
    # A key that no step of the run has used.
    key = jax.random.fold_in(run.randomness.noise_key, 2**31 - 1)
    with first_alone(run.method, "probe", run.batches):
        return probe_step(compiled, params, hyperparameters, key, examples.take(np.sort(rows)))


def _canary_evidence(run: TrialRun, released: Any) -> CanaryEvidence | None:
    canaries = run.data.canaries
    if canaries is None:
        return None
    scores = attacks(run.method.model, run.method.task, canaries, run.initial_params, released)
    return {
        "attacks": {name: values.tolist() for name, values in scores.items()},
        "included": canaries.included.tolist(),
    }
