"""Compressed files that would fill the disk are refused early; paths that cannot be read, by name."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tasks.logs import expansion
from tasks.logs.files import find_files, inspect_file
from tasks.logs.formats import LOG_FORMATS
from tasks.runtime.errors import UserError


@pytest.fixture
def bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files of zeros, each in a thousandth of its size or less."""
    monkeypatch.setattr(expansion, "ALWAYS_ALLOWED", 8 << 20)
    zeros = b"\0" * (64 << 20)
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(zeros, 9))
    (tmp_path / "bomb.zst").write_bytes(pa.compress(zeros, "zstd", asbytes=True))
    return tmp_path


@pytest.mark.parametrize("name", ["bomb.gz", "bomb.zst"])
def test_a_bomb_is_refused_early(bombs: Path, name: str) -> None:
    copy = bombs / "copy"
    with pytest.raises(UserError, match=r"over 200 times as many, which no log does. If it is right, decompress it"):
        inspect_file(bombs / name).decompress(copy)
    assert not copy.exists()


def test_the_check_of_a_run_does_not_read_it_all(bombs: Path) -> None:
    began = time.monotonic()
    assert LOG_FORMATS["tsv"].most_rows(inspect_file(bombs / "bomb.gz"), 10**9) is None
    assert time.monotonic() - began < 5


def test_a_log_that_shrinks_well_is_no_bomb(tmp_path: Path) -> None:
    text = b"".join(b"%d\t0\ta\n" % (n % 7) for n in range(500_000))
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(text))
    inspect_file(packed).decompress(tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == text


def test_a_disk_that_fills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disk:
        total, free = 100 << 30, 100 << 20

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Disk)
    packed = tmp_path / "log.gz"
    packed.write_bytes(gzip.compress(b"one\n"))
    with pytest.raises(UserError, match=r"fills the disk: after 0.0 GB, .* has 0.1 GB left. Free some, or .*HOME"):
        inspect_file(packed).decompress(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ("a\0b", "has a character that no path has"),
        ("x" * 300, "File name too long"),
        ("/y" * 3000, "File name too long"),
        ("~nobody-of-that-name/log", "the name of a user who has no home"),
    ],
)
def test_paths_that_cannot_be(raw: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        find_files([raw])


def test_a_folder_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files would be left out without a word. The error is made up where root runs the tests, who may read all."""
    closed = tmp_path / "logs" / "closed"
    closed.mkdir(parents=True)
    (tmp_path / "logs" / "a.tsv").write_text("x")
    closed.chmod(0)
    scandir = os.scandir

    def refuse(path: Any) -> Any:
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    try:
        with pytest.raises(UserError, match=rf"^cannot read the raw log {closed}: Permission denied$"):
            find_files([tmp_path / "logs"])
    finally:
        closed.chmod(0o755)
