"""Full disk: runs the pipeline on a real file system that fills up, at many levels, and counts what came of it.

``python -m benchmarks.faults.full_disk`` mounts a file system in memory, for which it must be root, and fills it so
that a run finds only a part of the room that it needs, each time another part. It must end with a sentence that says
so, and a run after the file that filled the disk was deleted must give the tables of a run with enough room.
Trainings save a checkpoint after every dispatch, so that the disk also fills in the middle of one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.steps import import_steps, in_a_process, run_all_steps, whole_or_refused
from tasks.outages.told import said_as

_MEGABYTES = 192
_SAYS = "no space left on the disk of"


def attempt() -> dict[str, Any]:
    """Runs all steps; returns the tables, or what was said."""
    try:
        return {"tables": run_all_steps(save_always=True)}
    except Exception as error:
        reason = said_as(error)
        if reason is None:
            raise
        return {"said": reason}


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mounts a small file system for the duration of the block."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_MEGABYTES}m", "tmpfs", str(folder)], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path, free: int) -> Path:
    """Writes a file that leaves so many bytes free; returns it."""
    filling = disk / "filling"
    with filling.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - free)
    return filling


def start(folder: Path, home: Path) -> None:
    """Makes the home that every run begins with: compiled programs and an empty store, which take long to make."""
    shutil.rmtree(home, ignore_errors=True)
    if (folder / "begun").exists():
        shutil.copytree(folder / "begun", home)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults.full_disk", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--levels", type=int, default=20, help="how many fill levels (default: 20)")
    parser.add_argument("--part", default="1/1", help="for example 2/4: the second of four parts of the levels")
    options = parser.parse_args()
    part, of = map(int, options.part.split("/"))
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    with tempfile.TemporaryDirectory() as temporary, small_disk(Path(temporary) / "disk") as disk:
        folder, home = Path(temporary), disk / "home"
        os.environ["DP_ADS_HOME"] = str(home)
        import_steps()
        expected, room = _whole_run(folder, home)
        counts: collections.Counter[str] = collections.Counter()
        for level in range(options.levels)[part - 1 :: of]:
            start(folder, home)
            free = int(room * (level + 0.5) / options.levels)
            outcome, told = _outcome(folder, disk, free, expected)
            counts[outcome] += 1
            print(f"{free / 1e6:6.2f} MB free of {room / 1e6:.2f} MB needed: {outcome}: {told}", flush=True)
    good = counts["said, and the table is the same after"] + counts["enough room"]
    print(f"{sum(counts.values())} levels: " + ", ".join(f"{number} {outcome}" for outcome, number in counts.items()))
    return 0 if good == sum(counts.values()) else 1


def _whole_run(folder: Path, home: Path) -> tuple[Any, int]:
    """Runs with enough room, twice, the second time from what every run begins with.

    Returns the tables and the bytes that such a run needs.
    """
    result, printed = in_a_process(folder, attempt)
    whole_or_refused(result and result.get("tables"), f"{printed}{result}")
    shutil.copytree(home / "cache" / "jax", folder / "begun" / "cache" / "jax")
    in_a_process(folder, lambda: _make_store(folder / "begun"))
    start(folder, home)
    before = shutil.disk_usage(home).free
    result, printed = in_a_process(folder, attempt)
    whole_or_refused(result and result.get("tables"), f"{printed}{result}")
    return result["tables"], before - shutil.disk_usage(home).free


def _make_store(home: Path) -> None:
    os.environ["DP_ADS_HOME"] = str(home)
    from tasks.runtime.tracking import open_client

    open_client().search_experiments()


def _outcome(folder: Path, disk: Path, free: int, expected: Any) -> tuple[str, str]:
    filling = fill(disk, free)
    result, printed = in_a_process(folder, attempt)
    filling.unlink()
    if result is None:
        return "traceback", "\n" + "\n".join(printed.strip().splitlines()[-12:])
    said = result.get("said", "")
    if said and _SAYS not in said:
        return "another sentence", said
    if not said:
        return ("enough room" if result["tables"] == expected else "another table"), ""
    after, printed = in_a_process(folder, attempt)
    if after is None or after.get("tables") != expected:
        return "the run after that fails", f"{said} {after} {printed[-1000:]}"
    return "said, and the table is the same after", said


if __name__ == "__main__":
    sys.exit(main())
