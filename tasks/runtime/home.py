"""The folder for generated files, and atomic, durable writes into it.

Everything the pipeline generates is in one folder: ``var/`` in the checkout, or ``DP_ADS_HOME``. It can be deleted at
any time.

A file or folder gets its name after its contents are on the disk, and the name is on the disk before the write counts
as done. So a power cut leaves the earlier version or the new one, never an empty file. What is not whole yet has a
hidden name, and its writer holds its lock (``tasks.owners.held``): without one, it is nobody's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tasks.owners.held import holding
from tasks.runtime.errors import UserError

CHECKOUT = Path(__file__).resolve().parent.parent.parent
# Environment variables with the addresses of the MLflow server and of the server of reports, set by ``make up`` for the
# processes it starts.
MLFLOW_AT = "DP_ADS_MLFLOW_AT"
REPORTS_AT = "DP_ADS_REPORTS_AT"


def home() -> Path:
    """Returns the absolute path of the folder for generated files."""
    return Path(os.environ.get("DP_ADS_HOME") or CHECKOUT / "var").expanduser().resolve()


def owners_alone(folder: Path) -> Path:
    """Makes a folder that its owner alone may enter, or closes it to others, and returns it.

    Files in it, also those that Airflow writes as readable by all, cannot be reached by anyone else.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def short_hash(value: Any, length: int = 16) -> str:
    """Returns a hash of a JSON-able value, for cache keys. The order of keys does not matter.

    >>> short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    True
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()[:length]


@contextlib.contextmanager
def whole_file(final: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yields a temporary path. The file is renamed to ``final`` if the block succeeds, and deleted otherwise.

    ``durable`` is False for files in a ``whole_directory``, which syncs them at its end, and for those deleted soon.
    """
    descriptor, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        with holding(temporary):
            yield temporary
            temporary.chmod(0o644)
            if durable:
                _sync(temporary)
            temporary.replace(final)
            if durable:
                _sync(final.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a text file atomically: no reader sees a part of it. Creates missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Writes a JSON file atomically. NaN and infinity are errors."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path, *, alone: bool = False) -> Any:
    """Reads a JSON file. Raises ``UserError`` if it is damaged.

    ``alone`` is whether the file can be deleted and made again without the others in its folder.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not JSON ({error})", alone=alone) from None


def as_fields(path: Path, value: Any) -> Any:
    """Returns the object that a JSON file holds, with a ``UserError`` that names the file for every missing key."""
    if not isinstance(value, dict):
        raise _damaged(path, "it is not a JSON object")
    return _Fields(path, value)


class _Fields(dict[str, Any]):
    def __init__(self, path: Path, value: dict[str, Any]) -> None:
        super().__init__(value)
        self._path = path

    def __missing__(self, key: str) -> Any:
        raise _damaged(self._path, f"it has no {key!r}")


def _damaged(path: Path, reason: str, *, alone: bool = False) -> UserError:
    return UserError(
        f"{path} is damaged: {reason}. Delete {'it' if alone else f'the folder {path.parent}'} and run again"
    )


@contextlib.contextmanager
def whole_directory(final: Path, *, mode: int = 0o755) -> Iterator[Path]:
    """Yields an empty temporary folder. It is renamed to ``final`` if the block succeeds, and deleted otherwise.

    If another process has created ``final`` in the meantime, that one is kept. ``mode`` is the folder's.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    try:
        with holding(temporary):
            yield temporary
            temporary.chmod(mode)
            _sync_tree(temporary)
            try:
                temporary.rename(final)
            except OSError:
                if not final.is_dir():
                    raise
            _sync(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _sync_tree(folder: Path) -> None:
    """Waits until a folder and everything below it is on the disk: what a folder holds, before the folder."""
    for below, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(below, name))
        _sync(Path(below))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def point_latest_at(folder: Path, name: str = "latest") -> None:
    """Points the symbolic link ``name`` beside ``folder`` to it, atomically."""
    temporary = folder.parent / f".{name}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, folder.parent / name)
    _sync(folder.parent)
