"""What can be charged, and what is refused by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from dp_core.accounting.mechanism import VocabularyRelease
from tasks.ledger.release import Release, canonical, checked, dp_sgd, gaussian, vocabulary
from tasks.runtime.errors import UserError
from tests.tasks.ledger.support import JANUARY, metric, record


def test_a_release_survives_json() -> None:
    drawn = VocabularyRelease(30.0, 1e-7, "ab12")
    releases = checked(
        [
            Release("model", dp_sgd(record(vocabulary=drawn)), "clicks", (JANUARY[1], JANUARY[0]), "run 1", "ε = 1"),
            Release("vocabulary", vocabulary(drawn), "clicks", (JANUARY[0],)),
            metric(5.0),
        ]
    )
    assert tuple(Release.from_json(release.to_json()) for release in releases) == releases
    assert releases[0].days == (JANUARY[0], JANUARY[1])
    assert "replace_special" in canonical(releases[0].to_json())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"days": ()}, "give the days"),
        ({"days": "2026-01-01"}, "give the days"),
        ({"days": (JANUARY[0], JANUARY[1], JANUARY[0])}, "2026-01-01 is listed more than once"),
        ({"days": ("1.2.2026",)}, "is not a day"),
        ({"days": ("2026-02-30",)}, "is not a day"),
        ({"days": ("20260101xx",)}, "is not a day"),
        ({"days": ("2026-W01-4",)}, "is not a day"),  # another name of 2026-01-01
        ({"kind": "picture"}, "is one of model, vocabulary, statistic, metric"),
        ({"dataset": " "}, "needs the name of its dataset"),
        ({"dataset": "a\nb"}, "printable text"),
        ({"note": "\ud800"}, "printable text"),
        ({"mechanism": gaussian(0.0)}, "noise_multiplier must be a positive number, got 0.0"),
        ({"mechanism": gaussian(-1.0)}, "must be a positive number"),
        ({"mechanism": gaussian(math.nan)}, "not JSON with finite numbers"),
        ({"mechanism": gaussian(math.inf)}, "not JSON with finite numbers"),
        ({"mechanism": {"mechanism": "gaussian", "noise_multiplier": True}}, "must be a positive number"),
        ({"mechanism": {"mechanism": "gaussian", "noise_multiplier": "5"}}, "must be a positive number"),
        ({"mechanism": {"mechanism": "gaussian", "noise_multiplier": 5.0, "delta": -1}}, "delta must be"),
        ({"mechanism": {"mechanism": "gaussian", "noise_multiplier": 5.0, "sensitivity": 9}}, "unknown fields"),
        ({"mechanism": {"mechanism": "vocabulary", "noise_multiplier": 5.0, "delta": 1e-9}}, "needs its `draw`"),
        ({"mechanism": {"mechanism": "label_dp", "epsilon": 1.0}}, "LabelDP protects labels"),
        ({"mechanism": {"mechanism": "dp_sgd", "record": {"response": "binary"}}}, "LabelDP protects labels"),
        ({"mechanism": {"mechanism": "laplace"}}, "no such mechanism: 'laplace'"),
        ({"mechanism": ["gaussian"]}, "no such mechanism"),
        ({"mechanism": {"mechanism": "dp_sgd", "record": None}}, "not the record of a DP-SGD training"),
        ({"mechanism": {"mechanism": "dp_sgd", "record": {"steps": 3}}}, "not the record of a DP-SGD training"),
        ({"mechanism": dp_sgd(record(steps=0))}, "steps must be a whole number of 1 or more"),
        ({"mechanism": dp_sgd(record(steps=1.5))}, "steps must be a whole number"),
        ({"mechanism": dp_sgd(record(noise_multiplier=0.0))}, "noise_multiplier must be a positive number"),
        ({"mechanism": dp_sgd(record(expected_batch_size=9000))}, "larger than the 8,000 examples"),
        ({"mechanism": dp_sgd(record(sampler="no such"))}, "not the record of a DP-SGD training"),
    ],
)
def test_what_cannot_be_charged_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match="(?s)" + said.replace("(", r"\(")) as error:
        checked([dataclasses.replace(metric(5.0), **change)])
    if "days" in change or "mechanism" in change:
        assert "metric of clicks" in str(error.value)


def test_nothing_is_no_release() -> None:
    with pytest.raises(UserError, match="at least one release"):
        checked([])
