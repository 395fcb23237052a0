"""Runs Dask tasks on threads of this machine, or on the cluster at ``DASK_SCHEDULER_ADDRESS``.

Every task is idempotent: it writes its own file, or its own range of a file, and writes the same bytes when repeated.
So a cluster can repeat the tasks of a lost worker. Its workers need the same folders mounted.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask
import dask.system
from dask.callbacks import Callback

from tasks.runtime.errors import UserError
from tasks.runtime.progress import Ticker, format_seconds, say

_CONNECT_SECONDS = 30
_WAIT_SECONDS = 60


@contextlib.contextmanager
def cluster() -> Iterator[None]:
    """Connects to the cluster, if there is an address, for the duration of the block."""
    address = dask.config.get("scheduler-address", None)
    if address is None:
        yield
        return
    from distributed import Client

    try:
        client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=True)
    except (OSError, ValueError) as error:
        raise UserError(f"no Dask scheduler answers at DASK_SCHEDULER_ADDRESS={address}: {error}") from None
    with client:
        say(f"{len(client.scheduler_info()['workers'])} Dask workers at {address}")
        yield


class Phase:
    """A phase of the work: runs its tasks and reports progress and speed.

    Give ``total``, in units, if ``compute`` is called several times.
    """

    def __init__(self, name: str, unit: str = "rows", total: float | None = None) -> None:
        self._name, self._unit = name, unit
        self._begun = time.monotonic()
        self._ticker = Ticker(name, max(1, round(total)), unit) if total else None
        self._done, self._rows = 0.0, 0

    def compute(
        self,
        tasks: Sequence[Any],
        sizes: Sequence[float] | None = None,
        rows_of: Callable[[Any], int] | None = None,
    ) -> list[Any]:
        """Runs ``dask.delayed`` tasks and returns their results, in order.

        Args:
            tasks: The tasks.
            sizes: Size of each task in the phase's unit, to measure progress. Default: count tasks.
            rows_of: Returns the number of rows of a result, to report rows per second.
        """
        tasks = list(tasks)
        if not tasks:
            return []
        sizes_by_key = dict(zip((task.key for task in tasks), sizes or [1] * len(tasks), strict=True))
        ticker = self._ticker
        if ticker is None:
            total = max(1, round(sum(sizes_by_key.values())))
            ticker = Ticker(self._name, total, self._unit if sizes else "steps")
            self._done = 0.0

        def finished(key: Any, result: Any) -> None:
            self._done += sizes_by_key.get(key, 0)
            self._rows += rows_of(result) if rows_of and key in sizes_by_key else 0
            speed = self._rows / (time.monotonic() - self._begun)
            ticker.update(round(self._done), f", {speed:,.0f} rows/s" if rows_of else "")

        client = _client()
        if client is not None:
            return _on_cluster(client, tasks, finished)
        with Callback(posttask=lambda key, result, *_: finished(key, result)), _threads():
            return list(dask.compute(*tasks))

    def done(self, rows: int) -> None:
        """Reports the phase as finished."""
        seconds = max(time.monotonic() - self._begun, 1e-9)
        say(f"{self._name}: {rows:,} rows in {format_seconds(seconds)}, {rows / seconds:,.0f} rows/s")


@contextlib.contextmanager
def _threads() -> Iterator[None]:
    """Gives Dask a thread pool that is shut down only when every running task has ended.

    After an error, Dask abandons running tasks, which would go on writing into a folder that is being deleted.
    """
    if dask.config.get("scheduler", "threads") not in ("threads", "threading"):
        yield
        return
    pool = ThreadPoolExecutor(dask.config.get("num_workers", None) or dask.system.CPU_COUNT)
    try:
        with dask.config.set(pool=pool):
            yield
    finally:
        pool.shutdown(cancel_futures=True)


def _client() -> Any:
    """Returns the client of the connected cluster, or None."""
    if "distributed" not in sys.modules:  # importing it takes a second
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def _on_cluster(client: Any, tasks: Sequence[Any], finished: Callable[[Any, Any], None]) -> list[Any]:
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    futures = client.compute(list(tasks))
    results: dict[Any, Any] = {}
    try:
        for future in as_completed(futures):
            results[future.key] = future.result()
            finished(future.key, results[future.key])
    except KilledWorker as error:
        raise UserError(f"Dask gave up on a task whose workers kept dying: {error}") from None
    finally:
        client.cancel([future for future in futures if not future.done()])
        _wait_until_idle(client, {future.key for future in futures})
    return [results[future.key] for future in futures]


def _wait_until_idle(client: Any, keys: set[Any]) -> None:
    """Waits for cancelled tasks that were already running: Dask lets them run to their end."""
    until = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < until:
        executing = client.run(_executing, on_error="ignore")  # a worker may be dying
        if not keys & {key for running in executing.values() for key in running}:
            return
        time.sleep(0.1)


def _executing(dask_worker: Any) -> list[Any]:
    return [task.key for task in dask_worker.state.executing]
