"""Splitting a step's noise between gradient and count costs exactly what the whole step is allowed to."""

from __future__ import annotations

import dp_accounting
import pytest

from dp_core.accounting.noise_split import combined_noise_multiplier, split_noise


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 7.5])
def test_the_two_releases_are_worth_the_one(noise_multiplier: float) -> None:
    """The accountant agrees: composing both costs what one release with the given multiplier costs."""

    def epsilon(*multipliers: float) -> float:
        accountant = dp_accounting.rdp.RdpAccountant()
        for multiplier in multipliers:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
        return accountant.get_epsilon(1e-6)

    of_gradient, of_count = split_noise(noise_multiplier)
    assert noise_multiplier < of_gradient < of_count
    assert epsilon(of_gradient, of_count) == pytest.approx(epsilon(noise_multiplier), rel=1e-9)
    assert combined_noise_multiplier(of_gradient, of_count) == pytest.approx(noise_multiplier, rel=1e-12)


def test_the_count_costs_the_gradient_two_and_a_half_percent_more_noise() -> None:
    of_gradient, of_count = split_noise(1.0)
    assert of_gradient == pytest.approx(1.026, abs=5e-4)
    assert of_count == pytest.approx(20**0.5, rel=1e-12)


def test_no_noise_on_either_is_no_privacy() -> None:
    assert combined_noise_multiplier(0.0, 5.0) == combined_noise_multiplier(5.0, 0.0) == 0.0
