"""A run in the terminal: its program is ended with all its processes when the run is interrupted."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tasks.config.loading import config_path
from tasks.runtime import dag_run
from tasks.runtime.dag_run import run_dag, run_pipeline
from tasks.runtime.handed_over import Paused
from tasks.runtime.running_servers import Addresses, as_the_running_servers
from tests.tasks.runtime.programs import is_living, started, wait_until

# `run_pipeline`, with a program that runs for long instead of Airflow. It has a child and ignores SIGINT, like a task.
LONG_RUN = """
import subprocess, sys
import tasks.runtime.dag_run as dag_run

program = '''
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("▸ planned 5 trials, 0 of them already trained", flush=True)
time.sleep(600)
'''
run_to_the_end = dag_run._run_to_the_end
dag_run.ensure_airflow = lambda folder: None
dag_run._run_to_the_end = lambda command, *rest: run_to_the_end([sys.executable, "-c", program], *rest)

from tasks.cli import main
sys.exit(main(["run", "--profile", "smoke"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_an_interrupted_run_ends_and_says_what_is_kept(number: signal.Signals, own_home: Path, tmp_path: Path) -> None:
    output = tmp_path / "output"
    with started([sys.executable, "-c", LONG_RUN], output) as process:
        wait_until(lambda: "planned" in output.read_text(), 30, "the run")
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) == 2
        process.send_signal(number)
        assert process.wait(30) == 130
    assert [child for child in children if is_living(child)] == []
    assert output.read_text().splitlines()[-2:] == [
        f"▸ prepared data, finished trials and checkpoints are kept in {own_home}: "
        "the same command continues from them",
        "interrupted",
    ]


def test_a_dag_that_is_paused_runs_without_the_servers(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def paused(*_: object) -> dict[str, str]:
        raise Paused

    monkeypatch.setattr(dag_run, "hand_over", paused)
    monkeypatch.setattr(dag_run, "_run_alone", lambda dag, conf, what: {"ran": dag})
    with as_the_running_servers(Addresses(os.getpid(), "", "http://airflow", "", str(config_path().resolve()))):
        assert run_dag("nightly_retrain_conversions", "night", {}, "night") == {"ran": "nightly_retrain_conversions"}
    said = "▸ nightly_retrain_conversions is paused in the Airflow of `make up`, http://airflow: running without it\n"
    assert capsys.readouterr().out.endswith(said)


def test_servers_with_another_configuration_do_not_get_the_run(
    own_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = []
    monkeypatch.setattr(dag_run, "_run_alone", lambda dag, conf, what: alone.append(dag) or {})
    at = Addresses(os.getpid(), "", "", "", "/elsewhere/pipelines.yaml")
    with as_the_running_servers(at):
        run_pipeline({"profile": "smoke"})
    assert alone == ["relative_loss"]
    said = "▸ `make up` runs with another configuration, /elsewhere/pipelines.yaml: running without it\n"
    assert capsys.readouterr().out == said
