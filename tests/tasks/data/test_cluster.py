"""Preparation on a real Dask cluster of two worker processes gives the same result, also if one is killed midway."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from distributed import Client

from tasks.config.loading import load_config
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.logs.synthetic import generate
from tasks.runtime import parallel
from tasks.runtime.errors import UserError

pytestmark = pytest.mark.usefixtures("own_home")

ROWS, BLOCK_BYTES = 30_000, 250_000


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[Any]]]]:
    """Starts a scheduler and two workers as an operator would, each in its own process."""
    address_file = folder / "scheduler.json"
    # Workers compile nothing and must not look for devices.
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "JAX_PLATFORMS": "cpu"}

    def start(program: str, *arguments: str) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", f"distributed.cli.{program}", *arguments]
        with (folder / "cluster.log").open("ab") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=folder)

    here = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(address_file)]
    scheduler = start("dask_scheduler", "--port", "0", *here)
    local = ["--nthreads", "1", "--no-nanny", "--local-directory", str(folder)]
    workers = [start("dask_worker", "--name", n, *here, *local) for n in ("a", "b")]
    try:
        with Client(scheduler_file=str(address_file), timeout=60, set_as_default=False) as client:
            client.wait_for_workers(2, timeout=60)
            yield client.scheduler.address, workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def test_a_killed_worker_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker is killed as soon as one block is finished, while others are in flight."""
    described = load_config().dataset("criteo_kaggle")
    raw = generate("display", ROWS, 0)
    alone = open_prepared(prepare("alone", described, raw, min_count=3, block_bytes=BLOCK_BYTES))

    with cluster(tmp_path) as (address, workers):
        killed: list[int] = []
        on_cluster = parallel._on_cluster

        def kill_one(client: Any, tasks: list[Any], finished: Any) -> list[Any]:
            def watch(key: Any, result: Any) -> None:
                finished(key, result)
                if not killed and len(tasks) > 10:
                    worker = workers[0]
                    executing = client.processing()
                    assert sum(len(keys) for keys in executing.values()) > 2, "in the middle of the work"
                    os.kill(worker.pid, signal.SIGKILL)
                    killed.append(worker.pid)

            return on_cluster(client, tasks, watch)

        monkeypatch.setattr(parallel, "_on_cluster", kill_one)
        with dask.config.set({"scheduler-address": address}):
            folder = prepare("together", described, raw, min_count=3, block_bytes=BLOCK_BYTES)
        assert killed
        assert workers[0].wait() == -signal.SIGKILL
        assert workers[1].poll() is None

    together = open_prepared(folder)
    assert together.fingerprint == alone.fingerprint
    assert together.statistics == alone.statistics
    np.testing.assert_array_equal(together.split("test", "pctr").integers, alone.split("test", "pctr").integers)
    left = sorted(path.name for path in folder.rglob("*") if path.is_file())
    assert left == sorted(path.name for path in alone.path.rglob("*") if path.is_file())


def test_threads_and_processes_give_the_same(tmp_path: Path) -> None:
    described, raw = load_config().dataset("criteo_kaggle"), generate("display", 3000, 0)
    fingerprints = set()
    for name, settings in {
        "one": {"num_workers": 1},
        "four": {"num_workers": 4},
        "synchronous": {"scheduler": "synchronous"},
        "processes": {"scheduler": "processes", "num_workers": 2},
    }.items():
        with dask.config.set(settings):
            folder = prepare(name, described, raw, min_count=3, block_bytes=50_000 + 20_000 * len(name))
        fingerprints.add(open_prepared(folder).fingerprint)
    assert len(fingerprints) == 1


def test_a_scheduler_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    described, raw = load_config().dataset("criteo_kaggle"), generate("display", 3000, 0)
    monkeypatch.setattr(parallel, "_CONNECT_SECONDS", 1)
    message = re.escape("no Dask scheduler answers at DASK_SCHEDULER_ADDRESS=tcp://127.0.0.1:9")
    with dask.config.set({"scheduler-address": "tcp://127.0.0.1:9"}), pytest.raises(UserError, match=message):
        prepare("nowhere", described, raw, min_count=3)
