"""Label rate: a noisy mean of the training labels, and the output bias that a model starts with.

A model whose output bias is 0 predicts 1/2 (or a count of 1) for everyone. It spends its first steps, and the clip norm
of every example, on learning the rate of a rare label. With the bias at the log-odds of the label rate (or, for counts,
at the log of the mean) it starts as the best constant prediction; the other layers' initial values are random and
independent of the data.

*Privacy.* Neighbours differ in one example that is replaced by an empty one, which has the label 0, and N is public.
Labels are clipped to [0, L] with L public: 1 for clicks and conversions, ``LARGEST_COUNT`` for counts. So one example
moves the sum of labels by at most L. The sum is released with Gaussian noise of standard deviation L times the noise
multiplier, rounded to an integer (``dp_core.evaluation.integer_noise``: post-processing of the Gaussian release). The
rate is that sum over N, and the bias a function of it. The release is one Gaussian event of the training
(``MechanismRecord.label_rate_noise_multiplier``) and is composed with it.

Labels are rounded to integers first; they are integers already in every task here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np

from dp_core.evaluation.integer_noise import rounded_normal
from dp_core.partition_selection import selection_noise_multiplier

# Larger counts are clipped to this. It is chosen without looking at the data.
LARGEST_COUNT = 10


def largest_label(task: str) -> int:
    """Returns the public bound L on a label of a task, to which labels are clipped."""
    return LARGEST_COUNT if task == "pconvs" else 1


def label_rate_noise_multiplier(*, epsilon: float, delta: float) -> float:
    """Returns the noise multiplier with which the label rate's release by itself is (``epsilon``, ``delta``)-DP."""
    return selection_noise_multiplier(epsilon=epsilon, delta=delta)


def clipped_sum(labels: np.ndarray, task: str) -> int:
    """Returns the exact sum of the labels, each clipped to [0, L]. Not private."""
    return int(np.sum(np.clip(np.rint(labels), 0, largest_label(task)).astype(np.int64)))


def noisy_sum(
    labels: np.ndarray,
    task: str,
    *,
    noise_multiplier: float,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> int:
    """Returns the sum of the clipped labels with noise.

    Args:
        labels: The training labels.
        task: A key of ``losses.OBJECTIVES``.
        noise_multiplier: The noise's standard deviation over the sensitivity L, positive.
        random_bytes: The source of randomness; for a release it must be secret.
    """
    standard_deviation = noise_multiplier * largest_label(task)
    (noise,) = rounded_normal(1, standard_deviation, random_bytes=random_bytes)
    return clipped_sum(labels, task) + int(noise)


def bias_of(total: float, examples: int, task: str) -> float:
    """Returns the output bias of the best constant prediction, given the (noisy) sum of labels.

    The rate is kept at least half a label away from the ends of its range, which noise may leave.

    >>> round(bias_of(100, 400, "pctr"), 4), round(bias_of(100, 400, "pconvs"), 4)
    (-1.0986, -1.3863)

    Args:
        total: The sum of labels.
        examples: The number of examples N.
        task: The log-odds of the rate, or for "pconvs" the log of the mean.
    """
    least = 0.5 / examples
    rate = min(max(total / examples, least), largest_label(task) - least)
    return math.log(rate) if task == "pconvs" else math.log(rate) - math.log1p(-rate)
