"""Airflow's folders in the home: set up once, and at home wherever the home is moved to."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime import airflow_home
from tasks.runtime.airflow_home import airflow_environment, airflow_folder, airflow_of_a_run, ensure_airflow

# Reads Airflow's own view of its settings, and writes to its database and to its configuration file.
LOOKS = """
import json, sys
from airflow.__main__ import main
sys.argv = ["airflow", "pools", "set", sys.argv[1], "3", "written after the move"]
main()
from airflow.configuration import conf, AIRFLOW_CONFIG
from airflow.settings import engine
print(json.dumps({
    "config": AIRFLOW_CONFIG,
    "database": engine.url.database,
    "logs": conf.get("logging", "base_log_folder"),
    "dag processor": conf.get("logging", "dag_processor_child_process_log_directory"),
}))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which the servers' database was set up, moved to another place. Made once, since that takes seconds."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "first"))
        ensure_airflow(airflow_folder())
        look(airflow_folder(), "before")
        (folder / "first").rename(folder / "moved")
        patch.setenv("DP_ADS_HOME", str(folder / "moved"))
        yield folder / "moved"


def look(folder: Path, pool: str) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, pool], env=airflow_environment(folder), capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def pools(folder: Path) -> set[str]:
    with contextlib.closing(sqlite3.connect(folder / "airflow.db")) as database:
        return {name for (name,) in database.execute("select pool from slot_pool")}


def test_a_moved_home_is_used_where_it_is(made: Path) -> None:
    assert str(made.parent / "first") in (made / "airflow" / "airflow.cfg").read_text(), "Airflow wrote the old place"
    begun = time.monotonic()
    ensure_airflow(airflow_folder())
    assert time.monotonic() - begun < 0.5, "and it is ready"
    found = look(airflow_folder(), "after")
    assert found == {
        "config": str(made / "airflow" / "airflow.cfg"),
        "database": str(made / "airflow" / "airflow.db"),
        "logs": str(made / "airflow" / "logs"),
        "dag processor": str(made / "airflow" / "logs" / "dag_processor"),
    }
    assert pools(airflow_folder()) == {"default_pool", "gpu", "before", "after"}
    assert not (made.parent / "first").exists(), "nothing is written to the old place"


@pytest.mark.parametrize("damage", ["a text", "emptied", "deleted", "a bit"])
def test_a_damaged_database_is_put_aside_and_made_again(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    shutil.copytree(made / "cache", tmp_path / "home" / "cache")
    folder = airflow_folder()
    ensure_airflow(folder)
    database = folder / "airflow.db"
    content = bytearray(database.read_bytes())
    content[1] ^= 1  # of the words with which every database begins
    damaged = {"a text": b"hello" * 1000, "emptied": b"", "a bit": bytes(content)}
    if damage == "deleted":
        database.unlink()
    else:
        database.write_bytes(damaged[damage])
    ensure_airflow(folder)
    assert pools(folder) == {"default_pool", "gpu"}
    said = capsys.readouterr().out
    assert f"Airflow's database {database} is " in said
    assert "a new one is made" in said
    assert (folder / "airflow.db.damaged").exists() == (damage != "deleted")


def test_the_second_folder_starts_from_a_copy_of_the_empty_database(
    made: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(folder: Path) -> None:
        raise AssertionError("the database was set up again")

    monkeypatch.setattr(airflow_home, "_set_up", started)
    with airflow_of_a_run("clicks") as alone, airflow_of_a_run("clicks") as other:
        assert len({alone, other, airflow_folder()}) == 3
        ensure_airflow(alone)
        assert pools(alone) == {"default_pool", "gpu"}, "and has nothing of the servers"
        assert capsys.readouterr().out == ""
        (alone / "ready").write_text("of another version")
        with pytest.raises(AssertionError, match="set up again"):
            ensure_airflow(alone)
    assert not alone.exists()
