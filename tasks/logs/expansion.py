"""The limits of what a compressed file may become: a small file can be made that fills any disk."""

from __future__ import annotations

import shutil
from pathlib import Path

from tasks.runtime.errors import UserError

# Logs shrink to a fifth or a twentieth. Files that were made to fill a disk shrink to a thousandth and less.
MOST_EXPANSION = 200
# Below this many bytes, any expansion is harmless.
ALWAYS_ALLOWED = 256 << 20
# How much of the disk is left free.
_RESERVE, _RESERVED_SHARE = 1 << 30, 0.02


def is_suspicious(packed: int, unpacked: int) -> bool:
    """Returns whether so many bytes are more than a log of that size, compressed, becomes.

    >>> is_suspicious(1_000, 200_000), is_suspicious(10_000_000, 3_000_000_000)
    (False, True)
    """
    return unpacked > max(ALWAYS_ALLOWED, MOST_EXPANSION * packed)


def check_expansion(path: Path, packed: int, copy: Path, unpacked: int) -> None:
    """Raises ``UserError`` if a file's decompressed copy grew beyond the limit, or is about to fill its disk.

    Args:
        path: The compressed file, for the message.
        packed: Its size.
        copy: The decompressed copy, as far as it is written.
        unpacked: The number of bytes written to it.
    """
    if is_suspicious(packed, unpacked):
        raise UserError(
            f"the raw log {path} has {packed:,} bytes and becomes more than {unpacked:,} when it is decompressed: over "
            f"{MOST_EXPANSION} times as many, which no log does. If it is right, decompress it yourself and give the "
            "result"
        )
    disk = shutil.disk_usage(copy.parent)
    if disk.free < min(_RESERVE, _RESERVED_SHARE * disk.total):
        raise UserError(
            f"decompressing the raw log {path} fills the disk: after {unpacked / 1e9:,.1f} GB, {copy.parent} has "
            f"{disk.free / 1e9:,.1f} GB left. Free some, or choose a folder on another disk with DP_ADS_HOME"
        )
