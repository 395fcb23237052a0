"""Loss distributions of single releases, against δ(ε) in 60 digits."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from scipy import stats

from dp_core.accounting.events import poisson_event
from dp_core.accounting.loss_pmf import LossPmf, TooManyPointsError
from dp_core.accounting.mixture_pmf import Mixture, _upper_quantile, mixture_pmfs

GROUP = poisson_event(sampling_probability=0.01, noise_multiplier=3.0, steps=1, group_size=40).event
# (σ, shifts, weights, interval)
RELEASES = {
    "gaussian": (2.0, [1.0], [1.0], 1e-3),
    "loud gaussian": (0.3, [1.0], [1.0], 1e-2),
    "criteo": (1.0, [0.0, 1.0], [1 - 65_536 / 36_672_493, 65_536 / 36_672_493], 1e-4),
    "criteo, fine": (4.0, [0.0, 1.0], [1 - 1024 / 36_672_493, 1024 / 36_672_493], 1e-7),
    "half": (1.0, [0.0, 1.0], [0.5, 0.5], 1e-3),
    "nearly all": (5.0, [0.0, 1.0], [1e-6, 1 - 1e-6], 1e-3),
    "group": (GROUP.standard_deviation, GROUP.sensitivities, GROUP.sampling_probs, 1e-3),
}


def delta_of(pmf: LossPmf, epsilon: float) -> float:
    """Returns δ(ε) of a distribution, added up without rounding."""
    losses = pmf.interval * np.arange(pmf.lowest, pmf.lowest + len(pmf.masses))
    above = losses > epsilon
    return pmf.infinity + math.fsum(-np.expm1(epsilon - losses[above]) * pmf.masses[above])


def exact_deltas(sigma: float, shifts: list[float], weights: list[float], epsilon: float) -> tuple[float, float]:
    """Returns δ(ε) for removing and for adding, from the definition: where P > e^ε·Q, and where Q > e^ε·P."""
    with mpmath.workdps(60):
        pairs = [(mpmath.mpf(s), mpmath.mpf(w)) for s, w in zip(shifts, weights, strict=True) if s > 0]
        # The weight of no shift is what is left. 1 − q as a 64-bit number would be off by more than δ(ε) is.
        pairs.append((mpmath.mpf(0), 1 - sum(w for _, w in pairs)))

        def loss(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.log(sum(w * mpmath.exp((s * x - s**2 / 2) / sigma**2) for s, w in pairs))

        def outcome(wanted: float) -> mpmath.mpf:
            low, high = mpmath.mpf(-60 * sigma), mpmath.mpf(60 * sigma + max(shifts))
            for _ in range(120):
                middle = (low + high) / 2
                low, high = (low, middle) if loss(middle) > wanted else (middle, high)
            return low

        def below(x: mpmath.mpf, shift: mpmath.mpf) -> mpmath.mpf:
            return mpmath.ncdf((x - shift) / sigma)

        x, y = outcome(epsilon), outcome(-epsilon)
        remove = sum(w * (below(-x, -s) - mpmath.exp(epsilon) * below(-x, 0)) for s, w in pairs)
        add = below(y, 0) - mpmath.exp(epsilon) * sum(w * below(y, s) for s, w in pairs)
        return float(remove), float(add)


@pytest.mark.parametrize("name", RELEASES)
def test_every_delta_is_above_the_truth_but_for_the_stated_error_and_not_far_above(name: str) -> None:
    sigma, shifts, weights, interval = RELEASES[name]
    remove, add = mixture_pmfs(sigma=sigma, sensitivities=shifts, probabilities=weights, interval=interval)
    highest = interval * (remove.lowest + len(remove.masses))
    for share, offset in itertools.product((0.0, 0.01, 0.1, 0.3, 0.6), (0.0, 0.5)):
        # On a grid point, where connecting the dots is exact, and between two.
        epsilon = interval * (round(share * highest / interval) + offset)
        for pmf, exact in zip((remove, add), exact_deltas(sigma, list(shifts), list(weights), epsilon), strict=True):
            found = delta_of(pmf, epsilon)
            assert found >= exact * (1 - pmf.relative_error) - pmf.error
            if not offset:
                assert found <= exact * (1 + 1e-9) + pmf.error + 1e-21


@pytest.mark.parametrize("name", RELEASES)
def test_no_mass_is_lost(name: str) -> None:
    sigma, shifts, weights, interval = RELEASES[name]
    for pmf in mixture_pmfs(sigma=sigma, sensitivities=shifts, probabilities=weights, interval=interval):
        assert pmf.masses.min() >= 0
        assert math.fsum([*pmf.masses, pmf.infinity]) == pytest.approx(1, abs=pmf.error + 1e-15)
        assert pmf.infinity < 1e-21


def test_rare_samples_have_small_errors() -> None:
    """The error follows what an example can change, not the whole mass: q·ulp, not ulp."""
    sigma, shifts, weights, interval = RELEASES["criteo, fine"]
    remove, add = mixture_pmfs(sigma=sigma, sensitivities=shifts, probabilities=weights, interval=interval)
    assert max(remove.error, add.error) < 50 * weights[1] * 2.0**-52


def test_a_grid_that_is_too_fine_is_refused() -> None:
    with pytest.raises(TooManyPointsError, match=r"needs .* points, more than 1,000"):
        mixture_pmfs(sigma=1.0, sensitivities=[1.0], probabilities=[1.0], interval=1e-5, max_points=1000)


def test_what_shifts_nothing_loses_nothing() -> None:
    remove, add = mixture_pmfs(sigma=1.0, sensitivities=[0.0, 1.0], probabilities=[1.0, 0.0], interval=1e-3)
    assert remove.epsilon(1e-9) == add.epsilon(1e-9) == 0


@pytest.mark.parametrize("name", RELEASES)
def test_the_upper_tail_has_the_stated_mass(name: str) -> None:
    sigma, shifts, weights, _ = RELEASES[name]
    some = [(shift, weight) for shift, weight in zip(shifts, weights, strict=True) if shift > 0]
    rest = 1 - math.fsum(weight for _, weight in some)
    mixture = Mixture(sigma, *map(np.array, zip(*some, strict=True)), math.log(rest) if rest > 1e-12 else -math.inf)
    highest = _upper_quantile(mixture)
    tail = math.fsum(weight * stats.norm.sf(highest, shift, sigma) for shift, weight in [*some, (0.0, max(rest, 0.0))])
    assert tail == pytest.approx(1e-22, rel=1e-6, abs=0)
