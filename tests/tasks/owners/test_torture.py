"""A short torture of the steps that need no training, and, for `make torture`, ten runs at once on an empty home."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runtime.home import CHECKOUT
from tests.support.reports import CONFIG, GRID
from tests.support.trials import make_prepared

RUNS = 10


def test_a_short_torture_of_data_and_ledger() -> None:
    """The seed is fixed, so that a failure can be seen again; `make torture` has others."""
    command = [sys.executable, "-m", "tests.torture", "--seconds", "4", "--seed", "7", "--scenes", "prepare,ledger"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) of (\d+);", done.stdout, re.MULTILINE)
    assert found, done.stdout
    assert found[1] == found[2] != "0"


@pytest.mark.torture
def test_ten_runs_at_once_on_an_empty_home(tmp_path: Path) -> None:
    """All end in the same table, and each trial is trained once."""
    raw = tmp_path / "raw"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(tmp_path / "other"))
        make_prepared(raw)  # for its raw log
    small = GRID.replace("[2, 8]", "[8]").replace("[1, 3]", "1")
    (tmp_path / "my.yaml").write_text(CONFIG.replace(GRID, small).replace("RAW", str(raw / "clicks.parquet")))
    home = tmp_path / "home"
    environment = os.environ | {"DP_ADS_HOME": str(home), "DP_ADS_CONFIG": str(tmp_path / "my.yaml")}
    command = [sys.executable, "-m", "tasks", "run", "--pipeline", "losses", "--profile", "tiny"]
    running = [
        subprocess.Popen(
            command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for _ in range(RUNS)
    ]
    said = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * RUNS, "\n\n".join(said)

    trials = [path.name for path in (home / "trials").iterdir() if not path.name.startswith(".")]
    assert len(trials) == 4, "two seeds of two methods"
    logs = list((home / "logs").glob("losses-*.log"))
    assert len(logs) == RUNS, "each has a log of its own"
    trained = [line for log in logs for line in log.read_text().splitlines() if re.search(r" steps at \d+/s, ", line)]
    assert sum(not line.endswith("found") for line in trained) == len(trials), "each trial was trained once"

    reports = [path for path in (home / "reports" / "losses").iterdir() if not path.is_symlink()]
    assert len(reports) == RUNS
    assert len({(report / "table.csv").read_text() for report in reports}) == 1
    assert len(list((home / "data" / "tiny_clicks").glob("*/schema.json"))) == 1
    with contextlib.closing(sqlite3.connect(home / "mlflow" / "mlflow.db")) as database:
        found = database.execute("SELECT status, count(*) FROM runs GROUP BY status").fetchall()
    assert found == [("FINISHED", RUNS + len(trials))]
    assert [path.name for path in (home / "airflow-run").iterdir()] == ["logs"]
    assert list((home / "locks").iterdir()) == []
