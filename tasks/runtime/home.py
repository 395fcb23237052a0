"""Where generated files live, and how they are written: whole, or not at all.

Everything the pipeline makes is below one folder, ``var/`` in the checkout, that may be deleted
at any time. ``DP_ADS_HOME`` moves it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent.parent
# The variable by which ``make up`` tells the processes that it starts where it serves MLflow.
MLFLOW_AT = "DP_ADS_MLFLOW_AT"


def home() -> Path:
    """The folder for everything generated, as an absolute path."""
    return Path(os.environ.get("DP_ADS_HOME") or CHECKOUT / "var").expanduser().resolve()


def short_hash(value: Any, length: int = 16) -> str:
    """A key for a JSON-able value: equal values, in any order of their keys, have equal hashes.

    >>> short_hash({"a": 1, "b": 2}) == short_hash({"b": 2, "a": 1})
    True
    """
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()[:length]


@contextlib.contextmanager
def whole_file(final: Path) -> Iterator[Path]:
    """Yields a path beside ``final`` whose file becomes it if the block ends well, and else is deleted."""
    descriptor, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name}.")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o644)
        temporary.replace(final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file under a temporary name and renames it, so that no reader sees a part of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@contextlib.contextmanager
def whole_directory(final: Path) -> Iterator[Path]:
    """Yields an empty folder that becomes ``final`` if the block ends well, and else is deleted.

    If another process finished the same folder in the meantime, that one stays.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=final.parent, prefix=f".{final.name}."))
    try:
        yield temporary
        temporary.chmod(0o755)
        try:
            temporary.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def point_latest_at(folder: Path) -> None:
    """Makes ``latest`` beside ``folder`` a link to it, replacing the earlier one in one step."""
    temporary = folder.parent / f".latest.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(folder.name)
    os.replace(temporary, folder.parent / "latest")
