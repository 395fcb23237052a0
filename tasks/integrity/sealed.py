"""JSON objects that carry their own checksum, for files that are written one by one.

A sealed object has one more key, ``seal``: the checksum of everything else, and ``about``, the checksums of the files
that the object was made from. It is one file, so it is replaced whole, and two writers cannot mix theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.runtime.errors import UserError

SEAL = "seal"


class Damaged(UserError):
    """A file is not what was written. The message names it."""


def seal(value: Mapping[str, Any], about: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns an object with its seal. ``about`` are checksums of files by name, which the checksum covers too.

    >>> sorted(seal({"answer": 1.5}))
    ['answer', 'seal']
    """
    kept = dict(about or {})
    return {**value, SEAL: {"checksum": _checksum(value, kept), "about": kept}}


def unseal(path: Path, value: Any, *, advice: str, required: bool = True) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns a sealed object that was read from a file, without its seal, and what it is about.

    Args:
        path: The file, for the message.
        value: What it holds.
        advice: The end of the message: what to delete or run.
        required: Whether an object without a seal is refused. Earlier versions wrote none.

    Raises:
        Damaged: The contents are not those that were sealed.
    """
    if not isinstance(value, dict):
        raise Damaged(f"{path} is damaged: it is not a JSON object. {advice}")
    rest = {name: item for name, item in value.items() if name != SEAL}
    if SEAL not in value:
        if required:
            raise Damaged(f"{path} is damaged: it has no checksum of its contents. {advice}")
        return rest, {}
    found = value[SEAL]
    about = found.get("about") if isinstance(found, dict) else None
    if not isinstance(about, dict) or found.get("checksum") != _checksum(rest, about):
        raise Damaged(f"{path} is damaged: its contents do not have the checksum they were written with. {advice}")
    return rest, about


def _checksum(value: Mapping[str, Any], about: Mapping[str, str]) -> str:
    canonical = json.dumps([value, about], sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
