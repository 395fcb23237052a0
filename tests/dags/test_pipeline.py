"""End to end: `tasks run` through Airflow into an MLflow store.

The tests share one home folder, whose databases are made once; a run from scratch has a home of its own.
"""

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient

CHECKOUT = Path(__file__).resolve().parent.parent.parent
FILES = {
    *("page.html", "report.md", "summary.json", "figure.svg", "figure.png"),
    *(f"reliability_{task}.{kind}" for task in ("pctr", "pcvr", "pconvs") for kind in ("svg", "png")),
    *(f"{name}.csv" for name in ("table", "settings", "metrics", "choice", "trials", "varied", "fixed")),
    *("statements.html", "data_card_synthetic_display.html", "data_card_synthetic_clicks.html"),
}


def run(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "MLFLOW"))}
    return subprocess.run(
        [sys.executable, "-m", "tasks", "run", *arguments],
        cwd=CHECKOUT,
        env=environment | {"DP_ADS_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def table(home: Path, pipeline: str = "relative_loss") -> list[dict[str, str]]:
    path = home / "reports" / pipeline / "latest-smoke" / "table.csv"
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def nested_runs(home: Path, pipeline: str = "relative_loss") -> tuple[Run, list[Run]]:
    """Returns the newest parent run and its children."""
    client = MlflowClient(f"sqlite:///{home / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(pipeline)
    assert experiment is not None
    runs = list(client.search_runs([experiment.experiment_id]))
    parents = [found for found in runs if "mlflow.parentRunId" not in found.data.tags]
    parent = max(parents, key=lambda found: found.info.start_time)
    return parent, [found for found in runs if found.data.tags.get("mlflow.parentRunId") == parent.info.run_id]


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    home = tmp_path_factory.mktemp("smoke") / "home"
    return home, run(home, "--profile", "smoke")


def test_the_run_ends_in_a_table(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, done = smoke
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(home)
    assert [(row["task"], row["epsilon"]) for row in rows] == [
        (task, epsilon) for task in ("pctr", "pcvr", "pconvs") for epsilon in ("inf", "1", "10")
    ]
    for row in rows:
        assert all(
            math.isfinite(float(value)) for name, value in row.items() if name != "task" and value not in ("inf", "")
        )
        assert 0 < float(row["loss_mean"]) < 1
        assert row["seeds"] == "1"
    for task in ("pctr", "pcvr", "pconvs"):
        losses = {row["epsilon"]: float(row["loss_mean"]) for row in rows if row["task"] == task}
        increments = {row["epsilon"]: float(row["relative_loss_percent_mean"]) for row in rows if row["task"] == task}
        assert increments["inf"] == 0
        assert increments["1"] == pytest.approx(100 * (losses["1"] - losses["inf"]) / losses["inf"], rel=1e-5)
    assert "Relative loss increment" in done.stdout
    assert "13.58" in done.stdout
    latest = home / "reports" / "relative_loss" / "latest-smoke"
    assert not latest.with_name("latest").exists(), "a result that means nothing"
    assert done.stdout.splitlines()[-1] == f"Page: {latest.resolve() / 'page.html'}", "of the run itself"
    assert not (home / "airflow").exists(), "and no scheduler could see it"
    markdown = (latest / "report.md").read_text()
    assert "13.58" in markdown
    assert "of the way" in markdown
    assert "make run PIPELINE=relative_loss PROFILE=smoke" in markdown
    assert {path.name for path in latest.iterdir()} == FILES
    assert "relative_loss" in (home / "reports" / "index.html").read_text()


def test_mlflow_has_a_parent_and_a_run_for_each_trial(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = smoke
    parent, children = nested_runs(home)
    assert parent.info.status == "FINISHED"
    assert parent.data.tags["pipeline"] == "relative_loss"
    assert {"mlflow.source.git.commit", "mlflow.user", "lock_hash", "data_fingerprint"} <= set(parent.data.tags)
    for name in ("relative_loss_percent", "test_loss", "epsilon_with_choice_if_secret"):
        assert f"{name}/pctr" in parent.data.metrics
    client = MlflowClient(f"sqlite:///{home / 'mlflow' / 'mlflow.db'}")
    assert {file.path for file in client.list_artifacts(parent.info.run_id)} == {"data_cards", *FILES}
    cards = [Path(file.path).name for file in client.list_artifacts(parent.info.run_id, "data_cards")]
    assert cards == ["synthetic_clicks.html", "synthetic_display.html"]
    for child in children:
        assert child.inputs.dataset_inputs[0].dataset.digest == child.data.tags["data_fingerprint"]
    # Three tasks, each with one baseline and 2 budgets × 2 clip norms.
    assert len(children) == 15
    assert all(child.info.status == "FINISHED" for child in children)
    private = next(c for c in children if c.data.params["epsilon"] == "1" and c.data.params["task"] == "pctr")
    assert {"l2_clip_norm", "noise_multiplier", "epsilon", "seed", "unvaried/optimizer"} <= set(private.data.params)
    assert {"validation/auc", "test/auc", "test/log_loss", "epsilon", "relative_loss_percent"} <= set(
        private.data.metrics
    )
    assert {"data_fingerprint", "mlflow.source.git.commit", "lock_hash"} <= set(private.data.tags)
    assert private.data.metrics["epsilon"] <= 1.0
    assert len(client.get_metric_history(private.info.run_id, "validation/auc")) == 2
    assert [file.path for file in client.list_artifacts(private.info.run_id)] == ["privacy_statement.md"]


def test_every_model_has_its_statement_beside_it(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, _ = smoke
    trials = [path for path in (home / "trials").iterdir() if not path.name.startswith(".")]
    assert len(trials) == 15
    for trial in trials:
        assert {path.name for path in trial.iterdir()} == {
            *("parameters.npz", "record.json", "evidence.json", "audit.json", "privacy_statement.md"),
            *("public_name.txt", "manifest.json"),
        }


def test_from_scratch_the_table_is_the_same_to_the_last_digit(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Checked on one of the three tasks, alone: its rows do not depend on what else is trained."""
    home, _ = smoke
    again = run(tmp_path / "home", "--profile", "smoke", "--tasks", "pconvs")
    assert again.returncode == 0, again.stdout + again.stderr
    assert table(tmp_path / "home") == [row for row in table(home) if row["task"] == "pconvs"]


def test_a_second_run_finds_its_trials(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    home, first = smoke
    before = {path: path.stat().st_mtime_ns for path in (home / "trials").glob("*/record.json")}
    rows = table(home)
    second = run(home, "--profile", "smoke", "--tasks", "pctr", "--json")
    assert second.returncode == 0, second.stdout + second.stderr
    # With --json, standard output has only the result; progress goes to standard error.
    assert "5 trials, 5 of them already trained" in second.stderr
    assert "5 trials, 5" not in first.stdout
    assert {path: path.stat().st_mtime_ns for path in (home / "trials").glob("*/record.json")} == before
    assert table(home) == [row for row in rows if row["task"] == "pctr"]
    parent, children = nested_runs(home)
    assert children == [], "no trial is logged again"
    assert "Compare the 5 trials" in parent.data.tags["mlflow.note.content"], "but the earlier ones are found"
    made = json.loads(second.stdout)
    assert set(made) == {"page", "markdown", "table"}
    assert all(Path(path).exists() for path in made.values())


def test_a_pipeline_that_trains_nothing(smoke: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Computes the noise for a budget at each batch size, on data that another pipeline prepared."""
    home, _ = smoke
    trials = set((home / "trials").iterdir())
    done = run(home, "--pipeline", "noise_and_batch", "--profile", "smoke", "--epsilons", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(home, "noise_and_batch")
    assert [(row["fixed"], row["batch_size"]) for row in rows] == [
        (fixed, size) for fixed in ("epochs", "steps") for size in ("256", "1024", "4096")
    ]
    assert {row["epsilon"] for row in rows} == {"2"}
    page = (home / "reports" / "noise_and_batch" / "latest-smoke").resolve() / "page.html"
    assert done.stdout.splitlines()[-1] == f"Page: {page}"
    assert "Noise against batch size" in (home / "reports" / "index.html").read_text()
    parent, children = nested_runs(home, "noise_and_batch")
    assert (parent.info.status, children) == ("FINISHED", [])
    assert set((home / "trials").iterdir()) == trials


def write_kaggle_file(path: Path, rows: int = 2500) -> None:
    """Writes a file in the Kaggle layout, unlike those of our generator: negative, empty and huge numbers, tokens of
    any length, and unseen tokens in the last rows."""
    rng = np.random.default_rng(5)
    lines = []
    for row in range(rows):
        integers: list[Any] = [rng.choice(["", "-3", "0", "7", str(10 ** int(rng.integers(1, 16)))]) for _ in range(13)]
        tokens = [rng.choice(["", "68fd1e64", "0a", "ffffffff", "x" * 30]) for _ in range(26)]
        if row > rows * 0.9:
            tokens[0] = f"unseen{row}"
        label = int(rng.random() < (0.6 if integers[0] == "7" else 0.2))
        lines.append("\t".join([str(label), *integers, *tokens]))
    path.write_text("\n".join(lines) + "\n")


def test_a_search_trains_in_rounds(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grid's trials are found; the clip norm beyond the better one is trained; the third round is skipped."""
    home, _ = smoke
    text = (CHECKOUT / "pipelines.yaml").read_text()
    searched = (
        "      smoke:\n        epsilons: [1, 10]\n        search: extend\n        trainings: 1\n        seeds: 1\n"
    )
    (tmp_path / "mine.yaml").write_text(
        text.replace("      smoke:\n        epsilons: [1, 10]\n        seeds: 1\n", searched, 1)
    )
    monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "mine.yaml"))
    done = run(home, "--profile", "smoke", "--tasks", "pctr", "--epsilons", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planned 3 trials, 3 of them already trained" in done.stdout
    assert "round 2 (extend): planned 1 trial, 0 of them already trained" in done.stdout
    assert "round 3" not in done.stdout
    latest = home / "reports" / "relative_loss" / "latest-smoke"
    assert {path.name for path in latest.iterdir()} >= {"search.csv", "search_pctr_l2_clip_norm.svg"}
    with open(latest / "search.csv", encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["ε budget"] == "10"]
    assert [(row["round"], row["trainings"]) for row in rows] == [("1", "2"), ("2", "1")]
    losses = [float(row["lowest validation loss"]) for row in rows]
    assert [row["chosen"] == "✓ chosen" for row in rows] == [loss == min(losses) for loss in losses]
    with open(latest / "choice.csv", encoding="utf-8", newline="") as file:
        (choice,) = csv.DictReader(file)
    assert choice["trainings"] == "3"
    assert float(choice["composition"]) > 10


def test_a_malformed_file_is_one_clear_message(
    smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    home, _ = smoke
    reports = set((home / "reports").rglob("*"))
    write_kaggle_file(tmp_path / "train.txt", 1500)
    lines = (tmp_path / "train.txt").read_text().splitlines()
    for number in range(1200, 1210):
        lines[number] = lines[number].replace("\t", " ", 1)
    (tmp_path / "train.txt").write_text("\n".join(lines))
    chosen = ["--dataset", "criteo_kaggle", "--raw", str(tmp_path / "train.txt"), "--tasks", "pctr"]
    done = run(home, *chosen, "--profile", "smoke")
    assert done.returncode == 2
    assert "10 of 1,500 rows are bad (10 wrong number of fields)" in done.stderr
    assert "line 1201" in done.stderr
    assert "40" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert set((home / "reports").rglob("*")) == reports
    assert [path.name for path in (home / "data" / "criteo_kaggle").iterdir()] == ["parts"]


def test_a_file_of_the_users_own(smoke: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    home, _ = smoke
    write_kaggle_file(tmp_path / "train.txt")
    chosen = ["--dataset", "criteo_kaggle", "--raw", str(tmp_path / "train.txt"), "--tasks", "pctr"]
    done = run(home, *chosen, "--epsilons", "2", "--profile", "smoke", "--seeds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = table(home)
    assert [(row["task"], row["epsilon"], row["seeds"]) for row in rows] == [
        ("pctr", epsilon, "2") for epsilon in ("inf", "2")
    ]
    assert all(math.isfinite(float(row["loss_mean"])) for row in rows)
