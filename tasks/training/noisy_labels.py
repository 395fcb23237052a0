"""Labels after randomised response: what a LabelDP trial trains on, drawn once and used in every epoch."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dp_core.label_bins import Bins, binary_bins, count_bins, noisy_histogram, optimal_bins
from dp_core.label_record import LabelRecord
from dp_core.randomized_response import RandomizedResponse
from tasks.errors import UserError
from tasks.home import short_hash
from tasks.trial import Trial

# Of a budget for responses on bins, what the histogram gets that the bins are fitted to.
_HISTOGRAM_SHARE = 0.1
# Samplers and canaries have streams of their own.
_STREAM = (0, 2)


class NoisyLabels(NamedTuple):
    """``labels`` are what is to be trained on: each is the one of ``stand_for`` that its response stands for."""

    labels: np.ndarray
    record: LabelRecord
    stand_for: np.ndarray

    def transitions(self, true_labels: np.ndarray, trained_on: np.ndarray) -> list[list[int]]:
        """``[i][j]`` counts true labels of bin i that were trained on as response j: evidence for the audit, and not
        private. A label that no response stands for is not counted, and the audit will miss it."""
        true = Bins(self.record.values, self.record.starts, self.record.values).indices(true_labels)
        responses = np.minimum(np.searchsorted(self.stand_for, trained_on), len(self.stand_for) - 1)
        known = self.stand_for[responses] == trained_on
        found = np.zeros((len(self.stand_for), len(self.stand_for)), np.int64)
        np.add.at(found, (true[known], responses[known]), 1)
        return found.tolist()


def draw_labels(trial: Trial, labels: np.ndarray, entropy: Sequence[int]) -> NoisyLabels:
    """Randomised response on the training labels.

    What is drawn depends on the task, the budget, the kind of response and ``entropy`` alone: trials with one seed that
    differ in how they train share one draw, which is released once however many of them there are. Draws that differ
    in one of these are independent, as adding up their ε supposes.
    """
    assert trial.epsilon is not None
    assert trial.response is not None
    asked = int(short_hash([trial.task, trial.response, trial.largest_count, trial.epsilon]), 16)
    rng = np.random.default_rng(np.random.SeedSequence((*entropy, asked), spawn_key=_STREAM))
    try:
        bins, histogram_epsilon = _bins(trial, trial.epsilon, labels, rng)
        true = bins.indices(labels)
        values = bins.means if trial.debias else bins.values
        mechanism = RandomizedResponse(values, trial.epsilon - histogram_epsilon)
    except ValueError as error:
        raise UserError(f"{trial.label()}: {error}") from None
    show = mechanism.debiased if trial.debias else mechanism.plain
    stand_for = show(np.arange(len(values)))
    if np.any(np.diff(stand_for) <= 0):
        raise UserError(f"{trial.label()}: ε is so small that responses cannot be told apart in 32 bits")
    responses = mechanism.respond(true, rng)
    record = LabelRecord(
        kind=trial.response,
        examples=len(labels),
        values=values,
        starts=bins.starts,
        keep_probability=mechanism.keep_probability,
        histogram_epsilon=histogram_epsilon,
        debiased=bool(trial.debias),
        draw="",
    )
    return NoisyLabels(show(responses), dataclasses.replace(record, draw=_draw(record, responses)), stand_for)


def _draw(record: LabelRecord, responses: np.ndarray) -> str:
    """Tells a draw from others, also where both kept every label."""
    drawn = record.kind, record.starts, record.keep_probability, record.histogram_epsilon
    return hashlib.blake2b(repr(drawn).encode() + responses.astype(np.int16).tobytes(), digest_size=8).hexdigest()


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
