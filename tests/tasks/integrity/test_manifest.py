"""Manifests: every change of a file is found, and files that did not change are not read again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.integrity import manifest
from tasks.integrity.manifest import MANIFEST, SMALL_BYTES, check_folder, checksum_of, read_manifest, write_manifest
from tasks.integrity.sealed import Damaged

NAMES = ("record.json", "train/labels.npy", "large.npz")


@pytest.fixture
def folder(own_home: Path, tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "train").mkdir(parents=True)
    (made / "record.json").write_text('{"test_loss": 0.25}')
    (made / "train" / "labels.npy").write_bytes(b"\x00" * 100)
    (made / "large.npz").write_bytes(b"\x01" * (SMALL_BYTES + 1))
    write_manifest(made)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose checksums were computed."""
    names: list[str] = []
    real = manifest._read

    def read(path: Path) -> str:
        names.append(path.name)
        return real(path)

    monkeypatch.setattr(manifest, "_read", read)
    return names


def another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "_known", {})
    monkeypatch.setattr(manifest, "_manifests", {})


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def replace_by_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink, replace_by_a_folder])
@pytest.mark.parametrize("checked_before", [False, True])
def test_damage_is_named(folder: Path, name: str, damage: Callable[[Path], None], *, checked_before: bool) -> None:
    if checked_before:
        check_folder(folder)
    damage(folder / name)
    for _ in range(2):
        with pytest.raises(Damaged) as caught:
            check_folder(folder)
        assert str(caught.value).startswith(f"{folder / name} is ")
        assert str(caught.value).endswith(f". Delete the folder {folder} and run again")


@pytest.mark.parametrize("damage", [flip, truncate, empty])
def test_a_damaged_manifest_is_named(folder: Path, damage: Callable[[Path], None]) -> None:
    """Its last byte is a line end, which holds nothing."""
    truncate(folder / MANIFEST)
    assert check_folder(folder) is not None
    damage(folder / MANIFEST)
    with pytest.raises(Damaged, match=rf"{MANIFEST} is damaged"):
        check_folder(folder)


def test_a_change_that_keeps_the_time_of_writing_is_found(folder: Path) -> None:
    for name in NAMES:
        path = folder / name
        check_folder(folder)
        kept, before = path.read_bytes(), path.stat()
        flip(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(Damaged, match=path.name):
            check_folder(folder)
        path.write_bytes(kept)


def test_a_process_reads_a_file_once(folder: Path, reads: list[str]) -> None:
    assert check_folder(folder) == frozenset(NAMES)
    assert sorted(set(reads)) == sorted([MANIFEST, *(Path(name).name for name in NAMES)])
    reads.clear()
    assert check_folder(folder) == frozenset()
    assert reads == []
    assert check_folder(folder, fully=True) == frozenset(NAMES)


def test_large_files_are_read_once_by_all_processes(
    folder: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    check_folder(folder)
    another_process(monkeypatch)
    assert check_folder(folder) == frozenset(NAMES) - {"large.npz"}
    another_process(monkeypatch)
    os.utime(folder / "large.npz")
    assert check_folder(folder) == frozenset(NAMES)
    # What is remembered is of this manifest, and a damaged memory is none.
    another_process(monkeypatch)
    [memory] = (own_home / "cache" / "checked").iterdir()
    for damage in (truncate, flip, empty):
        memory.write_text('{"manifest": 1}') if damage is flip else damage(memory)
        assert check_folder(folder, fully=False) is not None
        assert "large.npz" in reads
        another_process(monkeypatch)
        reads.clear()


def test_rot_that_leaves_no_trace_is_found_by_a_full_check(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that returns other bits changes no time: a large file is then found when it is read fully."""
    check_folder(folder)
    another_process(monkeypatch)
    real = manifest._read
    monkeypatch.setattr(manifest, "_read", lambda path: "other" if path.name == "large.npz" else real(path))
    assert check_folder(folder) is not None
    with pytest.raises(Damaged, match=r"large\.npz"):
        check_folder(folder, fully=True)


def test_files_that_are_added_later_are_nobodys(folder: Path) -> None:
    (folder / "data_card.html").write_text("a card")
    assert set(read_manifest(folder) or ()) == set(NAMES)
    check_folder(folder, fully=True)


def test_an_earlier_version_wrote_no_manifest(tmp_path: Path) -> None:
    assert check_folder(tmp_path) is None
    assert read_manifest(tmp_path / "nowhere") is None


def test_the_checksum_of_a_file_follows_its_contents(folder: Path) -> None:
    before = checksum_of(folder / "record.json")
    assert checksum_of(folder / "record.json") == before == (read_manifest(folder) or {})["record.json"].checksum
    flip(folder / "record.json")
    assert checksum_of(folder / "record.json") != before
