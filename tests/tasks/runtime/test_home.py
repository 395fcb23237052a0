"""Writes are atomic and durable, and equal values have equal hashes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tasks.runtime.errors import UserError
from tasks.runtime.home import (
    CHECKOUT,
    as_fields,
    home,
    point_latest_at,
    read_json,
    short_hash,
    whole_directory,
    whole_file,
    write_json,
    write_text,
)


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


class TestHome:
    def test_is_var_in_the_checkout_unless_said_otherwise(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for unset in (None, ""):
            monkeypatch.delenv("DP_ADS_HOME", raising=False)
            if unset is not None:
                monkeypatch.setenv("DP_ADS_HOME", unset)
            assert home() == CHECKOUT / "var"
        monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "elsewhere"))
        assert home() == (tmp_path / "elsewhere").resolve()

    def test_is_absolute(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("DP_ADS_HOME", "here")
        assert home() == (tmp_path / "here").resolve()
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.setenv("DP_ADS_HOME", "~/there")
        assert home() == (tmp_path / "there").resolve()


class TestShortHash:
    def test_stays_the_same_for_ever(self) -> None:
        """A change here would orphan every prepared dataset and finished trial."""
        assert short_hash({"b": [1, 2.5, None], "a": "ε"}) == "a45892f5f21c8919"
        assert short_hash({"a": "ε", "b": (1, 2.5, None)}) == "a45892f5f21c8919"

    def test_is_the_same_in_another_process(self) -> None:
        code = "from tasks.runtime.home import short_hash; print(short_hash({'x': 1, 'y': ['z']}))"
        environment = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": str(CHECKOUT)}
        printed = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
        ).stdout
        assert printed.strip() == short_hash({"x": 1, "y": ["z"]})

    def test_tells_values_apart(self) -> None:
        values = [1, 1.0, "1", [1], {"1": 1}, None, True, [], {}, "", [[1]], [1, None]]
        assert len({short_hash(value) for value in values}) == len(values)

    def test_has_the_length_asked_for(self) -> None:
        assert len(short_hash("x")) == 16
        assert short_hash("x").startswith(short_hash("x", length=8))

    def test_refuses_what_json_cannot_say(self) -> None:
        with pytest.raises(ValueError, match="not JSON compliant"):
            short_hash(float("nan"))


class TestReading:
    @pytest.mark.parametrize("text", ["", "{", '{"a": 1', "[" * 100_000, "\xff"])
    def test_a_damaged_file_is_named(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "record.json"
        path.write_text(text, encoding="latin-1")
        with pytest.raises(UserError) as caught:
            read_json(path)
        assert str(caught.value).startswith(f"{path} is damaged: it is not JSON (")
        assert str(caught.value).endswith(f"). Delete the folder {tmp_path} and run again")
        with pytest.raises(UserError, match=r"\. Delete it and run again$"):
            read_json(path, alone=True)

    def test_a_missing_key_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "record.json"
        fields = as_fields(path, {"curve": []})
        assert fields == {"curve": []}
        assert fields["curve"] == []
        expected = f"{path} is damaged: it has no 'trial'. Delete the folder {tmp_path} and run again"
        with pytest.raises(UserError) as caught:
            fields["trial"]
        assert str(caught.value) == expected
        with pytest.raises(UserError, match="it is not a JSON object"):
            as_fields(path, [])


class TestWriting:
    def test_makes_the_folders_above(self, tmp_path: Path) -> None:
        path = tmp_path / "a" / "b" / "value.json"
        write_json(path, {"ε": [1, 2.5]})
        assert read_json(path) == {"ε": [1, 2.5]}
        assert names(path.parent) == ["value.json"]

    def test_can_be_read_by_others(self, tmp_path: Path) -> None:
        write_text(tmp_path / "file", "text")
        assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644

    def test_leaves_the_earlier_file_when_the_value_is_no_json(self, tmp_path: Path) -> None:
        path = tmp_path / "value.json"
        write_json(path, 1)
        with pytest.raises(ValueError, match="not JSON compliant"):
            write_json(path, {"loss": float("nan")})
        assert read_json(path) == 1
        assert names(tmp_path) == ["value.json"]

    def test_leaves_the_earlier_file_when_writing_fails(self, tmp_path: Path) -> None:
        path = tmp_path / "file"
        write_text(path, "earlier")
        with pytest.raises(UnicodeEncodeError):
            write_text(path, "half of it \ud800")
        assert path.read_text() == "earlier"
        assert names(tmp_path) == ["file"]

    def test_a_reader_never_sees_a_part(self, tmp_path: Path) -> None:
        path = tmp_path / "value.json"
        write_json(path, ["0"] * 20_000)
        written, seen = threading.Event(), []

        def read() -> None:
            while not written.is_set():
                seen.append(len(set(json.loads(path.read_text()))))

        reader = threading.Thread(target=read)
        reader.start()
        try:
            for number in range(30):
                write_json(path, [str(number)] * 20_000)
        finally:
            written.set()
            reader.join()
        assert seen
        assert set(seen) == {1}


class TestWholeDirectory:
    def test_appears_at_the_end(self, tmp_path: Path) -> None:
        final = tmp_path / "parent" / "final"
        with whole_directory(final) as folder:
            (folder / "part").write_text("1")
            assert not final.exists()
            assert folder.parent == final.parent, "renaming is only atomic within a file system"
        assert (final / "part").read_text() == "1"
        assert names(final.parent) == ["final"]
        assert final.stat().st_mode & 0o777 == 0o755

    @pytest.mark.parametrize("reason", [RuntimeError, KeyboardInterrupt])
    def test_an_exception_leaves_nothing(self, tmp_path: Path, reason: type[BaseException]) -> None:
        def interrupted() -> None:
            with whole_directory(tmp_path / "final") as folder:
                (folder / "part").write_text("1")
                raise reason

        with pytest.raises(reason):
            interrupted()
        assert names(tmp_path) == []

    def test_an_exception_leaves_what_was_there(self, tmp_path: Path) -> None:
        def interrupted() -> None:
            with whole_directory(tmp_path / "final") as folder:
                (folder / "part").write_text("2")
                raise RuntimeError

        with whole_directory(tmp_path / "final") as folder:
            (folder / "part").write_text("1")
        with pytest.raises(RuntimeError):
            interrupted()
        assert (tmp_path / "final" / "part").read_text() == "1"
        assert names(tmp_path) == ["final"]

    def test_the_first_to_finish_stays(self, tmp_path: Path) -> None:
        final = tmp_path / "final"
        with whole_directory(final) as slow:
            (slow / "who").write_text("slow")
            with whole_directory(final) as fast:
                assert fast != slow
                (fast / "who").write_text("fast")
        assert (final / "who").read_text() == "fast"
        assert names(tmp_path) == ["final"]

    def test_what_cannot_be_replaced_is_an_error(self, tmp_path: Path) -> None:
        def in_the_way() -> None:
            with whole_directory(tmp_path / "final") as folder:
                (folder / "part").write_text("1")
                (tmp_path / "final").write_text("a file")

        with pytest.raises(OSError, match="final"):
            in_the_way()
        assert names(tmp_path) == ["final"]


@pytest.fixture
def operations(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is synced and renamed, in order, by the name of the file or folder."""
    done: list[tuple[str, str]] = []

    def sync(descriptor: int) -> None:
        done.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}")).name))

    for name in ("rename", "replace"):
        real = getattr(os, name)

        def renamed(source: Any, target: Any, _real: Any = real) -> None:
            done.append(("rename", Path(target).name))
            _real(source, target)

        monkeypatch.setattr(os, name, renamed)
    monkeypatch.setattr(os, "fsync", sync)
    return done


class TestPowerCut:
    """A name counts only after the contents are on the disk, and a write is done only after the name is."""

    def test_of_a_file(self, tmp_path: Path, operations: list[tuple[str, str]]) -> None:
        write_text(tmp_path / "file", "text")
        (first, temporary), *rest = operations
        assert first == "sync"
        assert temporary.startswith(".file.")
        assert rest == [("rename", "file"), ("sync", tmp_path.name)]

    def test_of_a_folder(self, tmp_path: Path, operations: list[tuple[str, str]]) -> None:
        with whole_directory(tmp_path / "final") as folder:
            (folder / "below").mkdir()
            (folder / "below" / "deep").write_text("1")
            (folder / "part").write_text("1")
        assert operations == [
            *(("sync", name) for name in ("deep", "below", "part", folder.name)),
            ("rename", "final"),
            ("sync", tmp_path.name),
        ]

    def test_what_is_deleted_soon_does_not_wait(self, tmp_path: Path, operations: list[tuple[str, str]]) -> None:
        with whole_file(tmp_path / "block", durable=False) as path:
            path.write_text("1")
        assert operations == [("rename", "block")]


def test_a_folder_may_be_for_its_owner_alone(tmp_path: Path) -> None:
    with whole_directory(tmp_path / "final", mode=0o700):
        pass
    assert (tmp_path / "final").stat().st_mode & 0o777 == 0o700


class TestLatest:
    def test_points_at_the_folder(self, tmp_path: Path) -> None:
        for name in ("first", "second", "second"):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "who").write_text(name)
            point_latest_at(tmp_path / name)
            assert (tmp_path / "latest" / "who").read_text() == name
        assert names(tmp_path) == ["first", "latest", "second"]
        assert os.readlink(tmp_path / "latest") == "second", "relative, so that the home folder can be moved"

    def test_links_of_other_names_are_left_alone(self, tmp_path: Path) -> None:
        for name, link in (("first", "latest"), ("second", "latest-smoke"), ("third", "latest-smoke")):
            (tmp_path / name).mkdir()
            point_latest_at(tmp_path / name, link)
        assert (os.readlink(tmp_path / "latest"), os.readlink(tmp_path / "latest-smoke")) == ("first", "third")

    def test_survives_an_interrupted_call(self, tmp_path: Path) -> None:
        (tmp_path / f".latest.{os.getpid()}").symlink_to("nowhere")
        (tmp_path / "run").mkdir()
        point_latest_at(tmp_path / "run")
        assert names(tmp_path) == ["latest", "run"]

    def test_replaces_a_link_whose_folder_is_gone(self, tmp_path: Path) -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "latest").symlink_to("gone")
        point_latest_at(tmp_path / "run")
        assert (tmp_path / "latest").resolve() == (tmp_path / "run").resolve()
