"""The privacy loss distribution (PLD) of an event, rounded so that every ε read from it is an upper bound.

dp_accounting makes the distribution of each kind of release (connect-the-dots) and convolves them. This module
composes them itself instead of calling dp_accounting's PLD accountant, which ignores how often a randomised
response is repeated (a test of this module fails once that is fixed) and does not have balls-in-bins.
"""

from __future__ import annotations

import functools
import math
from collections import Counter

import dp_accounting
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import privacy_loss_distribution as pld

from dp_core.accounting.events import BallsInBinsDpEvent, flattened
from dp_core.accounting.random_allocation import random_allocation_pld

# Convolutions go through 64-bit Fourier transforms. Their rounding can hide this much probability per composed
# release. It is subtracted from δ, so the bound stays valid.
ROUNDING_PER_RELEASE = 4e-16

_TAIL_MASS = 1e-15


def privacy_loss(
    event: dp_accounting.DpEvent,
    interval: float,
    neighboring_relation: NeighboringRelation = NeighboringRelation.ADD_OR_REMOVE_ONE,
) -> pld.PrivacyLossDistribution:
    """Returns the pessimistic PLD of a composed event.

    Args:
        event: What was released, with parts of the kinds that ``epsilon_bound`` lists.
        interval: The discretisation interval: losses are multiples of it. Smaller is tighter and slower.
        neighboring_relation: What neighbouring datasets differ in.

    Returns:
        A distribution that dominates the true one: every δ(ε) read from it is an upper bound, except for rounding,
        which ``epsilon_at`` accounts for.

    Raises:
        ValueError: If a part's distribution is not known under the relation.
    """
    parts = [_repeated(part, count, interval, neighboring_relation) for part, count in _counted(event).items()]
    if not parts:
        return pld.identity(interval)
    return functools.reduce(lambda a, b: a.compose(b, _TAIL_MASS), parts)


def epsilon_at(distribution: pld.PrivacyLossDistribution, delta: float, event: dp_accounting.DpEvent) -> float:
    """Returns the ε of a PLD at δ, after subtracting from δ what floating-point rounding can hide.

    Args:
        distribution: The PLD of ``event``.
        delta: The δ of the guarantee.
        event: The event, for the number of releases that were composed numerically.

    Returns:
        An upper bound on ε; infinity if rounding could hide all of δ.
    """
    left = delta - ROUNDING_PER_RELEASE * releases(event)
    return float(distribution.get_epsilon_for_delta(left)) if left > 0 else math.inf


def releases(event: dp_accounting.DpEvent) -> int:
    """Returns the number of releases that are composed numerically.

    Any number of equal plain Gaussian releases counts as one, because they compose to a Gaussian exactly.
    """
    return sum(
        1 if isinstance(part, dp_accounting.GaussianDpEvent) else count for part, count in _counted(event).items()
    )


def is_without_noise(event: dp_accounting.DpEvent) -> bool:
    """Returns whether a part of the event has no noise at all, so that no finite ε exists."""
    return any(_noise(part) == 0 for part in _counted(event))


def _counted(event: dp_accounting.DpEvent) -> Counter[dp_accounting.DpEvent]:
    counts: Counter[dp_accounting.DpEvent] = Counter()
    for part, count in flattened(event):
        counts[part] += count
    return counts


def _noise(part: dp_accounting.DpEvent) -> float:
    if isinstance(part, dp_accounting.PoissonSampledDpEvent):
        return _noise(part.event)
    if isinstance(part, dp_accounting.NonPrivateDpEvent):
        return 0.0
    names = ("noise_multiplier", "standard_deviation", "noise_parameter")
    return float(next((getattr(part, name) for name in names if hasattr(part, name)), math.inf))


def _repeated(
    part: dp_accounting.DpEvent, count: int, interval: float, relation: NeighboringRelation
) -> pld.PrivacyLossDistribution:
    common = {"value_discretization_interval": interval}
    match part:
        case dp_accounting.GaussianDpEvent():
            # Gaussians compose to a Gaussian, exactly.
            deviation = part.noise_multiplier / math.sqrt(count)
            return pld.from_gaussian_mechanism(deviation, neighboring_relation=relation, **common)
        case dp_accounting.PoissonSampledDpEvent(event=dp_accounting.GaussianDpEvent()):
            once = pld.from_gaussian_mechanism(
                part.event.noise_multiplier,
                sampling_prob=part.sampling_probability,
                neighboring_relation=relation,
                **common,
            )
        case dp_event.MixtureOfGaussiansDpEvent():
            _only_for(part, relation, NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
            once = pld.from_mixture_gaussian_mechanism(
                part.standard_deviation, part.sensitivities, part.sampling_probs, **common
            )
        case dp_event.RandomizedResponseDpEvent():
            _only_for(part, relation, NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL)
            once = pld.from_randomized_response(
                part.noise_parameter, part.num_buckets, neighboring_relation=relation, **common
            )
        case BallsInBinsDpEvent():
            _only_for(part, relation, NeighboringRelation.ADD_OR_REMOVE_ONE, NeighboringRelation.REPLACE_SPECIAL)
            once = random_allocation_pld(bins=part.bins, noise_multiplier=part.noise_multiplier, interval=interval)
        case _:
            raise ValueError(f"no privacy loss distribution for {part}")
    return once if count == 1 else once.self_compose(count, _TAIL_MASS)


def _only_for(part: dp_accounting.DpEvent, relation: NeighboringRelation, *allowed: NeighboringRelation) -> None:
    if relation not in allowed:
        names = " or ".join(name.name.lower() for name in allowed)
        raise ValueError(f"{type(part).__name__} is accounted for under {names}, not {relation.name.lower()}")
