"""Two processes on loopback train one trial together, as the command line starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tasks.cli import main
from tasks.privacy.verdict import judge
from tasks.runtime.home import read_json
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import make_prepared, make_trial

TIMEOUT_SECONDS = 180


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def train_together(processes: int, devices_each: int) -> list[subprocess.CompletedProcess[str]]:
    """Runs ``python -m tasks train`` in several processes at once; all have ended when it returns."""
    environment = {**os.environ, "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices_each}"}
    command = [sys.executable, "-m", "tasks", "train", "--json", "--pipeline", "tiny", "--run", "only"]
    command += ["--processes", str(processes), "--coordinator", f"127.0.0.1:{free_port()}"]
    running = [
        subprocess.Popen(
            [*command, "--process", str(number)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *output)
        for process, output in zip(running, outputs, strict=True)
    ]


def write_plan(home: Path, trials: Sequence[Trial], prepared: Path) -> None:
    folder = home / "runs" / "tiny" / "only"
    folder.mkdir(parents=True)
    items = [
        {
            "run": str(folder),
            "parent": {"mlflow_run": "0" * 32, "experiment": "0", "pipeline": "tiny", "varies": []},
            "number": number,
            "of": len(trials),
            "name": trial.label(),
            "trial": trial.model_dump(mode="json"),
            "prepared": str(prepared),
        }
        for number, trial in enumerate(trials, start=1)
    ]
    (folder / "plan.json").write_text(json.dumps({"items": items}))


def test_two_processes_train_what_one_trains(own_home: Path, tmp_path: Path) -> None:
    """A seeded trial, compared with one process; and a secret one, whose randomness the first process shares."""
    prepared = make_prepared(tmp_path / "raw")
    trial = make_trial(prepared, microbatch_size=4, sensitivity="proven", epsilon=100.0)
    secret = make_trial(prepared, randomness="secret", epsilon=100.0)
    write_plan(own_home, [trial, secret], prepared.path)
    first, second = train_together(2, devices_each=2)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    # Only the first process writes and logs.
    assert [one["trial"] for one in json.loads(first.stdout)] == [trial.key, secret.key]
    assert json.loads(second.stdout) == []
    for one in (trial, secret):
        record = read_json(one.folder / "record.json")
        assert (record["devices"], record["steps"]) == (4, 48)
        result, _ = judge(one, record, read_json(one.folder / "evidence.json"))
        assert result["findings"] == []

    with np.load(trial.folder / "parameters.npz") as file:
        together = dict(file)
    mechanism = read_json(trial.folder / "record.json")["mechanism"]
    trial.folder.rename(own_home / "together")
    run_trial(trial, prepared)
    with np.load(trial.folder / "parameters.npz") as file:
        for name, array in file.items():
            np.testing.assert_allclose(together[name], array, rtol=1e-4, atol=1e-6)
    assert mechanism == read_json(trial.folder / "record.json")["mechanism"]


def test_processes_that_cannot_be(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--processes", "2"]) == 2
    assert "needs --coordinator HOST:PORT" in capsys.readouterr().err
    assert main(["train", "--processes", "2", "--process", "2", "--coordinator", "127.0.0.1:1"]) == 2
    assert "--process must be between 0 and 1, got 2" in capsys.readouterr().err
