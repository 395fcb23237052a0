"""Rot: damages each file of a finished home in turn, runs the pipeline again, and counts what came of it.

``python -m benchmarks.faults.rot`` makes a home with a small run. Then, for each file and each kind of damage, it
verifies the home, writes the last report again and runs the pipeline, in a process of its own. Outcomes are:

- named: a message names the damaged file, or the folder or store that it belongs to, and no table is another;
- harmless: nothing is said, and the tables are the same;
- wrong: another table;
- unnamed: an error that does not name the file;
- traceback: any other exception, or a process that was killed or hung.

The exit status is 1 if there is one of the last three.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.faults.steps import (
    OPTIONS,
    Tables,
    import_steps,
    in_a_process,
    run_all_steps,
    tables_of,
    whole_or_refused,
)
from tasks.outages.told import said_as

FAULTS = ("wrong", "unnamed", "traceback")
# What only Airflow reads: its part of the home is tried with the command that starts it.
_OF_AIRFLOW = ("airflow-run/", "cache/airflow-")
# Compiled programs are read by a process that trains.
_OF_TRAINING = ("cache/jax/",)


def _flip(path: Path, at: float) -> None:
    content = bytearray(path.read_bytes())
    content[int((len(content) - 1) * at)] ^= 1 << (int(80 * at) % 8)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit at 0.1 %": lambda path: _flip(path, 0.001),
    "a bit at 50 %": lambda path: _flip(path, 0.5),
    "a bit at 97 %": lambda path: _flip(path, 0.97),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "deleted": lambda path: path.unlink(),
}


class Rotting(NamedTuple):
    """A folder with a home and a copy of it as it was made, the run that made it, and its tables."""

    folder: Path
    earlier: str
    expected: Tables

    def restore(self) -> None:
        restore(self.folder)

    def outcome(self, name: str) -> tuple[str, str]:
        """Returns what came of the damage of a file, given by its path in the home, and what was said."""
        if name.startswith(_OF_AIRFLOW):
            return self._through_airflow(name)
        train = name.startswith(_OF_TRAINING)
        result, printed = in_a_process(self.folder, lambda: run_again(self.earlier, train=train))
        if result is None:
            return "traceback", printed
        told = "\n".join([printed, *result["said"]])
        if any(tables != self.expected for tables in result["tables"]):
            return "wrong", told
        if name in told:
            return "named", told
        if not result["said"]:
            return "harmless", told
        # What has to be deleted is a whole, and the message may name that.
        wholes = [str(parent) for parent in Path(name).parents if len(parent.parts) >= 2]
        return ("named" if any(whole in told for whole in wholes) else "unnamed"), told

    def _through_airflow(self, name: str) -> tuple[str, str]:
        done = subprocess.run([*_run(), "--json"], capture_output=True, text=True, check=False)
        told = done.stdout + done.stderr
        if "Traceback" in told or done.returncode not in (0, 2):
            return "traceback", told
        if done.returncode == 2:
            return ("named" if name in told else "unnamed"), told
        tables = tables_of(Path(json.loads(done.stdout)["page"]).parent)
        return ("wrong" if tables != self.expected else "named" if name in told else "harmless"), told


def make_home(folder: Path) -> None:
    """Runs the pipeline once, through Airflow, in ``folder / "home"``, and keeps a copy in ``folder / "kept"``."""
    subprocess.run(_run(), check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(folder / "home", folder / "kept", symlinks=True)


def restore(folder: Path) -> None:
    """Makes the home as it was after its run."""
    shutil.rmtree(folder / "home", ignore_errors=True)
    shutil.copytree(folder / "kept", folder / "home", symlinks=True)


def run_again(earlier: str, *, train: bool = False) -> dict[str, Any]:
    """Verifies the home, writes the earlier report again and runs all steps; returns the tables and what was said.

    ``train``: throws some trials away before, so that they are trained again.
    """
    from tasks.report import report
    from tasks.verify import verify

    attempts: list[Callable[[], Tables]] = [run_all_steps]
    if train:
        for folder in sorted((Path(os.environ["DP_ADS_HOME"]) / "trials").glob("[!.]*"))[:2]:
            shutil.rmtree(folder)
    else:
        attempts.insert(0, lambda: tables_of(Path(report(earlier)["page"]).parent))
    tables, said = [], list(verify()["problems"])
    for attempt in attempts:
        try:
            tables.append(attempt())
        except Exception as error:
            reason = said_as(error)
            if reason is None:
                raise
            said.append(reason)
    return {"tables": tables, "said": said}


def _run() -> list[str]:
    return [
        *(sys.executable, "-m", "tasks", "run", "--pipeline", OPTIONS["pipeline"], "--profile", OPTIONS["profile"]),
        *("--tasks", ",".join(OPTIONS["tasks"]), "--epsilons", ",".join(map(str, OPTIONS["epsilons"]))),
        *("--seeds", str(OPTIONS["seeds"])),
    ]


def _files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            yield path.relative_to(folder).as_posix()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.faults.rot", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--folder", type=Path, help="where to work; a home that was made there before is used again")
    parser.add_argument("--only", default="", help="only files whose paths in the home begin so")
    parser.add_argument("--part", default="1/1", help="for example 2/4: the second of four parts of the cases")
    options = parser.parse_args()
    part, of = map(int, options.part.split("/"))
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)).resolve()
        os.environ["DP_ADS_HOME"] = str(folder / "home")
        os.environ.pop("MLFLOW_TRACKING_URI", None)
        if not (folder / "kept").exists():
            make_home(folder)
        import_steps()
        restore(folder)
        earlier = str(next(path for path in (folder / "home" / "runs").glob("*/2*")))
        whole, printed = in_a_process(folder, lambda: run_again(earlier))
        whole_or_refused((whole and not whole["said"]) or None, f"{printed}{whole}")
        cases = [(name, kind) for name in _files(folder / "kept") if name.startswith(options.only) for kind in DAMAGES]
        return _damage_all(Rotting(folder, earlier, whole["tables"][0]), cases[part - 1 :: of])


def _damage_all(rotting: Rotting, cases: list[tuple[str, str]]) -> int:
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for name, kind in cases:
        rotting.restore()
        DAMAGES[kind](rotting.folder / "home" / name)
        outcome, told = rotting.outcome(name)
        counts[kind][outcome] += 1
        if outcome in FAULTS:
            print(f"{outcome}: {name}, {kind}\n    " + "\n    ".join(told.strip().splitlines()[-12:]), flush=True)
    total: collections.Counter[str] = collections.Counter()
    for kind, found in counts.items():
        total += found
        print(f"{kind}: {_text(found)}")
    print(f"{sum(total.values())} damages of {len({name for name, _ in cases})} files: {_text(total)}")
    return 1 if any(total[fault] for fault in FAULTS) else 0


def _text(counts: collections.Counter[str]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("named", "harmless", *FAULTS))


if __name__ == "__main__":
    sys.exit(main())
