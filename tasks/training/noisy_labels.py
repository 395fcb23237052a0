"""Noisy labels: randomised response on the training labels of a LabelDP trial, drawn once for all epochs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dp_core.audit.release_noise import PROBED_CELLS, HistogramNoise, histogram_noise
from dp_core.labels.bins import Bins, binary_bins, count_bins, noisy_histogram, optimal_bins
from dp_core.labels.randomized_response import RandomizedResponse
from dp_core.labels.record import LabelRecord
from tasks.runtime.errors import UserError
from tasks.runtime.home import short_hash
from tasks.training.trial import Trial

# The share of the budget that goes to the histogram from which bins are chosen.
_HISTOGRAM_SHARE = 0.1
# The seed sequence's spawn key. Samplers and canaries use others.
_STREAM = (0, 2)


class NoisyLabels(NamedTuple):
    """The labels to train on. Response j is trained on as ``stand_for[j]``, so every label is one of ``stand_for``.

    ``histogram_noise`` is what was measured of the noise of the histogram that bins were fitted to, if there was one.
    It is evidence for the audit, and not private.
    """

    labels: np.ndarray
    record: LabelRecord
    stand_for: np.ndarray
    histogram_noise: HistogramNoise | None = None

    def transitions(self, true_labels: np.ndarray, trained_on: np.ndarray) -> list[list[int]]:
        """Returns ``[i][j]``, the number of true labels of bin i that were trained on as response j.

        It is evidence for the audit, and not private. A label that stands for no response is not counted, so the audit
        finds too few labels.
        """
        true = Bins(self.record.values, self.record.starts, self.record.values).indices(true_labels)
        responses = np.minimum(np.searchsorted(self.stand_for, trained_on), len(self.stand_for) - 1)
        known = self.stand_for[responses] == trained_on
        found = np.zeros((len(self.stand_for), len(self.stand_for)), np.int64)
        np.add.at(found, (true[known], responses[known]), 1)
        return found.tolist()


def draw_labels(trial: Trial, labels: np.ndarray, entropy: Sequence[int]) -> NoisyLabels:
    """Applies randomised response to the training labels.

    The draw depends on the task, the budget, the kind of response and ``entropy`` alone. So trials with one seed that
    differ only in how they train share one draw, and together cost its ε once. Draws that differ in any of these are
    independent, as composing their ε requires.
    """
    assert trial.epsilon is not None
    assert trial.response is not None
    asked = int(short_hash([trial.task, trial.response, trial.largest_count, trial.epsilon]), 16)
    rng = np.random.default_rng(np.random.SeedSequence((*entropy, asked), spawn_key=_STREAM))
    try:
        bins, histogram_epsilon, measured = _bins(trial, trial.epsilon, labels, rng)
        true = bins.indices(labels)
        values = bins.means if trial.debias else bins.values
        mechanism = RandomizedResponse(values, trial.epsilon - histogram_epsilon)
    except ValueError as error:
        raise UserError(f"{trial.label()}: {error}") from None
    show = mechanism.debiased if trial.debias else mechanism.plain
    stand_for = show(np.arange(len(values)))
    if np.any(np.diff(stand_for) <= 0):
        raise UserError(f"{trial.label()}: ε is so small that two responses are the same number in float32")
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
    record = dataclasses.replace(record, draw=_draw(record, responses))
    return NoisyLabels(show(responses), record, stand_for, measured)


def _draw(record: LabelRecord, responses: np.ndarray) -> str:
    """Returns a hash of the mechanism and the responses. Different mechanisms differ even if no label changed."""
    drawn = record.kind, record.starts, record.keep_probability, record.histogram_epsilon
    return hashlib.blake2b(repr(drawn).encode() + responses.astype(np.int16).tobytes(), digest_size=8).hexdigest()


def _bins(
    trial: Trial, epsilon: float, labels: np.ndarray, rng: np.random.Generator
) -> tuple[Bins, float, HistogramNoise | None]:
    """Returns the bins of the responses, the ε that choosing them cost, and what was measured of the noise."""
    if trial.response == "binary":
        return binary_bins(), 0.0, None
    most = trial.largest_count or 1
    if trial.response == "k_ary":
        return count_bins(most), 0.0, None
    spent = _HISTOGRAM_SHARE * epsilon
    # One function for the histogram and for the probes of its noise.
    noised = functools.partial(noisy_histogram, epsilon=spent)
    histogram = noised(labels, most, rng=rng)
    exact = np.bincount(count_bins(most).indices(labels), minlength=most + 1)
    first, second = (noised(np.zeros(0, np.int64), PROBED_CELLS - 1, rng=np.random.default_rng()) for _ in range(2))
    measured = histogram_noise(exact, histogram, first, second, epsilon=spent)
    return optimal_bins(histogram, epsilon=epsilon - spent), spent, measured
