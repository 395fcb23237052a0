"""Finds the files of a log, given as a file, a folder, a pattern or a list of these.

Files are in the natural order of their names: ``day_2`` comes before ``day_10``. Folders named ``name=value``, as in
``day=2023-10-01/part-0.parquet``, can be used as columns with one value per file. In a pattern, ``{day}`` stands for
the day of a log that comes by days.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tasks.logs.expansion import check_expansion
from tasks.runtime.errors import UserError

_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"(\xb5/\xfd": "zstd",
    b"PK\x03\x04": "zip",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
}
# In `raw`, stands for the day of a log that comes by days: /data/clicks/day={day}/*.parquet.
DAY = "{day}"
_READABLE = ("gzip", "zstd")
_PIECE = 4 << 20


class IncompleteFile(UserError):
    """A file that ends before its end: perhaps it is still being written."""


@dataclass(frozen=True)
class RawFile:
    """A readable, non-empty file. Equal path, size and modification time are taken to mean equal content.

    ``contents`` is a digest of the bytes where it is known; then it takes the place of the modification time.
    """

    path: Path
    size: int
    modified: int
    compression: str | None
    contents: str | None = field(default=None, compare=False)

    @property
    def identity(self) -> tuple[str, int, int | str]:
        """Equal for files that need not be read again; part of cache keys."""
        return str(self.path), self.size, self.modified if self.contents is None else self.contents

    @property
    def path_values(self) -> dict[str, str]:
        """The columns in its path, with their values.

        >>> RawFile(Path("logs/day=2023-10-01/0.csv"), 1, 0, None).path_values
        {'day': '2023-10-01'}
        """
        pieces = (piece.partition("=") for piece in self.path.parts[:-1])
        return {name: value for name, equals, value in pieces if name.isidentifier() and equals}

    def check_path_columns(self, names: Sequence[str]) -> None:
        """Raises a ``UserError`` if the path lacks one of the columns."""
        for name in names:
            if name not in self.path_values:
                raise UserError(f"{name!r} is in `path_columns`, but the path {self.path} has no folder {name}=…")

    def is_unchanged(self) -> bool:
        try:
            return inspect_file(self.path) == self
        except UserError:
            return False

    def decompress(self, copy: Path) -> None:
        """Writes the decompressed content to ``copy``. Raises ``UserError`` if it is broken, or suspiciously large."""
        # The check of a run's options finds files too, and should not wait for Arrow.
        import pyarrow as pa

        try:
            with pa.input_stream(str(self.path), compression=self.compression) as packed, copy.open("wb") as file:
                while piece := packed.read(_PIECE):
                    file.write(piece)
                    check_expansion(self.path, self.size, copy, file.tell())
        except UserError:
            copy.unlink(missing_ok=True)
            raise
        except pa.ArrowException as error:
            raise IncompleteFile(f"{self.path} is not a complete {self.compression} file: {error}") from None
        except OSError as error:
            if error.errno is not None:  # an error of the machine, not of the file
                raise
            raise IncompleteFile(f"{self.path} is not a complete {self.compression} file: {error}") from None


def find_files(raw: Sequence[str | Path]) -> list[RawFile]:
    """Returns every file of a log once, in order. Raises a ``UserError`` if one is missing or cannot be read.

    A log that comes by days is read whole: ``{day}`` matches every day.
    """
    return [inspect_file(path) for path in find_paths([str(item).replace(DAY, "*") for item in raw])]


def find_paths(raw: Sequence[str]) -> list[Path]:
    """Returns the path of every file of a log once, in order. Raises a ``UserError`` if there is none."""
    found: dict[Path, None] = {}
    for item in raw:
        try:
            if "\0" in item:
                raise UserError(f"the raw log {item!r} has a character that no path has")
            found |= dict.fromkeys(_matching(item))
        except OSError as error:
            raise UserError(f"cannot read the raw log {error.filename or item}: {error.strerror}") from None
        except RuntimeError:
            raise UserError(f"the raw log {item} begins with ~ and the name of a user who has no home") from None
    return list(found)


def inspect_file(path: Path) -> RawFile:
    """Returns the file at a path. Raises a ``UserError`` unless it is a readable, non-empty file."""
    try:
        if not path.exists():
            raise UserError(f"the raw log {path.absolute()} does not exist")
        if not path.is_file():
            raise UserError(f"the raw log {path} is not a regular file")
        status = path.stat()
        with path.open("rb") as file:
            first = file.read(8)
    except OSError as error:
        raise UserError(f"cannot read the raw log {path}: {error.strerror}") from None
    if not first:
        raise UserError(f"the raw log {path} is empty")
    compression = next((name for magic, name in _COMPRESSED.items() if first.startswith(magic)), None)
    if compression not in (None, *_READABLE):
        raise UserError(
            f"the raw log {path} is compressed with {compression}: decompress it first "
            f"({' and '.join(_READABLE)} can be read as they are)"
        )
    return RawFile(path.resolve(), status.st_size, status.st_mtime_ns, compression)


def _matching(item: str) -> Iterator[Path]:
    path = Path(item).expanduser()
    if path.is_dir():
        # Spark and others put hidden files of their own beside the data.
        inside = (file for file in _inside(path) if file.is_file() and not _is_hidden(file.relative_to(path)))
        files = sorted(inside, key=_natural)
        if not files:
            raise UserError(f"the raw log {path} is a folder without files")
        yield from files
    elif path.exists() or not glob.has_magic(item):
        yield path
    else:
        files = sorted((Path(p) for p in glob.glob(str(path), recursive=True) if Path(p).is_file()), key=_natural)
        if not files:
            raise UserError(f"the raw log {path.absolute()} does not exist: no file matches the pattern")
        yield from files


def _inside(folder: Path) -> Iterator[Path]:
    """Yields all files in a folder. Raises ``OSError`` at one that may not be read: its files would be left out."""

    def refuse(error: OSError) -> None:
        raise error

    for parent, _, names in os.walk(folder, onerror=refuse):
        yield from (Path(parent, name) for name in names)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _natural(path: Path) -> tuple[tuple[int, int | str], ...]:
    """Returns a sort key that compares numbers in names as numbers.

    >>> sorted([Path("day_10"), Path("day_9")], key=_natural)[0].name
    'day_9'
    """
    pieces = re.split(r"(\d+)", str(path))
    return tuple((0, int(piece)) if piece.isdecimal() else (1, piece) for piece in pieces if piece)
