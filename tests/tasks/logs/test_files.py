"""The files of a log: their order, the columns in their paths, and their compression."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tasks.logs.files import RawFile, find_files, inspect_file
from tasks.runtime.errors import UserError


def touch(path: Path, content: bytes = b"x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def test_folders_patterns_and_lists_in_natural_order(tmp_path: Path) -> None:
    for name in ["day_10/b.tsv", "day_9/a.tsv", "day_9/_SUCCESS", "day_9/.a.tsv.crc", "other.csv"]:
        touch(tmp_path / name)
    names = [file.path.relative_to(tmp_path).as_posix() for file in find_files([tmp_path])]
    assert names == ["day_9/a.tsv", "day_10/b.tsv", "other.csv"]
    pattern = find_files([str(tmp_path / "day_*" / "*.tsv")])
    assert [file.path.name for file in pattern] == ["a.tsv", "b.tsv"]
    listed = find_files([str(tmp_path / "other.csv"), str(tmp_path / "day_*/*.tsv"), str(tmp_path / "other.csv")])
    assert [file.path.name for file in listed] == ["other.csv", "a.tsv", "b.tsv"], "each once, as listed"


def test_a_name_that_looks_like_a_pattern(tmp_path: Path) -> None:
    assert find_files([touch(tmp_path / "logs[1].tsv")])[0].path.name == "logs[1].tsv"


def test_columns_of_the_path(tmp_path: Path) -> None:
    file = inspect_file(touch(tmp_path / "day=2023-10-01" / "country=DE" / "a=b.tsv"))
    assert file.path_values == {"day": "2023-10-01", "country": "DE"}


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    path = touch(tmp_path / "log")
    file = inspect_file(path)
    assert file.is_unchanged()
    path.write_bytes(b"longer")
    assert not file.is_unchanged()
    path.unlink()
    assert not file.is_unchanged()


def test_compression_is_seen_in_the_bytes(tmp_path: Path) -> None:
    """All members of a concatenated gzip file (`cat a.gz b.gz`) are read."""
    packed = touch(tmp_path / "without_suffix", gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    file = inspect_file(packed)
    assert file.compression == "gzip"
    file.decompress(tmp_path / "text")
    assert (tmp_path / "text").read_bytes() == b"one\ntwo\n"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing", "does not exist"),
        ("none*.tsv", "no file matches the pattern"),
        ("empty_folder", "is a folder without files"),
        ("empty", "is empty"),
        ("packed.zip", "is compressed with zip: decompress it first"),
    ],
)
def test_what_cannot_be_read(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty_folder").mkdir()
    touch(tmp_path / "empty", b"")
    touch(tmp_path / "packed.zip", b"PK\x03\x04....")
    with pytest.raises(UserError, match=message) as caught:
        find_files([str(tmp_path / name)])
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize("name", ["missing.tsv", "day=*/missing.tsv"])
def test_a_missing_file_is_named_with_the_folder_that_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        find_files([name])
    assert f"the raw log {tmp_path / name} does not exist" in str(caught.value)


def test_raw_file_knows_the_columns_of_its_path() -> None:
    assert RawFile(Path("/a=1/b-c=2/=3/d=/e=f=g/h=4"), 1, 0, None).path_values == {"a": "1", "d": "", "e": "f=g"}
