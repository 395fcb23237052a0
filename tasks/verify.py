"""Full verification of what results rest on: every file under the home that carries a checksum is read and compared."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypedDict

from tasks.data.prepared import check_tokens, open_prepared
from tasks.integrity.manifest import MANIFEST, check_folder, read_manifest
from tasks.privacy.cached_accounting import cache_folder, read_answer
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.training.checkpoint import ATTEMPTS, UNFINISHED
from tasks.training.finished import FinishedTrial


class Verified(TypedDict):
    """What was found.

    Attributes:
        checked: How many there are of each kind: prepared data, trials, checkpoints, cached answers.
        without_manifest: The folders that an earlier version wrote, without checksums.
        problems: A line for each that is damaged, with what to delete or run.
    """

    checked: dict[str, int]
    without_manifest: list[str]
    problems: list[str]


class _Kind(NamedTuple):
    found: Callable[[], Iterator[Path]]
    verify: Callable[[Path], None]


def verify() -> Verified:
    """Reads everything under the home that carries a checksum, and says what is damaged. Changes nothing."""
    result: Verified = {"checked": {}, "without_manifest": [], "problems": []}
    for kind, (found, check) in _KINDS.items():
        paths = sorted(found())
        result["checked"][kind] = len(paths)
        for path in paths:
            try:
                if path.is_dir() and read_manifest(path) is None:
                    result["without_manifest"].append(str(path))
                check(path)
            except UserError as error:
                result["problems"].append(" ".join(str(error).splitlines()))
            except OSError as error:
                result["problems"].append(f"{path} cannot be read: {error.strerror}")
    return result


def _prepared_folders() -> Iterator[Path]:
    for name in ("schema.json", MANIFEST):
        for path in (home() / "data").glob(f"*/*/{name}"):
            if name == MANIFEST or not (path.parent / MANIFEST).exists():
                yield path.parent


def _verify_prepared(folder: Path) -> None:
    check_folder(folder, fully=True)
    prepared = open_prepared(folder)
    for split in prepared.splits:
        check_tokens(prepared, split)


def _trial_folders() -> Iterator[Path]:
    folder = home() / "trials"
    return (folder / name for name in _names(folder) if not name.startswith("."))


def _verify_trial(folder: Path) -> None:
    finished = FinishedTrial(folder)
    finished.check(fully=True)
    _ = finished.record
    if not finished.diverged and read_manifest(folder) is None:
        finished.read_parameters()
    if finished.is_audited:
        _ = finished.audit


def _checkpoints() -> Iterator[Path]:
    folder = home() / "trials" / UNFINISHED
    names = (name for name in _names(folder) if not name.startswith(".") and not name.endswith(ATTEMPTS))
    return (folder / name for name in names)


def _verify_checkpoint(folder: Path) -> None:
    if check_folder(folder, fully=True) is None:
        raise UserError(f"the checkpoint {folder} has no manifest: it is not used. Delete it")


def _answers() -> Iterator[Path]:
    return cache_folder().glob("*.json")


def _verify_answer(path: Path) -> None:
    read_answer(path)


def _databases() -> Iterator[Path]:
    return (path for folder in ("mlflow", "airflow", "airflow-run", "cache") for path in (home() / folder).glob("*.db"))


def _verify_database(path: Path) -> None:
    """Asks SQLite, which finds damage to what a database is built of, but not another digit in a value."""
    advice = "Move it away and run again: a new one is made"
    try:
        with contextlib.closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as opened:
            [found] = opened.execute("PRAGMA integrity_check(1)").fetchone()
    except sqlite3.Error as error:
        raise UserError(f"{path} is damaged: {error}. {advice}") from None
    if found != "ok":
        raise UserError(f"{path} is damaged: {' '.join(found.split())}. {advice}")


def _names(folder: Path) -> list[str]:
    return os.listdir(folder) if folder.is_dir() else []


_KINDS = {
    "prepared data": _Kind(_prepared_folders, _verify_prepared),
    "trials": _Kind(_trial_folders, _verify_trial),
    "checkpoints": _Kind(_checkpoints, _verify_checkpoint),
    "cached answers": _Kind(_answers, _verify_answer),
    "databases": _Kind(_databases, _verify_database),
}
