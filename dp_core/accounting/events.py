"""Accounting events: descriptions of what was released, which accountants turn into ε.

Most events are dp_accounting's own. This module adds an epoch of balls-in-bins sampling, which dp_accounting
does not have, and the events for a *group* of examples (all examples of one user).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import attr
import dp_accounting
from dp_accounting import dp_event
from scipy import stats

from dp_core.accounting.binomials import smallest_above

# The number of a group's examples in a Poisson sample is truncated where the tail is below this probability.
_NEGLIGIBLE = 1e-30


@attr.frozen
class BallsInBinsDpEvent(dp_accounting.DpEvent):
    """One epoch of balls-in-bins sampling with a Gaussian release per batch.

    Each example independently joins one of the batches, chosen uniformly, and each batch releases its clipped
    sum with Gaussian noise.

    Attributes:
        bins: The number of batches in the epoch.
        noise_multiplier: The noise's standard deviation over the sum's sensitivity to one example.
    """

    bins: int
    noise_multiplier: float


def gaussian_event(*, noise_multiplier: float, releases: int, group_size: int = 1) -> dp_accounting.DpEvent:
    """Returns the event of plain Gaussian releases that each may see every example of the group.

    Args:
        noise_multiplier: The noise's standard deviation over the sensitivity to one example.
        releases: The number of releases.
        group_size: The number k of examples that neighbours differ in. They move a sum by up to k sensitivities.

    Returns:
        The composed event, under replacing the group by empty examples, or adding or removing it.
    """
    return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(noise_multiplier / group_size), releases)


def poisson_event(
    *, sampling_probability: float, noise_multiplier: float, steps: int, group_size: int = 1
) -> dp_accounting.DpEvent:
    """Returns the event of Gaussian releases, each on a Poisson sample of its own.

    Binomial(k, q) of a group's k examples are in a sample, and each moves the sum by up to one sensitivity.
    A group's release is therefore a mixture of Gaussians with the binomial's weights.

    Args:
        sampling_probability: The probability q that an example is in a sample.
        noise_multiplier: The noise's standard deviation over the sensitivity to one example.
        steps: The number of releases.
        group_size: The number k of examples that neighbours differ in.

    Returns:
        The composed event, under replacing the group by empty examples, or adding or removing it.
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
    """Yields the elementary events of a composed event, each with the number of times it happens.

    >>> list(flattened(gaussian_event(noise_multiplier=2.0, releases=3)))
    [(GaussianDpEvent(noise_multiplier=2.0), 3)]

    Args:
        event: Any event; ``ComposedDpEvent`` and ``SelfComposedDpEvent`` are taken apart, ``NoOpDpEvent`` is dropped.
        count: The number of times the whole event happens.

    Yields:
        Pairs of an event that is not a composition, and its count. The same event may be yielded several times.
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
    # More than ``largest`` is as good as impossible, and is counted as all of them, which is pessimistic.
    probabilities = [*present.pmf(numbers[:-1]), present.sf(largest)]
    probabilities[0] += 1 - math.fsum(probabilities)
    likely = [(float(number), float(p)) for number, p in zip(numbers, probabilities, strict=True) if p > 0]
    sensitivities, sampling_probabilities = zip(*likely, strict=True)
    return dp_event.MixtureOfGaussiansDpEvent(noise_multiplier, sensitivities, sampling_probabilities)
