"""Seven nights in a row through Airflow, with everything that can happen to them.

The configuration is edited between the nights, as a person would: bad settings make a bad challenger.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from mlflow.tracking import MlflowClient

CHECKOUT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.nights

GOOD, BAD = "learning_rate: 0.1", "learning_rate: 0.0000001"
CONFIG = """
datasets:
  days:
    synthetic: {kind: clicks, seed: 7, days: {start: 2026-01-01, rows: 8000, late: [6], bad: [8]}}
    format: parquet
    time_column: timestamp
    integer_columns: [clicks_last_week, product_price_cents, cart_value_cents, user_account_days]
    categorical_columns: [campaign, advertiser, product_category, device, country]
    labels:
      pcvr: {column: conversions, kind: any}
    vocabulary: hash
    vocabulary_buckets: 100
profiles:
  small: {synthetic_rows: 1000, min_count: 20, hidden_layers: [8], evaluations: 1}
pipelines:
  unused:
    title: Unused
    datasets: {pcvr: days}
    grids:
      small:
        epsilons: [1]
        tasks:
          pcvr:
            non_private: {optimizer: sgd, learning_rate: 0.1, batch_size: 64, epochs: 1}
            dp_sgd: {optimizer: sgd, learning_rate: 0.1, batch_size: 64, epochs: 1, l2_clip_norm: 8}
nightly:
  rates:
    dataset: days
    task: pcvr
    profile: small
    schedule: "0 3 * * *"
    wait_hours: 0
    window_days: 3
    epsilon: EPSILON
    dp_sgd: {optimizer: sgd, SETTINGS, batch_size: 1024, epochs: 6, l2_clip_norm: 16}
    tolerance: 0.02
    calibration: 10
    total: {epsilon: 3, delta: 0.00001}
"""
NIGHTS = [f"2026-01-{number:02d}" for number in range(4, 11)]
FIRST, SECOND, THIRD, LATE, SIXTH, BROKEN, DEAR = NIGHTS


class House:
    """A home folder with a configuration of its own."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.config = folder / "nights.yaml"
        self.done: dict[str, subprocess.CompletedProcess[str]] = {}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MLFLOW"))}
        environment = kept | {"DP_ADS_HOME": str(self.home), "DP_ADS_CONFIG": str(self.config)}
        command = [sys.executable, "-m", "tasks", *arguments]
        return subprocess.run(
            command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False, timeout=600
        )

    def night(self, day: str, settings: str = GOOD, epsilon: float = 1.0) -> dict[str, Any]:
        self.config.write_text(CONFIG.replace("SETTINGS", settings).replace("EPSILON", f"{epsilon:g}"))
        self.done[day] = self.run("night", "rates", "--day", day, "--json")
        assert self.done[day].returncode == 0, self.done[day].stderr
        return json.loads(self.done[day].stdout)

    def spent(self) -> dict[str, float]:
        found = json.loads(self.run("ledger", "spent", "--nightly", "rates", "--json").stdout)
        return {day: spent["epsilon"] for day, spent in found["rates"]["days"].items()}

    def trials(self) -> set[str]:
        return {path.parent.name for path in self.home.glob("trials/*/record.json")}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> House:
    return House(tmp_path_factory.mktemp("nights"))


@pytest.fixture(scope="module")
def played(house: House) -> dict[str, dict[str, Any]]:
    """The records of the seven nights, and of the late one's first try."""
    records = {FIRST: house.night(FIRST, BAD), SECOND: house.night(SECOND), THIRD: house.night(THIRD, BAD)}
    records["no data"] = house.night(LATE)
    # The next night comes, and with it the late day: what the schedule does first.
    records[LATE] = house.night(LATE) if late_has_come(house) else {}
    records[SIXTH] = house.night(SIXTH)
    records[BROKEN] = house.night(BROKEN)
    house.before_the_last = house.trials()  # type: ignore[attr-defined]
    records[DEAR] = house.night(DEAR, epsilon=2.9)
    return records


def late_has_come(house: House) -> bool:
    """Asks what is due in the next night, as its DAG does."""
    program = (
        "from tasks.config.loading import load_config; from tasks.nights.due import due_nights; "
        f"print(due_nights(load_config(), 'rates', {SIXTH!r}))"
    )
    environment = os.environ | {"DP_ADS_HOME": str(house.home), "DP_ADS_CONFIG": str(house.config)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[-1] == str([LATE, SIXTH])


def test_the_first_night_sets_a_champion(played: dict[str, dict[str, Any]]) -> None:
    assert played[FIRST]["status"] == "promoted"
    assert f"promoted night {FIRST}, the first champion" in played[FIRST]["sentence"]
    assert played[FIRST]["window"] == ["2026-01-01", "2026-01-02", "2026-01-03"], "without the newest day"
    assert played[FIRST]["champion"] is None


def test_a_better_challenger_is_promoted(played: dict[str, dict[str, Any]]) -> None:
    night = played[SECOND]
    assert (night["status"], night["champion"]) == ("promoted", {"version": 1, "day": FIRST})
    found = night["comparison"]
    assert found["challenger_loss"] < found["champion_loss"]
    assert found["verdict"] == "better"


def test_a_worse_one_is_kept_out(played: dict[str, dict[str, Any]]) -> None:
    night = played[THIRD]
    assert (night["status"], night["comparison"]["verdict"]) == ("kept", "worse")
    assert night["sentence"].startswith(f"kept night {SECOND}: the challenger has AUC")
    assert night["version"] == 3, "registered all the same"


def test_a_late_day_is_caught_up(played: dict[str, dict[str, Any]]) -> None:
    assert played["no data"]["status"] == "missing"
    assert played[LATE]["status"] in ("promoted", "kept")
    assert any("came late" in sentence for sentence in played[SIXTH]["said"])
    assert LATE in played[SIXTH]["window"]


def test_a_breach_stops_the_night(house: House, played: dict[str, dict[str, Any]]) -> None:
    night = played[BROKEN]
    assert night["status"] == "stopped"
    assert "version" not in night
    assert (house.home / "reports" / "nightly_retrain_rates" / BROKEN / "checks.html").exists()


def test_a_night_over_budget_is_refused_before_training(house: House, played: dict[str, dict[str, Any]]) -> None:
    night = played[DEAR]
    assert night["status"] == "refused"
    assert "total of ε = 3" in night["sentence"]
    assert house.trials() == house.before_the_last  # type: ignore[attr-defined]
    assert BROKEN not in night["window"], "a day that was stopped is not trained on"


def test_the_ledger_has_what_was_computed_by_hand(house: House, played: dict[str, dict[str, Any]]) -> None:
    """ε of each day, by dp_accounting's own accountant from the records of the trainings."""
    charged: dict[str, list[dict[str, Any]]] = {}
    for night in played.values():
        if night["status"] in ("promoted", "kept"):
            record = json.loads((house.home / "trials" / night["chosen"] / "record.json").read_text())["mechanism"]
            for day in night["window"]:
                charged.setdefault(day, []).append(record)
    spent = house.spent()
    assert set(spent) == set(charged)
    assert max(map(len, charged.values())) == 3
    for day, records in charged.items():
        accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4)
        for record in records:
            gaussian = dp_accounting.GaussianDpEvent(record["noise_multiplier"])
            sampled = dp_accounting.PoissonSampledDpEvent(record["expected_batch_size"] / record["examples"], gaussian)
            accountant.compose(dp_accounting.SelfComposedDpEvent(sampled, record["steps"]))
        assert spent[day] == pytest.approx(accountant.get_epsilon(1e-5), rel=0.01), day


def test_the_ledger_is_as_it_was_written(house: House, played: dict[str, dict[str, Any]]) -> None:
    assert house.run("ledger", "verify").returncode == 0


def test_mlflow_has_the_champion_and_the_nights_as_a_line(house: House, played: dict[str, dict[str, Any]]) -> None:
    client = MlflowClient(f"sqlite:///{house.home / 'mlflow' / 'mlflow.db'}")
    newest = next(day for day in (SIXTH, LATE, SECOND) if played[day]["status"] == "promoted")
    champion = client.get_model_version_by_alias("rates", "champion")
    assert int(champion.version) == played[newest]["version"]
    assert champion.tags["night"] == newest
    experiment = client.get_experiment_by_name("nightly_retrain_rates")
    assert experiment is not None
    (line,) = client.search_runs([experiment.experiment_id], "tags.kind = 'all nights'")
    steps = [metric.step for metric in client.get_metric_history(line.info.run_id, "challenger/auc")]
    assert sorted(steps) == [0, 1, 2, 3, 4]
    nights = client.search_runs([experiment.experiment_id], "tags.kind = 'night'")
    assert {run.data.tags["night"] for run in nights if run.data.tags["champion"] == "true"} == {newest}


def test_a_rerun_of_a_finished_night_does_nothing_new(house: House, played: dict[str, dict[str, Any]]) -> None:
    trials, spent = house.trials(), house.spent()
    again = house.night(SECOND)
    assert again == played[SECOND]
    assert "a rerun does nothing new" in house.done[SECOND].stderr
    assert (house.trials(), house.spent()) == (trials, spent)


def test_an_earlier_night_can_be_champion_again(house: House, played: dict[str, dict[str, Any]]) -> None:
    assert house.run("champion", "rates", "--set", THIRD).returncode == 2, "without a reason"
    done = house.run("champion", "rates", "--set", THIRD, "--reason", "a test")
    assert done.returncode == 0, done.stderr
    client = MlflowClient(f"sqlite:///{house.home / 'mlflow' / 'mlflow.db'}")
    assert int(client.get_model_version_by_alias("rates", "champion").version) == 3
    history = json.loads(house.run("champion", "rates", "--json").stdout)
    assert [(reign["day"], reign["by"]) for reign in history][-1] == (THIRD, "person")
    assert house.run("champion", "rates", "--set", BROKEN, "--reason", "x").returncode == 2, "it has no model"


def test_every_night_has_a_page(house: House, played: dict[str, dict[str, Any]]) -> None:
    reports = house.home / "reports" / "nightly_retrain_rates"
    for day in NIGHTS:
        assert (reports / day / "page.html").exists(), day
    overview = (reports / "nights" / "page.html").read_text()
    assert all(day in overview for day in NIGHTS)
    assert "budget left" in overview
    assert (reports / "ledger" / "page.html").exists()
