"""The charge for missing tails covers every way to spread a shift, and adds up as the samplers say."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
from scipy import optimize, stats

from dp_core.accounting.mechanism import MechanismRecord, compose
from dp_core.accounting.noise_tails import NoiseTails, TailCharge, least_noise_multiplier, tail_charge
from dp_core.sampling import SAMPLERS, Sampler
from tasks.privacy.cached_accounting import noise_multiplier_for
from tests.support.records import record

N, BATCH, STEPS = 120_000, 2048, 586


def sampler(name: str) -> Sampler:
    return SAMPLERS[name](N, BATCH, BATCH)


def edge_masses(shifts: np.ndarray, support: float) -> float:
    """Returns Σ g(|vᵢ|) as the docstring has it."""
    return float(np.sum(stats.norm.sf(support - np.abs(shifts)) - stats.norm.sf(support)))


@pytest.mark.parametrize("shift", [0.01, 0.3, 1.0, 2.5, 6.0])
@pytest.mark.parametrize("coordinates", [1, 30, 10_000])
@pytest.mark.parametrize("support", [5.2, 9.08])
def test_the_bound_covers_every_spread_of_the_shift(shift: float, coordinates: int, support: float) -> None:
    """Over equal shares among some of the coordinates, one large share beside equal ones, and random ones."""
    if shift > support - 2 / support:
        assert NoiseTails(coordinates, support, 1).edge_delta(shift) == 1
        return
    bound = NoiseTails(coordinates, support, 1).edge_delta(shift)
    rng = np.random.default_rng(0)
    for used in np.unique(np.geomspace(1, coordinates, 20).astype(int)):
        assert edge_masses(np.full(used, shift / math.sqrt(used)), support) <= bound
        for share in (0.1, 0.5, 0.9, 0.99):
            rest = np.full(used, shift * math.sqrt((1 - share) / used))
            if used < coordinates:
                assert edge_masses(np.append(rest, shift * math.sqrt(share)), support) <= bound
        some = rng.standard_t(1.5, used)
        assert edge_masses(shift * some / np.linalg.norm(some), support) <= bound


def test_the_bound_covers_the_worst_spread_that_a_search_finds() -> None:
    def minus(logits: np.ndarray) -> float:
        weights = np.exp(logits - logits.max())
        return -1e15 * edge_masses(1.5 * np.sqrt(weights / weights.sum()), 9.08)

    worst = min(optimize.minimize(minus, np.random.default_rng(k).normal(0, 3, 6)).fun for k in range(5)) / -1e15
    assert 0.3 * NoiseTails(6, 9.08, 1).edge_delta(1.5) < worst <= NoiseTails(6, 9.08, 1).edge_delta(1.5)


@pytest.mark.parametrize("shift", [0.2, 1.0, 3.0])
def test_one_participation_is_covered_in_one_dimension(shift: float) -> None:
    """Against numerical integration of both directions, with a support so short that the charge matters."""
    support = 4.0
    inside = 1 - 2 * stats.norm.sf(support)
    charge = NoiseTails(1, support, 1).participation_delta(shift)
    x = np.linspace(-12, 12 + shift, 400_001)

    def laws(q: float, *, cut: bool) -> tuple[np.ndarray, np.ndarray]:
        """Returns the densities without the example and with it, in a step that it joins with probability q."""
        one, other = (
            np.where(np.abs(x - centre) <= support, stats.norm.pdf(x - centre) / inside, 0)
            if cut
            else stats.norm.pdf(x - centre)
            for centre in (0.0, shift)
        )
        return one, (1 - q) * one + q * other

    for q, epsilon in itertools.product((0.01, 0.3, 1.0), (0.1, 1.0, 3.0, 8.0)):
        real, normal = laws(q, cut=True), laws(q, cut=False)
        for first, second in ((0, 1), (1, 0)):
            found, ideal = (
                np.trapezoid(np.maximum(law[first] - math.exp(epsilon) * law[second], 0), x) for law in (real, normal)
            )
            assert found <= ideal + q * charge + 1e-7


def test_participations_add_up_by_sampler() -> None:
    tails = NoiseTails(10_000, 9.08, 1)
    once = tails.participation_delta(1.0)
    charges = {name: tail_charge(sampler(name), steps=STEPS, noise_multiplier=1.0, tails=tails) for name in SAMPLERS}
    assert charges["poisson"].delta == pytest.approx(STEPS * BATCH / N * once)
    assert charges["shuffle"].delta == pytest.approx(math.ceil(STEPS / (N // BATCH)) * once)
    assert charges["balls_in_bins"].delta == pytest.approx(STEPS * once / 3)
    assert charges["balls_in_bins"].share == pytest.approx(STEPS * 10_000 * 2 * stats.norm.sf(9.08), rel=1e-6, abs=0)
    assert charges["poisson"].share == charges["shuffle"].share == 0


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_charge_grows_with_the_group_and_falls_with_the_noise(name: str) -> None:
    def charged(noise_multiplier: float, group_size: int = 1) -> float:
        found = tail_charge(
            sampler(name),
            steps=STEPS,
            noise_multiplier=noise_multiplier,
            tails=NoiseTails(10_000),
            group_size=group_size,
        )
        return found.delta

    by_noise = [charged(noise) for noise in (0.05, 0.2, 0.5, 1.0, 4.0, 100.0)]
    assert by_noise[0] == 1
    assert by_noise == sorted(by_noise, reverse=True)
    by_group = [charged(2.0, size) for size in (2, 3, 8, 50)]
    assert by_group == sorted(by_group)
    # One example: balls in bins is charged for more than a group is, by another argument.
    if name != "balls_in_bins":
        assert charged(2.0) <= by_group[0]
    assert charged(0.0) == 0


def test_four_summands_are_four_times_the_coordinates() -> None:
    assert NoiseTails(10, 9.0, 4).edge_delta(0.5) == NoiseTails(40, 9.0, 1).edge_delta(0.5)


def test_the_record_charges_its_noise_to_delta() -> None:
    """With the old noise's support, the issue's run has no guarantee at its δ. With the new one it costs nothing."""
    new, old = record(), dataclasses.replace(record(), noise_support=5.22, coordinates=1, noise_summands=1)
    assert compose([old]).spent_delta > 1e-5
    with pytest.raises(ValueError, match="truncating large batches and the noise"):
        old.epsilon_bound(1e-5)
    assert new.tail_charge().delta < 1e-9
    assert compose([new, new]).spent_delta == pytest.approx(2 * new.truncation_delta())
    more = dataclasses.replace(new, coordinates=2**36)
    assert new.truncation_delta() < more.truncation_delta() < 1e-8


def test_a_record_without_its_noise_is_not_read() -> None:
    written = record(coordinates=7, noise_support=8.5, noise_summands=1).to_json()
    assert MechanismRecord.from_json(written) == record(coordinates=7, noise_support=8.5, noise_summands=1)
    del written["noise_support"]
    with pytest.raises(KeyError, match="noise_support"):
        MechanismRecord.from_json(written)


@pytest.mark.parametrize("name", SAMPLERS)
def test_calibrated_noise_keeps_the_budget_with_its_tails(name: str, own_home: object) -> None:
    """Also a budget so large that the tails need more noise than ε does."""
    assert own_home
    # Balls in bins has no bound below a noise multiplier of 0.05.
    for epsilon in (2.0, 20.0 if name == "balls_in_bins" else 60.0):
        sigma = noise_multiplier_for(epsilon=epsilon, delta=1e-5, examples=2000, batch_size=200, steps=20, sampler=name)
        ran = record(sampler=name, examples=2000, expected_batch_size=200, max_batch_size=2000, steps=20)
        ran = dataclasses.replace(ran, noise_multiplier=float(np.float32(sigma)))
        assert ran.epsilon_bound(1e-5).epsilon <= epsilon


def test_a_shift_beyond_the_bound_costs_everything() -> None:
    """The derivation holds for shifts up to T − 2/T."""
    tails = NoiseTails(1, 9.08, 1)
    assert tails.edge_delta(9.08 - 2 / 9.08 - 1e-9) < 1
    assert tails.edge_delta(9.08 - 2 / 9.08 + 1e-9) == tails.participation_delta(9.08) == 1


def test_a_training_that_is_only_asked_about_is_charged_for_more_than_any_here() -> None:
    """More coordinates than any model here has, with the noise of secret runs; no share of δ without balls in bins."""
    assert NoiseTails() == NoiseTails(coordinates=2**30, support=9.08, summands=4)
    assert TailCharge(1e-9).share == 0


def test_the_least_noise_is_just_enough() -> None:
    tails = NoiseTails()
    least = least_noise_multiplier(sampler("poisson"), steps=STEPS, tails=tails, allowed=1e-9)
    at, below = (
        tail_charge(sampler("poisson"), steps=STEPS, noise_multiplier=noise, tails=tails).delta
        for noise in (least, 0.99 * least)
    )
    assert at <= 1e-9 < below
