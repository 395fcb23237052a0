"""Labels after randomised response: what a LabelDP trial trains on, drawn once and used in every epoch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dp_core.label_bins import Bins, binary_bins, count_bins, noisy_histogram, optimal_bins
from dp_core.label_record import LabelRecord
from dp_core.randomized_response import RandomizedResponse
from tasks.errors import UserError
from tasks.trial import Trial

# Of a budget for responses on bins, what the histogram gets that the bins are fitted to.
_HISTOGRAM_SHARE = 0.1
# Samplers and canaries have streams of their own.
_STREAM = (0, 2)


class NoisyLabels(NamedTuple):
    """``labels`` are what is trained on. ``transitions[i][j]`` counts true labels of bin i that became j: it is
    evidence for the audit, and not private."""

    labels: np.ndarray
    record: LabelRecord
    transitions: list[list[int]]


def draw_labels(trial: Trial, labels: np.ndarray, entropy: Sequence[int]) -> NoisyLabels:
    """Randomised response on the training labels.

    What is drawn depends on the budget, the kind of response and ``entropy`` alone: trials with one seed that differ
    in how they train share one draw, which is released once however many of them there are.
    """
    assert trial.epsilon is not None
    assert trial.response is not None
    rng = np.random.default_rng(np.random.SeedSequence(tuple(entropy), spawn_key=_STREAM))
    try:
        bins, histogram_epsilon = _bins(trial, trial.epsilon, labels, rng)
        true = bins.indices(labels)
    except ValueError as error:
        raise UserError(f"{trial.label()}: {error}") from None
    response_epsilon = trial.epsilon - histogram_epsilon
    values = bins.means if trial.debias else bins.values
    mechanism = RandomizedResponse(values, response_epsilon)
    responses = mechanism.respond(true, rng)
    transitions = np.zeros((len(values), len(values)), np.int64)
    np.add.at(transitions, (true, responses), 1)
    record = LabelRecord(
        kind=trial.response,
        examples=len(labels),
        values=values,
        starts=bins.starts,
        keep_probability=mechanism.keep_probability,
        histogram_epsilon=histogram_epsilon,
        debiased=bool(trial.debias),
        draw=hashlib.blake2b(responses.astype(np.int16).tobytes(), digest_size=8).hexdigest(),
    )
    shown = mechanism.debiased(responses) if trial.debias else mechanism.plain(responses)
    return NoisyLabels(shown, record, transitions.tolist())


def _bins(trial: Trial, epsilon: float, labels: np.ndarray, rng: np.random.Generator) -> tuple[Bins, float]:
    """What a response can be, and what was spent on finding that out."""
    if trial.response == "binary":
        return binary_bins(), 0.0
    most = trial.largest_count or 1
    if trial.response == "k_ary":
        return count_bins(most), 0.0
    spent = _HISTOGRAM_SHARE * epsilon
    histogram = noisy_histogram(labels, most, epsilon=spent, rng=rng)
    return optimal_bins(histogram, epsilon=epsilon - spent), spent
