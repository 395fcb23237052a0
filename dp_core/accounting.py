"""How much privacy a mechanism costs, and how much noise a budget needs.

Every ε here is an upper bound. The PLD (connect-the-dots, pessimistic) is computed at finer and
finer intervals until a further refinement would hardly change it: at a coarse interval the bound
of a long run is true but loose, at times looser than RDP's. RDP's is computed beside it, and the
smaller of the two bounds is the answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

import absl.logging
import dp_accounting
from dp_accounting import pld, rdp

NEIGHBORING_RELATION = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE

_FIRST_INTERVAL = 1e-3
_REFINEMENT = 4
_RELATIVE_CHANGE = 3e-3
_MAX_NOISE_MULTIPLIER = 1e6


class EpsilonBound(NamedTuple):
    """An upper bound on ε, and where it comes from.

    ``converged`` is False when the time ran out before refining the PLD made no more difference:
    the bound is true all the same, but may be loose.
    """

    epsilon: float
    pld_epsilon: float
    rdp_epsilon: float
    interval: float
    converged: bool

    @property
    def accountant(self) -> str:
        return "PLD" if self.pld_epsilon <= self.rdp_epsilon else "RDP"


def epsilon_bound(event: dp_accounting.DpEvent, delta: float, *, seconds: float = 60.0) -> EpsilonBound:
    """The least certified upper bound on ε at ``delta`` under adding or removing one example."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    start = time.monotonic()
    rdp_epsilon = _rdp_epsilon(event, delta)
    interval = _FIRST_INTERVAL
    best = _pld_epsilon(event, delta, interval)
    if math.isinf(best) and math.isinf(rdp_epsilon):
        # There is no noise at all, and nothing to refine.
        return EpsilonBound(math.inf, best, rdp_epsilon, interval, True)
    while True:
        began = time.monotonic()
        finer = _pld_epsilon(event, delta, interval / _REFINEMENT)
        took = time.monotonic() - began
        change = (best - finer) / finer if finer > 0 else 0.0
        best, interval = min(best, finer), interval / _REFINEMENT
        # The error falls about quadratically with the interval, so the next change would be
        # about 1/16 of this one; 1/4 is a safe overestimate.
        converged = change / _REFINEMENT <= _RELATIVE_CHANGE
        if converged or time.monotonic() - start + _REFINEMENT * took > seconds:
            return EpsilonBound(min(best, rdp_epsilon), best, rdp_epsilon, interval, converged)


def calibrate_noise(
    make_event: Callable[[float], dp_accounting.DpEvent],
    *,
    target_epsilon: float,
    target_delta: float,
    relative_tolerance: float = 4e-3,
) -> float:
    """A noise multiplier whose ε is at most the target, and at least (1 − tolerance) of it.

    ``make_event`` gives the event for a noise multiplier. Searches on log σ by false position:
    log ε falls almost linearly with log σ.
    """
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon must be positive and finite, got {target_epsilon}")
    aim = math.log(target_epsilon * (1 - relative_tolerance / 2))

    def excess(log_sigma: float) -> float:
        epsilon = epsilon_bound(make_event(math.exp(log_sigma)), target_delta).epsilon
        return math.log(max(epsilon, 1e-12)) - aim

    # RDP is fast and always an upper bound: the multiplier that it asks for is enough.
    enough = math.log(_rdp_calibration(make_event, target_epsilon, target_delta))
    at_enough = excess(enough)
    too_little, at_too_little = enough, at_enough
    step = 0.1
    while at_too_little < 0:
        enough, at_enough = too_little, at_too_little
        too_little -= step
        step *= 2
        at_too_little = excess(too_little)
    slack = -math.log(1 - relative_tolerance / 2)
    for _ in range(60):
        # ε ≤ target is excess ≤ slack, and ε ≥ (1 − tolerance)·target is excess ≥ about −slack.
        if -slack <= at_enough <= slack:
            return math.exp(enough)
        if -slack <= at_too_little <= slack:
            return math.exp(too_little)
        fraction = at_too_little / (at_too_little - at_enough)
        middle = too_little + min(max(fraction, 0.02), 0.98) * (enough - too_little)
        at_middle = excess(middle)
        if at_middle > 0:
            too_little, at_too_little = middle, at_middle
        else:
            enough, at_enough = middle, at_middle
    return math.exp(enough)


def _pld_epsilon(event: dp_accounting.DpEvent, delta: float, interval: float) -> float:
    accountant = pld.PLDAccountant(NEIGHBORING_RELATION, value_discretization_interval=interval)
    return float(accountant.compose(event).get_epsilon(delta))


def _rdp_epsilon(event: dp_accounting.DpEvent, delta: float) -> float:
    # For small σ the series of a few low orders does not converge. The accountant drops those
    # orders, which leaves a true bound, and warns of each: hundreds of lines in a calibration.
    verbosity = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        accountant = rdp.RdpAccountant(neighboring_relation=NEIGHBORING_RELATION)
        return float(accountant.compose(event).get_epsilon(delta))
    finally:
        absl.logging.set_verbosity(verbosity)


def _rdp_calibration(
    make_event: Callable[[float], dp_accounting.DpEvent], target_epsilon: float, target_delta: float
) -> float:
    """A noise multiplier that is enough by RDP, to a few per cent."""
    enough = 1.0
    while _rdp_epsilon(make_event(enough), target_delta) > target_epsilon:
        enough *= 2
        if enough > _MAX_NOISE_MULTIPLIER:
            raise ValueError(f"no noise multiplier up to {_MAX_NOISE_MULTIPLIER:g} reaches ε = {target_epsilon}")
    too_little = enough / 2
    while _rdp_epsilon(make_event(too_little), target_delta) <= target_epsilon and too_little > 1e-2:
        enough, too_little = too_little, too_little / 2
    while enough / too_little > 1.05:
        middle = math.sqrt(enough * too_little)
        if _rdp_epsilon(make_event(middle), target_delta) > target_epsilon:
            too_little = middle
        else:
            enough = middle
    return enough
