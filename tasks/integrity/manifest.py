"""The manifest of a folder: the name, size and checksum of each of its files, written last.

``check_folder`` reads every file and compares it with the manifest, once. After that a large file is compared by its
size, times and inode alone, in all processes of this home; a small one is read once by each process. A folder of an
earlier version has no manifest: it is taken as it is, and its owner says so.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from tasks.integrity.sealed import Damaged, seal, unseal
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, write_json

MANIFEST = "manifest.json"

# Files up to this size are read by every process: it takes a few milliseconds.
SMALL_BYTES = 1 << 20
_AT_ONCE = 1 << 20


class Entry(NamedTuple):
    """A file of a manifest: its size in bytes, and its checksum."""

    size: int
    checksum: str


class _Identity(NamedTuple):
    """What changes when a file is written. A program that sets the time of writing does not set ``changed``."""

    inode: int
    size: int
    written: int
    changed: int


# Path -> what it was when its checksum was computed, and the checksum.
_known: dict[Path, tuple[_Identity, str]] = {}
_manifests: dict[Path, tuple[_Identity, dict[str, Entry]]] = {}
_remembering = threading.Lock()


def write_manifest(folder: Path, names: Iterable[str] | None = None) -> None:
    """Writes the manifest of the named files, or of all that are in a folder now. Those added later are not in it."""
    names = sorted(_files(folder) if names is None else names)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        checksums = list(pool.map(lambda name: _read(folder / name), names))
    files = {name: [(folder / name).stat().st_size, checksum] for name, checksum in zip(names, checksums, strict=True)}
    write_json(folder / MANIFEST, seal({"files": files}))


def read_manifest(folder: Path) -> dict[str, Entry] | None:
    """Returns the files that a manifest lists, by their paths in the folder; None if the folder has no manifest.

    Raises ``Damaged`` if the manifest is.
    """
    path = folder / MANIFEST
    try:
        identity = _identity(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    kept = _manifests.get(path)
    if kept is not None and kept[0] == identity:
        return kept[1]
    value, _ = unseal(path, _parsed(path, folder), advice=_advice(folder))
    try:
        files = {str(name): Entry(int(size), str(checksum)) for name, (size, checksum) in value["files"].items()}
    except (AttributeError, KeyError, TypeError, ValueError):
        raise Damaged(f"{path} is damaged: it is not a manifest. {_advice(folder)}") from None
    _manifests[path] = identity, files
    return files


def check_folder(folder: Path, *, fully: bool = False) -> frozenset[str] | None:
    """Compares every file of a folder with the manifest.

    Args:
        folder: The folder.
        fully: Whether to read all files again, also those that have not changed since they were read last.

    Returns:
        The names of the files that were read now; None if the folder has no manifest.

    Raises:
        Damaged: A file is missing or not what was written. The message names the first, and what to delete.
    """
    files = read_manifest(folder)
    if files is None:
        return None
    wrong = list(_wrong_sizes(folder, files))
    if wrong:
        raise Damaged(f"{wrong[0]}. {_advice(folder)}")
    remembered = {} if fully else _remembered(folder)
    read = [name for name in files if fully or not _is_known(folder / name, files[name], remembered.get(name))]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = list(pool.map(lambda name: _checksum(folder / name), read))
    for name, checksum in zip(read, found, strict=True):
        if checksum != files[name].checksum:
            raise Damaged(
                f"{folder / name} is damaged: its contents do not have the checksum they were written with. "
                f"{_advice(folder)}"
            )
    if any(files[name].size > SMALL_BYTES for name in read):
        _remember(folder, files)
    return frozenset(read)


def checksum_of(path: Path) -> str:
    """Returns the checksum of a file, which is read once per process unless it changes."""
    kept = _known.get(path)
    return kept[1] if kept is not None and kept[0] == _identity(path) else _checksum(path)


def _wrong_sizes(folder: Path, files: dict[str, Entry]) -> Iterator[str]:
    for name, entry in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            yield f"{path} is missing"
            continue
        except OSError as error:
            yield f"{path} cannot be read: {error.strerror}"
            continue
        if not path.is_file():
            yield f"{path} is not a file"
        elif size != entry.size:
            yield f"{path} is damaged: it has {size:,} bytes instead of {entry.size:,}"


def _is_known(path: Path, entry: Entry, remembered: _Identity | None) -> bool:
    identity, kept = _identity(path), _known.get(path)
    if kept is not None and kept == (identity, entry.checksum):
        return True
    return entry.size > SMALL_BYTES and remembered == identity


def _checksum(path: Path) -> str:
    identity = _identity(path)  # before reading: what is written meanwhile is another identity
    checksum = _read(path)
    _known[path] = identity, checksum
    return checksum


def _read(path: Path) -> str:
    hashed = hashlib.blake2b(digest_size=16)
    try:
        with path.open("rb") as file:
            while piece := file.read(_AT_ONCE):
                hashed.update(piece)
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from None
    return hashed.hexdigest()


def _files(folder: Path) -> Iterator[str]:
    for below, _, names in os.walk(folder):
        for name in names:
            path = Path(below, name)
            if path != folder / MANIFEST:
                yield path.relative_to(folder).as_posix()


def _identity(path: Path) -> _Identity:
    status = path.stat()
    return _Identity(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _memory_of(folder: Path) -> Path:
    return home() / "cache" / "checked" / f"{short_hash(str(folder.resolve()))}.json"


def _remembered(folder: Path) -> dict[str, _Identity]:
    """Returns what large files of a folder were when they were read last; nothing if that is not known."""
    try:
        kept = read_json(_memory_of(folder), alone=True)
        if kept["manifest"] != checksum_of(folder / MANIFEST):
            return {}
        return {str(name): _Identity(*map(int, identity)) for name, identity in kept["files"].items()}
    except (OSError, UserError, AttributeError, KeyError, TypeError, ValueError):
        return {}


def _remember(folder: Path, files: dict[str, Entry]) -> None:
    large = {name: list(_identity(folder / name)) for name, entry in files.items() if entry.size > SMALL_BYTES}
    try:
        with _remembering:
            write_json(_memory_of(folder), {"manifest": checksum_of(folder / MANIFEST), "files": large})
    except OSError:  # read-only or full: the next process reads the files again
        pass


def _parsed(path: Path, folder: Path) -> object:
    try:
        return read_json(path)
    except UserError as error:
        raise Damaged(str(error)) from None
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}. {_advice(folder)}") from None


def _advice(folder: Path) -> str:
    return f"Delete the folder {folder} and run again"
