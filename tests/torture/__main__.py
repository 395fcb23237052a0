"""``python -m tests.torture``: tortures the scenes for some time and prints how many runs came to the same end."""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.torture.scenes import SCENES, import_all, steps_before, told

# Of all kills, those at a random moment; the others are at the file operations in turn.
_AT_RANDOM = 0.25
_SAY_EVERY_SECONDS = 30.0


class Torturer:
    """Runs scenes in forked processes, on copies of a home folder that is ready for them."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._folder, self._rng = folder, rng
        self._home = folder / "home"
        self._ready: dict[str, Path] = {}
        self._expected: dict[str, str] = {}
        self._seconds: dict[str, float] = {}
        self.points: dict[str, int] = {}

    def get_ready(self, name: str) -> None:
        """Makes the home folder that a scene starts from, and runs the scene without a kill."""
        os.environ["DP_ADS_CONFIG"] = str(self._folder / SCENES[name].config)
        self._restore(self._folder / "empty")
        status, said = self._fork(lambda: [step() for step in steps_before(name)])
        assert status == 0, f"the steps before {name} failed:\n{said}"
        self._ready[name] = self._folder / f"ready for {name}"
        shutil.copytree(self._home, self._ready[name], symlinks=True)
        for turn in range(2):  # the first one fills the cache of compiled programs
            started = time.monotonic()
            status, said = self._fork(lambda: self._counted(name))
            self._seconds[name] = time.monotonic() - started
            assert status == 0, f"{name} fails without a kill:\n{said}"
            points, _, self._expected[name] = said.partition("\n")
            self.points[name] = int(points)
            if turn == 0 and (self._home / "cache").exists():
                shutil.copytree(self._home / "cache", self._ready[name] / "cache", dirs_exist_ok=True)
            self._restore(self._ready[name])

    def kill_and_run_again(self, name: str, point: int | None) -> str | None:
        """Kills a scene at a point, or at a random moment if it is None, and runs it again.

        Returns what is wrong; an empty text if nothing is; None if the scene ended before it was killed.
        """
        os.environ["DP_ADS_CONFIG"] = str(self._folder / SCENES[name].config)
        self._restore(self._ready[name])
        moment = None if point is not None else self._rng.uniform(0, self._seconds[name])
        status, _ = self._fork(lambda: self._killed(name, point), after=moment)
        if status != -signal.SIGKILL:
            return None
        status, said = self._fork(lambda: self._again(name))
        if status != 0:
            return f"the rerun failed with status {status}:\n{said}"
        return "" if said == self._expected[name] else f"another outcome:\n{said}\ninstead of\n{self._expected[name]}"

    def _counted(self, name: str) -> str:
        from tests.torture.faults import Points

        points = Points(None)
        SCENES[name].step()
        return f"{points.stop()}\n{told(SCENES[name].outcome())}"

    def _killed(self, name: str, point: int | None) -> str:
        from tests.torture.faults import Points

        if point is not None:
            Points(point)
        SCENES[name].step()
        return ""

    def _again(self, name: str) -> str:
        from tasks.owners import sweeping

        sweeping._MOMENT_SECONDS = 0.0
        sweeping.sweep()
        SCENES[name].step()
        outcome = told(SCENES[name].outcome())
        assert not list(sweeping._unfinished()), "nothing half-written is left"
        return outcome

    def _restore(self, ready: Path) -> None:
        shutil.rmtree(self._home, ignore_errors=True)
        if ready.exists():
            shutil.copytree(ready, self._home, symlinks=True)
        else:
            self._home.mkdir()

    def _fork(self, work: Callable[[], Any], after: float | None = None) -> tuple[int, str]:
        """Does work in a child, killed after so many seconds. Returns its status and what the work returned or said."""
        answer = self._folder / "answer"
        answer.unlink(missing_ok=True)
        child = os.fork()
        if child == 0:
            status = 1
            with contextlib.suppress(BaseException):
                output = os.open(self._folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                os.dup2(output, 1)
                os.dup2(output, 2)
                try:
                    text, status = str(work()), 0
                except BaseException:
                    text = traceback.format_exc()
                descriptor = os.open(answer, os.O_WRONLY | os.O_CREAT)
                os.write(descriptor, text.encode())
            os._exit(status)
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status), answer.read_text() if answer.exists() else ""


def torture(names: list[str], seconds: float, seed: int) -> int:
    """Tortures scenes for some time and prints the counts. Returns the number of runs that came to another end."""
    rng = random.Random(seed)
    print(f"torture: {', '.join(names)}; seed {seed}, {seconds:g} s", flush=True)
    import_all(names)
    same, wrong = Counter[str](), Counter[str]()
    with _configured() as folder:
        torturer = Torturer(folder, rng)
        for name in names:
            torturer.get_ready(name)
            print(f"{name}: {torturer.points[name]} points", flush=True)
        left = [(name, point) for name in names for point in range(torturer.points[name])]
        rng.shuffle(left)
        until = time.monotonic() + seconds
        said = time.monotonic()
        while time.monotonic() < until:
            at_random = not left or rng.random() < _AT_RANDOM
            name, point = (rng.choice(names), None) if at_random else left.pop()
            found = torturer.kill_and_run_again(name, point)
            if found is None:
                continue
            (wrong if found else same)[name] += 1
            if time.monotonic() - said > _SAY_EVERY_SECONDS:
                said = time.monotonic()
                print(f"{same.total()} of {same.total() + wrong.total()} so far", flush=True)
            if found:
                at = "a random moment" if point is None else f"point {point}"
                print(f"✗ {name}, killed at {at}: {found}", flush=True)
    for name in names:
        print(f"{name}: {same[name]} of {same[name] + wrong[name]} came to the same end")
    print(f"{same.total()} of {same.total() + wrong.total()}; {len(left)} points were not reached; seed {seed}")
    return wrong.total()


@contextlib.contextmanager
def _configured() -> Iterator[Path]:
    """Yields a folder with raw logs and a configuration, and points the steps at them."""
    from tests.dags.test_seven_nights import CONFIG as NIGHTS
    from tests.dags.test_seven_nights import GOOD
    from tests.support.reports import CONFIG, GRID
    from tests.support.trials import make_prepared

    small = GRID.replace("[2, 8]", "[8]").replace("seeds: 2", "seeds: 1").replace("[1, 3]", "1")
    with tempfile.TemporaryDirectory(prefix="torture-") as name:
        folder = Path(name).resolve()
        raw = folder / "raw" / "clicks.parquet"
        (folder / "pipelines.yaml").write_text(CONFIG.replace(GRID, small).replace("RAW", str(raw)))
        (folder / "nights.yaml").write_text(NIGHTS.replace("SETTINGS", GOOD).replace("EPSILON", "1"))
        os.environ["DP_ADS_HOME"] = str(folder / "first")
        for variable in ("MLFLOW_TRACKING_URI", "DP_ADS_LEDGER", "DP_ADS_RUN"):
            os.environ.pop(variable, None)
        make_prepared(folder / "raw")  # for its raw log
        os.environ["DP_ADS_HOME"] = str(folder / "home")
        yield folder


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=None, help="by default a new one, which is printed")
    parser.add_argument("--scenes", default=",".join(SCENES), help=f"some of {','.join(SCENES)}")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
    warnings.filterwarnings("ignore", message=".*use of fork", category=DeprecationWarning)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    return 1 if torture(options.scenes.split(","), options.seconds, seed) else 0


if __name__ == "__main__":
    sys.exit(main())
