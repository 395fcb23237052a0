"""ε against closed forms, published values and its own refinement."""

from __future__ import annotations

import math

import dp_accounting
import pytest
from scipy import optimize, stats

from dp_core.accounting import calibrate_noise, epsilon_bound
from dp_core.mechanism import MechanismRecord
from dp_core.sampling import poisson_event

CRITEO = 36_672_493


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """The exact ε of one Gaussian release (Balle and Wang 2018), by root finding."""

    def excess(epsilon: float) -> float:
        upper = stats.norm.cdf(1 / (2 * sigma) - epsilon * sigma)
        return upper - math.exp(epsilon) * stats.norm.cdf(-1 / (2 * sigma) - epsilon * sigma) - delta

    return optimize.brentq(excess, 0, 200)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("steps", [1, 16])
def test_unsampled_gaussians_match_the_closed_form(sigma: float, steps: int) -> None:
    """T releases at σ are one release at σ/√T."""
    event = poisson_event(sampling_probability=1.0, noise_multiplier=sigma, steps=steps)
    exact = gaussian_epsilon(sigma / math.sqrt(steps), 1e-6)
    bound = epsilon_bound(event, 1e-6)
    assert exact <= bound.epsilon * (1 + 1e-9)
    assert bound.epsilon <= exact * 1.005
    assert bound.epsilon <= bound.rdp_epsilon


@pytest.mark.parametrize(
    ("batch_size", "epochs", "sigma", "finest"),
    [(65_536, 150, 1.0, 3.70952), (65_536, 150, 4.0, 0.63305), (16_384, 64, 4.0, 0.19522), (1_024, 5, 4.0, 0.01194)],
)
def test_long_runs_are_refined_until_they_converge(batch_size: int, epochs: int, sigma: float, finest: float) -> None:
    """``finest`` is the PLD's ε at interval 2·10⁻⁶; a coarse interval gives up to ten times as much."""
    steps = round(epochs * CRITEO / batch_size)
    event = poisson_event(sampling_probability=batch_size / CRITEO, noise_multiplier=sigma, steps=steps)
    bound = epsilon_bound(event, 1 / CRITEO)
    assert bound.converged
    assert 0.98 * finest <= bound.epsilon <= 1.005 * finest
    assert bound.epsilon <= bound.rdp_epsilon


@pytest.mark.parametrize("target", [0.1, 1.0, 10.0, 50.0])
def test_calibrated_noise_just_keeps_the_budget(target: float) -> None:
    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        return poisson_event(sampling_probability=0.02, noise_multiplier=noise_multiplier, steps=400)

    noise_multiplier = calibrate_noise(event, target_epsilon=target, target_delta=1e-5)
    assert 0.995 * target <= epsilon_bound(event(noise_multiplier), 1e-5).epsilon <= target


def test_impossible_questions_are_refused() -> None:
    event = poisson_event(sampling_probability=0.1, noise_multiplier=1.0, steps=1)
    for delta in (0.0, 1.0, -1.0):
        with pytest.raises(ValueError, match="between 0 and 1"):
            epsilon_bound(event, delta)
    for target in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ValueError, match="positive and finite"):
            calibrate_noise(lambda _: event, target_epsilon=target, target_delta=1e-5)


def record(**changes: object) -> MechanismRecord:
    values: dict[str, object] = {
        "sampler": "poisson",
        "examples": 100_000,
        "sampling_probability": 0.01,
        "expected_batch_size": 1000,
        "max_batch_size": 1300,
        "steps": 500,
        "noise_multiplier": 1.0,
        "l2_clip_norm": 2.0,
        "sampled_examples": 500_400,
        "largest_batch": 1100,
    }
    return MechanismRecord(**{**values, **changes})  # type: ignore[arg-type]


def test_a_record_survives_json() -> None:
    assert MechanismRecord.from_json(record().to_json()) == record()


def test_epsilon_of_a_record_follows_what_ran() -> None:
    epsilon = record().epsilon_bound(1e-5).epsilon
    assert record(steps=1000).epsilon_bound(1e-5).epsilon > 1.2 * epsilon
    assert record(noise_multiplier=0.5).epsilon_bound(1e-5).epsilon > 2 * epsilon
    assert record(sampling_probability=0.02, max_batch_size=2600).epsilon_bound(1e-5).epsilon > 1.5 * epsilon
    # The clip norm scales signal and noise alike.
    assert record(l2_clip_norm=20.0).epsilon_bound(1e-5).epsilon == epsilon


def test_truncation_is_charged_to_delta() -> None:
    tight = record(max_batch_size=1150)
    assert tight.truncation_delta() > 1e-5
    with pytest.raises(ValueError, match="uses up delta"):
        tight.epsilon_bound(1e-5)
    assert record(max_batch_size=1150).epsilon_bound(1e-2).epsilon > record().epsilon_bound(1e-2).epsilon


def test_a_sampler_without_accounting_is_refused() -> None:
    with pytest.raises(ValueError, match="no accounting for sampler 'shuffle'"):
        record(sampler="shuffle").event()


def test_batches_that_poisson_sampling_cannot_give() -> None:
    assert record().sampling_defect() is None
    assert "were sampled" in str(record(sampled_examples=510_000).sampling_defect())
    assert "were sampled" in str(record(sampled_examples=490_000).sampling_defect())
    assert "exceeds" in str(record(largest_batch=1301).sampling_defect())
