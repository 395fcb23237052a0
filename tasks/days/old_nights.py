"""Deletes prepared data that no night needs any more: a folder per night would grow without bound.

Kept are the prepared folders of the last few nights of a dataset, whatever their entries, every folder that was made
within the last day (its night may be running), and the parsed files of all days since the oldest that a kept folder
holds. Raw files, registers, models and reports are never deleted, nor what other pipelines prepared and parsed.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import NamedTuple

from tasks.data.schema import NightFacts
from tasks.days.deliveries import deliveries
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json
from tasks.runtime.progress import counted, say

KEPT_NIGHTS = 3
_SPARED_SECONDS = 86_400


class _Folder(NamedTuple):
    """A prepared folder with the keys of its parsed files; ``night`` is None if another pipeline made it."""

    path: Path
    night: NightFacts | None
    parts: list[str]


def delete_old_nights(name: str, *, keep: int = KEPT_NIGHTS, spared_seconds: float = _SPARED_SECONDS) -> list[Path]:
    """Deletes the prepared folders of nights but the last ``keep``, and parsed files that only they used.

    Args:
        name: The name of the dataset.
        keep: How many nights to keep, counted by their newest days.
        spared_seconds: How old a folder or a parsed file must be to be deleted.

    Returns:
        The deleted folders.
    """
    folders = _folders(name)
    nights = sorted({folder.night["day"] for folder in folders if folder.night})
    old = [folder for folder in folders if folder.night and folder.night["day"] not in nights[-keep:]]
    old = [folder for folder in old if _is_old(folder.path, spared_seconds)]
    kept = [folder for folder in folders if folder not in old]
    deleted = [folder.path for folder in old]
    used = {key for folder in kept for key in folder.parts}
    oldest = min((day for folder in kept if folder.night for day in folder.night["days"]), default="")
    registered = {day: known for day, known in deliveries(name).items() if day < oldest}
    sources = {file["path"] for known in registered.values() for file in known["files"]}
    for path in (home() / "data" / name / "parts").glob("*/part.json"):
        part = path.parent
        if part.name not in used and _is_old(part, spared_seconds) and _source(path) in sources:
            deleted.append(part)
    for path in deleted:
        shutil.rmtree(path, ignore_errors=True)
    if deleted:
        parsed = counted(len(deleted) - len(old), "parsed file")
        say(f"{name}: deleted {counted(len(old), 'prepared folder')} and {parsed} of old nights")
    return deleted


def _folders(name: str) -> list[_Folder]:
    found = []
    for path in (home() / "data" / name).glob("*/schema.json"):
        try:
            schema = read_json(path)
        except (OSError, UserError):  # not ours, or being deleted
            continue
        found.append(_Folder(path.parent, schema.get("night"), schema.get("parts", [])))
    return found


def _is_old(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime >= seconds
    except OSError:
        return False


def _source(part: Path) -> str | None:
    try:
        return read_json(part)["source"]
    except (OSError, UserError):
        return None
