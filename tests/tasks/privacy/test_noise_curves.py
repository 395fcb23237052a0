"""The curves of the paper's Figure 2 and the noise of Figure 4(a) have the shapes that the paper describes."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import poisson_event
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.privacy.noise_curves import noise_by_batch_size
from tasks.runtime.errors import UserError

EXAMPLES = 1_000_000
BATCH_SIZES = (1_024, 8_192, 65_536, 524_288)

pytestmark = pytest.mark.usefixtures("own_home")


def test_at_fixed_epochs_noise_keeps_falling_as_the_batch_grows() -> None:
    points = noise_by_batch_size(examples=EXAMPLES, epsilon=1.0, batch_sizes=BATCH_SIZES, epochs=5)
    assert [point.batch_size for point in points] == list(BATCH_SIZES)
    deviations = [point.standard_deviation for point in points]
    assert all(later < 0.7 * earlier for earlier, later in itertools.pairwise(deviations))
    for point in points:
        assert point.standard_deviation == pytest.approx(point.noise_multiplier / point.batch_size)
        assert point.steps == pytest.approx(5 * EXAMPLES / point.batch_size, abs=1)


def test_at_fixed_steps_the_benefit_of_large_batches_fades() -> None:
    points = noise_by_batch_size(examples=EXAMPLES, epsilon=1.0, batch_sizes=BATCH_SIZES, steps=1000)
    deviations = [point.standard_deviation for point in points]
    assert {point.steps for point in points} == {1000}
    assert deviations == sorted(deviations, reverse=True)
    # Eight times the batch size gains a lot at first and almost nothing at the end.
    assert deviations[1] < 0.5 * deviations[0]
    assert deviations[3] > 0.9 * deviations[2]


def test_epochs_and_steps_cannot_both_be_fixed() -> None:
    for both in ({}, {"epochs": 1.0, "steps": 10}):
        with pytest.raises(UserError, match="exactly one of epochs and steps"):
            noise_by_batch_size(examples=1000, epsilon=1.0, batch_sizes=[10], **both)  # type: ignore[arg-type]


def test_pld_needs_less_noise_than_rdp_and_the_more_so_the_smaller_the_budget(own_home: Path) -> None:
    ratios = []
    for epsilon in (0.1, 1.0, 10.0):
        asked = {"epsilon": epsilon, "delta": 1 / EXAMPLES, "examples": EXAMPLES, "batch_size": 8_192, "steps": 2000}
        rdp, pld = noise_multiplier_for(**asked, accountant="RDP"), noise_multiplier_for(**asked)
        ratios.append(rdp / pld)
        event = poisson_event(sampling_probability=8_192 / EXAMPLES, noise_multiplier=rdp, steps=2000)
        bound = epsilon_bound(event, 1 / EXAMPLES)
        assert 0.995 * epsilon <= bound.rdp_epsilon <= epsilon
        assert bound.epsilon < epsilon
    assert all(ratio > 1.02 for ratio in ratios)
    assert ratios[0] == max(ratios)
