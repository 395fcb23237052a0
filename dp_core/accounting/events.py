"""Accounting events: descriptions of what was released, for accountants to judge.

Most are dp_accounting's own. Added here are an epoch of balls-in-bins sampling, which it does not
know, and what a *group* of examples (those of one user) makes of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attr
import dp_accounting
from dp_accounting import dp_event
from scipy import stats

from dp_core.binomials import smallest_above

# A group's share of a Poisson sample is cut off where the rest has less probability than this.
_NEGLIGIBLE = 1e-30


@attr.frozen
class BallsInBinsDpEvent(dp_accounting.DpEvent):
    """One epoch: each example joins one of ``bins`` batches, and each batch's sum gets Gaussian noise."""

    bins: int
    noise_multiplier: float


def gaussian_event(*, noise_multiplier: float, releases: int, group_size: int = 1) -> dp_accounting.DpEvent:
    """Gaussian releases in each of which every example of the group may take part."""
    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier / group_size), releases)


def poisson_event(
    *, sampling_probability: float, noise_multiplier: float, steps: int, group_size: int = 1
) -> dp_accounting.DpEvent:
    """Gaussian releases, each on a Poisson sample.

    Of a group of k examples Binomial(k, q) are in a sample, and move its sum by as many clip norms.
    """
    if sampling_probability == 1:
        return gaussian_event(noise_multiplier=noise_multiplier, releases=steps, group_size=group_size)
    if group_size == 1:
        release = dp_accounting.GaussianDpEvent(noise_multiplier)
        step: dp_accounting.DpEvent = dp_accounting.PoissonSampledDpEvent(sampling_probability, release)
    else:
        step = _group_release(sampling_probability, noise_multiplier, group_size)
    return dp_accounting.SelfComposedDpEvent(step, steps)


def flattened(event: dp_accounting.DpEvent, count: int = 1) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
    """The events that a composed one is made of, each with how often it happens.

    >>> list(flattened(gaussian_event(noise_multiplier=2.0, releases=3)))
    [(GaussianDpEvent(noise_multiplier=2.0), 3)]
    """
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        yield from flattened(event.event, count * event.count)
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from flattened(part, count)
    elif not isinstance(event, dp_accounting.NoOpDpEvent):
        yield event, count


def _group_release(
    sampling_probability: float, noise_multiplier: float, group_size: int
) -> dp_event.MixtureOfGaussiansDpEvent:
    present = stats.binom(group_size, sampling_probability)
    largest = smallest_above(_NEGLIGIBLE, group_size, sampling_probability)
    numbers = [*range(largest + 1), group_size]
    # More than ``largest`` is as good as never, and counted as if it were all of them.
    probabilities = [*present.pmf(numbers[:-1]), present.sf(largest)]
    probabilities[0] += 1 - math.fsum(probabilities)
    likely = [(float(number), float(p)) for number, p in zip(numbers, probabilities, strict=True) if p > 0]
    sensitivities, sampling_probabilities = zip(*likely, strict=True)
    return dp_event.MixtureOfGaussiansDpEvent(noise_multiplier, sensitivities, sampling_probabilities)
