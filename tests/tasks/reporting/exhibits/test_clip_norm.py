"""Table 2: planted effects of the clip norm are found, and none where none was planted."""

from __future__ import annotations

import pytest

from tasks.reporting.document import Verdict
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, pipeline_of, rows_of, verdicts
from tests.support.sweeps import VERDICTS, by_chance, show, text_of


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_a_large_clip_norm_is_worse_at_a_small_budget_if_it_is(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        large_at_low = (trial.l2_clip_norm, trial.epsilon) == (30.0, 1.0)
        return 0.25 + (effect + by_chance(trial)) * large_at_low + 0.1 * (trial.l2_clip_norm == 3)

    shown = show("clip_norm", loss)
    assert verdicts(shown) == [verdict] * 2
    sign = "worse" if effect >= 0 else "better"
    assert f"is {sign} by {abs(effect):.4f} at ε = 1, worse by 0.0000 at ε = 8" in shown.findings[1].evidence


def test_clip_norms_by_budget() -> None:
    planted = {
        (1.0, 1.0): 0.25,
        (3.0, 1.0): 0.27,
        (30.0, 1.0): 0.4,
        (1.0, 8.0): 0.24,
        (3.0, 8.0): 0.2,
        (30.0, 8.0): 0.3,
    }

    def loss(trial: Trial) -> float:
        return planted.get((trial.l2_clip_norm or 0.0, trial.epsilon or 0.0), 0.1)

    def noisy(trial: Trial) -> float:
        """At ε = 1, C = 3 differs from C = 1 on the test split only by noise."""
        same = (trial.l2_clip_norm, trial.epsilon) == (3.0, 1.0)
        return 0.25 + by_chance(trial) if same else loss(trial)

    shown = show("clip_norm", noisy, validation=loss)
    assert shown.headline == ("At ε = 1 the best clip norm is 1 (AUC 0.7350), at ε = 8 it is 3 (AUC 0.7850).")
    table = shown.tables[0]
    assert list(table.columns) == ["ε", "C = 1", "C = 3", "C = 30"]
    found = rows_of(table)
    assert found["1"]["C = 1"] == text_of(0.75)
    assert found["1"]["C = 3"].startswith("0.7350 ± ")
    assert found["1"]["C = 3"].endswith(" ≈")
    assert found["1"]["C = 30"] == text_of(0.6)
    assert found["8"] == {"C = 1": text_of(0.76), "C = 3": text_of(0.8), "C = 30": text_of(0.7)}
    assert f"baseline has {text_of(0.9)}." in table.caption
    assert [[cell.strong for cell in row[1:]] for row in table.rows] == [
        [True, False, False],
        [False, True, False],
    ]
    # Columns sort by score.
    assert [row[1].sort for row in table.rows] == pytest.approx([0.735, 0.745])
    records = csv_of(table)
    assert [(row["method"], row["epsilon"]) for row in records] == [
        ("non-private", "inf"),
        *((f"C = {c}", epsilon) for epsilon in ("1", "8") for c in (1, 3, 30)),
    ]
    assert float(records[3]["loss_mean"]) == pytest.approx(0.415)
    assert float(records[3]["score"]) == pytest.approx(0.585)
    assert (records[3]["seeds"], records[3]["trainings"], records[3]["l2_clip_norm"]) == ("4", "4", "30")


@pytest.mark.parametrize("name", ["clip_norm", "large_batch"])
def test_the_papers_numbers_stand_beside_ours(name: str) -> None:
    paper = pipeline_of(name).paper
    table = next(table for table in show(name, lambda trial: 0.2).tables if table.name == "paper")
    found = rows_of(table)
    assert list(found) == ["0.5", "3", "8"]
    for method, by_epsilon in paper.items():
        for epsilon, value in by_epsilon.items():
            assert found[f"{epsilon:g}"][method] == f"{value:.4f}"
