"""Which challenger becomes champion, and the sentence that says so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.config.loading import load_config
from tasks.config.nightly import Nightly
from tasks.nights.deciding import Comparison, decide


def nightly(**changes: Any) -> Nightly:
    return load_config().night("conversions").model_copy(update={"tolerance": 0.02, "calibration": 0.2, **changes})


def comparison(**changes: Any) -> Comparison:
    found: Comparison = {
        "challenger_loss": 0.25,
        "champion_loss": 0.26,
        "difference": -0.01,
        "low": -0.015,
        "high": -0.005,
        "verdict": "better",
        "challenger_calibration": 1.02,
        "champion_calibration": 0.97,
        "private": False,
        "rows": 18_000,
    }
    return {**found, **changes}  # type: ignore[typeddict-item]


def test_a_better_challenger_is_promoted() -> None:
    decision = decide(nightly(), "2026-01-09", "2026-01-08", comparison())
    assert decision == (
        True,
        "promoted night 2026-01-09: AUC 0.7500 against 0.7400 of night 2026-01-08 (+0.0100 ± 0.0050, better), "
        "calibration 1.02",
    )


def test_a_worse_one_is_kept_out_with_the_reason() -> None:
    found = comparison(challenger_loss=0.27, difference=0.01, low=0.004, high=0.016, verdict="worse")
    decision = decide(nightly(), "2026-01-09", "2026-01-08", found)
    assert decision == (
        False,
        "kept night 2026-01-08: the challenger has AUC 0.7300 against 0.7400 (-0.0100 ± 0.0060, worse); its loss is "
        "3.8 % larger, and the tolerance is 2 %; calibration 1.02",
    )


@pytest.mark.parametrize(("tolerance", "promoted"), [(0.0, False), (0.0199, False), (0.0201, True), (1.0, True)])
def test_the_tolerance_is_a_share_of_the_champions_loss(tolerance: float, promoted: bool) -> None:
    found = comparison(champion_loss=0.25, challenger_loss=0.255, difference=0.005)
    assert decide(nightly(tolerance=tolerance), "2026-01-09", "2026-01-08", found).promote is promoted


def test_a_loss_below_zero_has_a_tolerance_too() -> None:
    """A Poisson log loss may be negative: larger is still worse."""
    found = comparison(champion_loss=-0.5, challenger_loss=-0.48, difference=0.02)
    assert not decide(nightly(task="pconvs", tolerance=0.03), "2026-01-09", "2026-01-08", found).promote
    decision = decide(nightly(task="pconvs", tolerance=0.05), "2026-01-09", "2026-01-08", found)
    assert decision.promote
    assert "Poisson log loss -0.4800 against -0.5000 of night 2026-01-08 (+0.0200 ± 0.0050" in decision.sentence


@pytest.mark.parametrize(("difference", "promoted"), [(0.0, True), (1e-9, False), (-1e-9, True)])
def test_a_champion_without_any_loss_is_replaced_by_a_challenger_without_any(difference: float, promoted: bool) -> None:
    found = comparison(champion_loss=0.0, challenger_loss=difference, difference=difference)
    assert decide(nightly(), "2026-01-09", "2026-01-08", found).promote is promoted


def test_the_first_night_has_no_champion_to_compare_with() -> None:
    found = comparison(
        champion_loss=None, difference=None, low=None, high=None, verdict=None, champion_calibration=None
    )
    decision = decide(nightly(), "2026-01-05", None, found)
    assert decision == (True, "promoted night 2026-01-05, the first champion: AUC 0.7500, calibration 1.02")


def test_a_champion_after_the_alias_was_deleted_is_not_called_the_first() -> None:
    alone = comparison(champion_loss=None, difference=None, low=None, high=None, champion_calibration=None)
    decision = decide(nightly(), "2026-01-05", None, alone, first=False)
    assert decision.promote
    assert "night 2026-01-05, because there was no champion to compare with: AUC 0.7500" in decision.sentence


def test_a_challenger_that_is_badly_calibrated_is_kept_out() -> None:
    decision = decide(nightly(), "2026-01-09", "2026-01-08", comparison(challenger_calibration=0.5))
    assert not decision.promote
    assert "its calibration is 0.50 against 0.97, further than 20 % from 1" in decision.sentence


def test_unless_the_champion_is_no_better() -> None:
    found = comparison(challenger_calibration=1.5, champion_calibration=0.5)
    assert decide(nightly(), "2026-01-09", "2026-01-08", found).promote


@pytest.mark.parametrize("ratio", [0.0, math.inf, math.nan])
def test_a_calibration_that_is_no_number_is_the_worst(ratio: float) -> None:
    assert not decide(nightly(), "2026-01-09", "2026-01-08", comparison(challenger_calibration=ratio)).promote


@pytest.mark.parametrize("champion", [None, "2026-01-08"])
def test_a_loss_that_is_no_number_never_wins(champion: str | None) -> None:
    decision = decide(nightly(), "2026-01-09", champion, comparison(challenger_loss=math.nan))
    assert not decision.promote
    assert "not a number" in decision.sentence


@pytest.mark.parametrize(
    "champion", [{"champion_loss": math.nan}, {"difference": math.nan}, {"champion_loss": math.inf}]
)
def test_nothing_is_promoted_over_a_loss_that_is_no_number(champion: dict[str, float]) -> None:
    decision = decide(nightly(), "2026-01-09", "2026-01-08", comparison(**champion))
    assert not decision.promote
    assert decision.sentence.startswith("kept night 2026-01-08: ")
