"""Processes that use a ledger at once, or are killed while they do; run as ``python -m``, without JAX."""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time

from tasks.config.nightly import TotalBudget
from tasks.ledger.book import Ledger, OverBudget, Release
from tasks.ledger.release import gaussian

_TOTAL = TotalBudget(epsilon=3.0, delta=5e-6)
_PAUSE = 0.02


def reserve_often(url: str, name: str, times: int, sigma: float, epsilon: float, delta: float) -> None:
    """Says ready, waits for a line, tries to reserve so often, and prints the keys that were accepted."""
    ledger, total = Ledger.open(url), TotalBudget(epsilon=epsilon, delta=delta)
    accepted = []
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(times):
        # SQLite's lock has no queue: whoever asks again at once may get it every time.
        time.sleep(_PAUSE)
        key = f"{name}/{number}"
        try:
            ledger.reserve(key, [Release("metric", gaussian(sigma), "clicks", ("2026-01-01", "2026-01-02"))], total)
            accepted.append(key)
        except OverBudget:
            pass
    print(json.dumps(accepted))


def killed_often(url: str, times: int, seed: int) -> None:
    """Starts processes that reserve and commit, kills each at a random moment, and prints what they had reported."""
    rng = random.Random(seed)
    reported: dict[str, list[str]] = {"reserved": [], "committed": []}
    broken: list[str] = []
    # The children find everything imported and ε worked out.
    Ledger.open(url).reserve("first", [Release("metric", gaussian(9.0), "first", ("2026-01-01",))], _TOTAL)
    for number in range(times):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            _work(url, number, writing)
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading) as lines:
            first = lines.readline()
            time.sleep(rng.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            for line in [first.rstrip(), *lines.read().splitlines()]:
                state, _, key = line.partition(" ")
                if state in reported:
                    reported[state].append(key)
        broken += Ledger.open(url).verify().problems
    print(json.dumps({**reported, "broken": broken}))


def _work(url: str, number: int, report: int) -> None:
    ledger = Ledger.open(url)
    for turn in range(28):
        key = f"child {number}/{turn}"
        releases = [Release("metric", gaussian(9.0), f"clicks {number}", (f"2026-01-{turn + 1:02d}",))]
        ledger.reserve(key, releases, _TOTAL)
        os.write(report, f"reserved {key}\n".encode())
        time.sleep(0.02)
        ledger.commit(key, releases)
        os.write(report, f"committed {key}\n".encode())


if __name__ == "__main__":
    if sys.argv[1] == "reserve":
        reserve_often(sys.argv[2], sys.argv[3], int(sys.argv[4]), *map(float, sys.argv[5:8]))
    else:
        killed_often(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
