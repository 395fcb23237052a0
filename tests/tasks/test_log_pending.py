"""A run whose MLflow server does not answer goes on, is kept, and is logged later."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.audit import audit_group
from tasks.cli import main
from tasks.outages import unlogged
from tasks.report import report
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.train import train
from tests.support.documents import Page
from tests.support.reports import Ran, artifacts, mlflow_runs, planned, report_home


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with report_home(tmp_path_factory.mktemp("pending")) as folder:
        yield folder


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a server that is away, for which nobody waits long."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://someone:secret@127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setattr(unlogged, "PATIENCE_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return address


def run(monkeypatch: pytest.MonkeyPatch, nobody: str, *, epsilon: float, away_from: str) -> Ran:
    """Runs a pipeline whose server is away from a step on."""
    steps = ["plan", "train", "audit", "report"]

    def enter(step: str) -> None:
        if steps.index(step) >= steps.index(away_from):
            monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody)

    enter("plan")
    found = planned("losses", epsilons=[epsilon], seeds=1)
    enter("train")
    trained = [one for group in found["groups"] for one in train(group) or ()]
    enter("audit")
    audited = audit_group(trained)
    enter("report")
    files = report(found["run"], audited)
    return Ran(Path(found["run"]), len(audited), Path(files["page"]).parent, files)


# The first run logs its baseline, the second finds that and trains anew for its own budget.
@pytest.mark.parametrize(("epsilon", "away_from", "new"), [(2.0, "plan", 3), (8.0, "train", 2), (8.0, "report", 0)])
def test_a_run_without_its_server_is_kept_and_logged_later(
    here: Path,
    nobody: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    epsilon: float,
    away_from: str,
    new: int,
) -> None:
    ran = run(monkeypatch, nobody, epsilon=epsilon, away_from=away_from)
    printed = capsys.readouterr().out
    assert "does not answer" in printed
    assert "python -m tasks log-pending" in printed
    assert "secret" not in printed
    assert printed.count("The run goes on without it") == 1, "it is said once, and waited for once"
    assert unlogged.unlogged_runs() == [ran.folder]
    table = (ran.report / "table.csv").read_text()

    assert main(["log-pending"]) == 2
    assert "could not be logged" in capsys.readouterr().err

    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert main(["log-pending"]) == 0
    assert capsys.readouterr().out.endswith("1 run logged to MLflow\n")
    assert unlogged.unlogged_runs() == []
    assert (ran.report / "table.csv").read_text() == table
    parent, children = mlflow_runs(here, ran)
    assert parent.info.status == "FINISHED"
    assert len(children) == new, "a trial that an earlier run logged keeps its run there"
    assert {"page.html", "table.csv", "data_cards"} <= artifacts(here, parent.info.run_id)
    assert parent.info.run_id in Page((ran.report / "page.html").read_text()).text
    assert main(["log-pending"]) == 0
    assert capsys.readouterr().out == "0 runs logged to MLflow\n"


def test_a_run_that_was_interrupted_is_left(
    here: Path, nobody: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody)
    folder = Path(planned("clips", seeds=2)["run"])
    assert read_json(folder / unlogged.MARK)["reason"].endswith("does not answer")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert main(["log-pending"]) == 0
    assert "was interrupted before its report" in capsys.readouterr().out
    assert unlogged.is_unlogged(folder)


def test_what_is_no_run_of_a_pipeline_fails_with_its_server(
    here: Path, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", nobody)

    def call() -> None:
        raise UserError("no answer")

    with pytest.raises(UserError, match="no answer"):
        unlogged.logged(here / "home" / "nights" / "2026-11-01", call, None)
