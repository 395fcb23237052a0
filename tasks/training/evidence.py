"""What a run leaves for the audit besides its record: things that were measured on the run itself.

None of it is private: it is for whoever may see the training data, and stays in the trial's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dp_core.probe import Compiled, Probe, probe_step
from dp_core.sampling_checks import count_watched, watched_stride
from dp_core.training import Hyperparameters, Method
from tasks.canaries import CanaryTokens, attacks
from tasks.checkpoint import Progress
from tasks.encoded import Split

PROBED_EXAMPLES = 8


def count_batch(progress: Progress, sampled: np.ndarray, places: int) -> None:
    """Adds a batch that was run to what is known of the sampler."""
    stride = watched_stride(places)
    if not len(progress.participations):
        progress.participations = np.zeros(-(-places // stride), np.int64)
    count_watched(progress.participations, sampled, stride)
    progress.batch_sizes.append(len(sampled))


def probe_run(
    compiled: Compiled, params: Any, hyper: Hyperparameters, l2_clip_norm: float, data: Split, noise_key: jax.Array
) -> Probe:
    """Measures the step that trained at the run's last parameters, on a few of its examples."""
    rows = np.random.default_rng(0).choice(len(data), min(PROBED_EXAMPLES, len(data)), replace=False)
    # A key that no step of the run has used.
    key = jax.random.fold_in(noise_key, 2**31 - 1)
    return probe_step(compiled, params, hyper._replace(l2_clip_norm=l2_clip_norm), key, data.take(np.sort(rows)))


def canary_evidence(
    method: Method, tokens: CanaryTokens, canaries: Split, included: Sequence[bool], before: Any, after: Any
) -> dict[str, Any]:
    """The canaries' scores in each attack, and which of them were in."""
    found = attacks(method.model, method.task, tokens, canaries, before, after)
    return {"attacks": {name: scores.tolist() for name, scores in found.items()}, "included": list(included)}
