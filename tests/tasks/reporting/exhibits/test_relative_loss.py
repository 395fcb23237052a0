"""Table 1: planted relative losses are found, and none where none was planted."""

from __future__ import annotations

from statistics import stdev

import pytest

from tasks.reporting.document import Verdict
from tasks.reporting.exhibits import relative_loss
from tasks.reporting.exhibits.common import Sweep
from tasks.reporting.results import Outcome, choose
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, pipeline_of, rows_of, verdicts, well_formed
from tests.support.sweeps import BY_SEED, SWEEPS, TASKS, VERDICTS, baseline, by_chance, private, show


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_relative_loss_falls_with_the_budget_if_it_does(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        return 0.2 if trial.epsilon is None else 0.25 + (effect + by_chance(trial)) * (trial.epsilon == 1)

    shown = show("relative_loss", loss)
    assert verdicts(shown) == [verdict] * 3
    assert [finding.claim.split(":")[0] for finding in shown.findings] == ["pCTR", "pCVR", "pConvs"]


def test_relative_loss_against_arithmetic_by_hand() -> None:
    losses = {None: 0.2, 1.0: 0.3, 10.0: 0.25}
    sweeping = SWEEPS["relative_loss"]._replace(epsilons=(10.0, 1.0), seeds=2)
    ceilings = {"pctr": {"auc": 0.95}, "pconvs": {"poisson_log_loss": 0.19}}
    shown = show("relative_loss", lambda trial: losses[trial.epsilon], sweeping, ceilings=ceilings)
    # The mean over two seeds adds 0.005 to every loss.
    at_1, at_10 = 100 * 0.1 / 0.205, 100 * 0.05 / 0.205
    spread = 100 * stdev([0.0, BY_SEED]) / 0.205
    table = rows_of(shown.tables[0])
    assert list(table) == ["1", "10"]
    assert table["1"]["pCTR ours"] == f"{at_1:.2f} ± {spread:.2f}"
    assert table["10"]["pConvs ours"] == f"{at_10:.2f} ± {spread:.2f}"
    assert table["1"]["pCTR paper"] == "13.58"
    records = csv_of(shown.tables[0])
    assert [(row["task"], row["epsilon"]) for row in records] == [
        (task, epsilon) for task in TASKS for epsilon in ("inf", "1", "10")
    ]
    assert float(records[0]["relative_loss_percent_mean"]) == 0
    assert float(records[1]["relative_loss_percent_mean"]) == pytest.approx(at_1, rel=1e-6)
    assert float(records[1]["relative_loss_percent_std"]) == pytest.approx(spread, rel=1e-6)
    assert {row["seeds"] for row in records} == {"2"}
    assert f"from ε = 1 to 10: pCTR {at_1:.1f} % to {at_10:.1f} %, pCVR" in shown.headline
    assert f"covers {100 * (0.795 - 0.5) / 0.45:.1f} % of the way" in shown.notes[0]
    assert (
        "the loss of the model that generated the labels is 0.1900, the non-private model's 0.2050 ± 0.0071"
        in shown.notes[1]
    )


def test_one_budget_has_no_ends() -> None:
    only = SWEEPS["relative_loss"]._replace(epsilons=(3.0,))
    shown = show("relative_loss", lambda trial: 0.2 if trial.epsilon is None else 0.3, only)
    percent = f"{100 * 0.1 / 0.215:.1f} %"
    assert shown.headline == f"Relative loss at ε = 3: pCTR {percent}, pCVR {percent}, pConvs {percent}."


def test_a_random_search_keeps_trainings_of_different_seeds() -> None:
    """They have no common seed, so no difference can be more than noise."""
    found = [Outcome(baseline(), 0.2, 0.2)]
    for epsilon, seed in ((1.0, 3), (10.0, 5)):
        found.append(Outcome(private(epsilon=epsilon, seed=seed), 0.3 / epsilon, 0.3 / epsilon))
    results = choose(found, each_alone=True)
    shown = relative_loss.exhibit(Sweep(pipeline_of("relative_loss"), results, {}))
    assert verdicts(well_formed(shown)) == ["within noise"]
    assert "no common seed" in shown.findings[0].evidence
    assert rows_of(shown.tables[0])["1"]["pCVR ours"] == "50.00"
