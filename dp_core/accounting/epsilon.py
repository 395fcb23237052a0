"""Upper bounds on ε, and the noise that a budget needs.

Every ε here is an upper bound. The privacy loss distribution (PLD; connect-the-dots, pessimistic) is computed
at finer and finer discretisation intervals until another refinement would hardly change ε. At a coarse interval
the bound of a long run is valid but loose, sometimes looser than RDP's. RDP's bound is computed as well, and
the smaller of the two is returned.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import absl.logging
import dp_accounting
import numpy as np
from dp_accounting import NeighboringRelation, dp_event, rdp

from dp_core.accounting.events import flattened
from dp_core.accounting.loss_pmf import MAX_POINTS, TooManyPointsError
from dp_core.accounting.privacy_loss import is_without_noise, privacy_loss, releases

REPLACE_SPECIAL = NeighboringRelation.REPLACE_SPECIAL

REFINEMENT = 4
# Refinement stops when another one is expected to change ε by at most this share.
RELATIVE_CHANGE = 1e-3
SECONDS = 60.0

# The share of δ that rounding in 64 bits may use up, before extended precision takes over.
_ROUNDING_SHARE = 1e-4
# The first, coarse distribution has at most this many points, so that it takes no time worth mentioning.
_FIRST_POINTS = 2**15
# A distribution with four times as many points takes at most about this many times as long.
_TIMES_AS_LONG = 6.0

_FEW_ORDERS = (1.1, 1.2, 1.35, 1.5, 1.75, *range(2, 64), 128, 256, 512, 1024)
_COARSEST_INTERVAL, _FINEST_INTERVAL = 1e-2, 1e-9
_WIDEST_INTERVAL = 1.0
# Above this, RDP's bound is returned: no budget is that large, and the PLD would take minutes.
_LARGEST_PLD_EPSILON = 1000.0
_MAX_NOISE_MULTIPLIER, _MIN_NOISE_MULTIPLIER = 1e6, 1e-2


class EpsilonBound(NamedTuple):
    """An upper bound on ε, and where it comes from.

    Attributes:
        epsilon: The smaller of the two bounds; infinity if there is none.
        pld_epsilon: The bound by PLD; infinity if it was not computed.
        rdp_epsilon: The bound by RDP; infinity if RDP does not know the event.
        interval: The discretisation interval of ``pld_epsilon``.
        further_change: Estimate of the share of ε that a four times finer interval could still remove.
        converged: False if time ran out before ``further_change`` was small. The bound is valid, but may be loose.
    """

    epsilon: float
    pld_epsilon: float
    rdp_epsilon: float
    interval: float
    further_change: float
    converged: bool

    @property
    def accountant(self) -> str:
        """The accountant that gave the smaller bound: "PLD" or "RDP"."""
        return "PLD" if self.pld_epsilon <= self.rdp_epsilon else "RDP"


def epsilon_bound(
    event: dp_accounting.DpEvent,
    delta: float,
    *,
    neighboring_relation: NeighboringRelation = REPLACE_SPECIAL,
    seconds: float = SECONDS,
) -> EpsilonBound:
    """Returns the smallest certified upper bound on ε of an event at δ.

    The mechanism that the event describes is (ε, δ)-differentially private for the returned ε.

    Args:
        event: What was released: a composition of Gaussian, Poisson-sampled Gaussian, mixture-of-Gaussians,
            randomised-response or balls-in-bins events.
        delta: The δ of the guarantee, between 0 and 1.
        neighboring_relation: What neighbouring datasets differ in. Not every event has every relation.
        seconds: The time in which the PLD may be refined. A refinement that is not expected to end by then is not
            begun. The first, coarse PLD and RDP's bound take about a second.

    Returns:
        The bound, with infinite ε if a part of the event has no noise.

    Raises:
        ValueError: If δ is out of range, or the PLD of a part is not known under the relation.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta must be between 0 and 1, got {delta}")
    bound = _refined(event, delta, neighboring_relation, seconds)
    rdp_epsilon = rdp_bound(event, delta, neighboring_relation)
    return bound._replace(epsilon=min(bound.pld_epsilon, rdp_epsilon), rdp_epsilon=rdp_epsilon)


def _refined(event: dp_accounting.DpEvent, delta: float, relation: NeighboringRelation, seconds: float) -> EpsilonBound:
    """Returns the PLD's bound, and RDP's at a few orders only, which is quick."""
    if is_without_noise(event):
        return EpsilonBound(math.inf, math.inf, math.inf, _COARSEST_INTERVAL, 0.0, True)
    start = time.monotonic()
    rough = rdp_bound(event, delta, relation, orders=_FEW_ORDERS)
    if _LARGEST_PLD_EPSILON < rough < math.inf:
        return EpsilonBound(rough, math.inf, rough, math.inf, 1.0, False)

    def at(interval: float, max_points: int = MAX_POINTS) -> float:
        # Above an ε of about 700 exponentials overflow. The bound is then infinite, which is valid.
        with np.errstate(over="ignore"):
            rounding = _ROUNDING_SHARE * delta
            return privacy_loss(event, interval, relation, rounding=rounding, max_points=max_points).epsilon(delta)

    interval = _first_interval(event, rough)
    while True:
        began = time.monotonic()
        try:
            best = at(interval, _FIRST_POINTS)
            break
        except TooManyPointsError:
            if interval > _WIDEST_INTERVAL:
                return EpsilonBound(rough, math.inf, rough, math.inf, 1.0, False)
            interval *= REFINEMENT
    best_interval, further, converged = interval, 1.0, False
    while not converged:
        took, began = time.monotonic() - began, time.monotonic()
        if began - start + _TIMES_AS_LONG * took > seconds:
            break
        interval /= REFINEMENT
        try:
            finer = at(interval)
        except TooManyPointsError:
            break
        if math.isinf(finer):
            break  # What rounding can hide uses up δ, on any grid.
        change = (best - finer) / finer if finer > 0 else 0.0
        if finer < best:
            best, best_interval = finer, interval
        # The error falls about quadratically with the interval, so the next change would be about 1/16 of this
        # one. Twice that is reported.
        further = min(2 * max(change, 0.0) / REFINEMENT**2, 1.0)
        converged = further <= RELATIVE_CHANGE or interval < _FINEST_INTERVAL
    return EpsilonBound(min(best, rough), best, rough, best_interval, further, converged)


def calibrate_noise(
    make_event: Callable[[float], dp_accounting.DpEvent],
    *,
    target_epsilon: float,
    target_delta: float,
    relative_tolerance: float = 1e-3,
    neighboring_relation: NeighboringRelation = REPLACE_SPECIAL,
    accountant: Literal["tightest", "RDP"] = "tightest",
) -> float:
    """Returns a noise multiplier with an ε between (1 − ``relative_tolerance``) times the target and the target.

    Args:
        make_event: Returns the event for a noise multiplier. ε must fall as the noise multiplier grows.
        target_epsilon: The ε of the budget, positive and finite.
        target_delta: The δ of the budget.
        relative_tolerance: The share of the budget that may be left unused.
        neighboring_relation: What neighbouring datasets differ in.
        accountant: "tightest" for the smaller of PLD's and RDP's ε, or "RDP" for the noise that RDP alone needs.

    Returns:
        A noise multiplier at which the accountant's ε is at most ``target_epsilon``.

    Raises:
        ValueError: If an argument is out of range, or no noise multiplier up to 1e6 is enough.
    """
    if accountant not in ("tightest", "RDP"):
        raise ValueError(f"accountant must be 'tightest' or 'RDP', got {accountant!r}")
    if not 0 < target_epsilon < math.inf:
        raise ValueError(f"target_epsilon must be positive and finite, got {target_epsilon}")
    # log ε falls almost linearly with log σ, so false position on the two converges fast. It aims at the middle
    # of the accepted range.
    aim = math.log(target_epsilon * (1 - relative_tolerance / 2))
    highest = math.log(target_epsilon) - aim
    lowest = math.log(target_epsilon * (1 - relative_tolerance)) - aim

    def excess(log_noise: float) -> float:
        event = make_event(math.exp(log_noise))
        if accountant == "RDP":
            epsilon = rdp_bound(event, target_delta, neighboring_relation)
        else:
            # Slightly above ``epsilon_bound``'s answer at most, which evaluates RDP at more orders.
            epsilon = _refined(event, target_delta, neighboring_relation, SECONDS).epsilon
        return math.log(max(epsilon, 1e-12)) - aim

    enough, too_little = _bracket(excess, make_event, target_epsilon, target_delta, neighboring_relation)
    for _ in range(60):
        for log_noise, at in (enough, too_little):
            if lowest <= at <= highest:
                return math.exp(log_noise)
        share = too_little[1] / (too_little[1] - enough[1]) if math.isfinite(too_little[1]) else 0.5
        middle = too_little[0] + min(max(share, 0.02), 0.98) * (enough[0] - too_little[0])
        at_middle = excess(middle)
        if at_middle > 0:
            too_little = middle, at_middle
        else:
            enough = middle, at_middle
    return math.exp(enough[0])


def _bracket(
    excess: Callable[[float], float],
    make_event: Callable[[float], dp_accounting.DpEvent],
    target_epsilon: float,
    target_delta: float,
    relation: NeighboringRelation,
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns two (log noise multiplier, excess) pairs: one with enough noise and one with too little."""
    # RDP is quick, and close to the answer except for the smallest budgets.
    log_noise = math.log(_rdp_guess(make_event, target_epsilon, target_delta, relation))
    at = excess(log_noise)
    direction = 1 if at > 0 else -1
    step = 0.05
    while True:
        before, at_before = log_noise, at
        log_noise += direction * step
        step *= 2
        if not math.log(_MIN_NOISE_MULTIPLIER) <= log_noise <= math.log(_MAX_NOISE_MULTIPLIER):
            raise ValueError(
                f"no noise multiplier from {_MIN_NOISE_MULTIPLIER:g} to {_MAX_NOISE_MULTIPLIER:g} gives "
                f"ε = {target_epsilon:g} at δ = {target_delta:g}"
            )
        at = excess(log_noise)
        if at > 0 >= at_before:
            return (before, at_before), (log_noise, at)
        if at <= 0 < at_before:
            return (log_noise, at), (before, at_before)


def _rdp_guess(
    make_event: Callable[[float], dp_accounting.DpEvent],
    target_epsilon: float,
    target_delta: float,
    relation: NeighboringRelation,
) -> float:
    """Returns roughly the noise multiplier that RDP asks for, or 1 if RDP does not know the event."""
    low, high = _MIN_NOISE_MULTIPLIER, 1e3
    if math.isinf(rdp_bound(make_event(high), target_delta, relation, orders=_FEW_ORDERS)):
        return 1.0
    while high / low > 1.02:
        middle = math.sqrt(low * high)
        if rdp_bound(make_event(middle), target_delta, relation, orders=_FEW_ORDERS) > target_epsilon:
            low = middle
        else:
            high = middle
    return high


def _first_interval(event: dp_accounting.DpEvent, rdp_epsilon: float) -> float:
    """Returns an interval that is coarse for the sum of the losses, which has a spread of a fraction of ε."""
    spread = min(rdp_epsilon, 10.0) / 10
    return min(max(spread / math.sqrt(max(releases(event), 1)), _FINEST_INTERVAL * REFINEMENT), _COARSEST_INTERVAL)


def rdp_bound(
    event: dp_accounting.DpEvent,
    delta: float,
    relation: NeighboringRelation,
    orders: Sequence[float] | None = None,
) -> float:
    """Returns an upper bound on ε by Rényi differential privacy.

    Args:
        event: What was released.
        delta: The δ of the guarantee.
        relation: What neighbouring datasets differ in.
        orders: The Rényi orders to minimise over; dp_accounting's default if None.

    Returns:
        ε, or infinity if RDP has no bound for the event under the relation.
    """
    if relation is NeighboringRelation.REPLACE_ONE and not all(
        isinstance(part, dp_event.RandomizedResponseDpEvent) for part, _ in flattened(event)
    ):
        # dp_accounting would silently answer for adding or removing an example.
        return math.inf
    accountant = rdp.RdpAccountant(orders, neighboring_relation=relation)
    if not accountant.supports(event):
        return math.inf
    # For small σ the series of a few low orders does not converge. The accountant drops those orders, which keeps
    # the bound valid, and logs a warning for each: hundreds of lines in a calibration.
    verbosity = absl.logging.get_verbosity()
    absl.logging.set_verbosity(absl.logging.ERROR)
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    finally:
        absl.logging.set_verbosity(verbosity)
