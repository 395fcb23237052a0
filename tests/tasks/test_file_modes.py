"""Folders with passwords, keys, logs and evidence are closed to others; homes that cannot be used are refused."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.owners.runs import run_folders
from tasks.runtime.airflow_home import airflow_folder, airflow_of_a_run, check_home, ensure_airflow, login
from tasks.runtime.errors import UserError
from tasks.runtime.home import owners_alone
from tasks.runtime.processes import running


@pytest.fixture(autouse=True)
def home(own_home: Path) -> Path:
    return own_home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_its_owners(tmp_path: Path) -> None:
    assert mode(owners_alone(tmp_path / "new" / "one")) == 0o700
    (tmp_path / "old").mkdir(mode=0o755)
    assert mode(owners_alone(tmp_path / "old")) == 0o700
    assert mode(owners_alone(tmp_path / "old")) == 0o700


def test_the_folders_of_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made as earlier versions made them: open to all."""
    monkeypatch.setattr("tasks.runtime.airflow_home._set_up", lambda folder: (folder / "airflow.db").touch())
    run_folders().mkdir(parents=True, mode=0o755)
    airflow_folder().mkdir(parents=True, mode=0o755)
    ensure_airflow(airflow_folder())
    assert mode(airflow_folder()) == 0o700
    with airflow_of_a_run("clicks") as folder:
        ensure_airflow(folder)
        assert (mode(folder), mode(run_folders())) == (0o700, 0o700)


def test_the_password() -> None:
    path = owners_alone(airflow_folder()) / "simple_auth_manager_passwords.json.generated"
    path.write_text(json.dumps({"admin": "secret"}))
    path.chmod(0o644)
    assert login() == ("admin", "secret")
    assert mode(path) == 0o600


def test_what_servers_write(tmp_path: Path) -> None:
    """Whatever the umask of the shell is: Airflow's configuration has a key, and is written by Airflow."""
    program = f"from pathlib import Path; p = Path({str(tmp_path)!r}); (p / 'airflow.cfg').touch(); (p / 'd').mkdir()"
    before = os.umask(0)
    try:
        with running(tmp_path) as programs:
            programs.start({"it": [sys.executable, "-c", program]}, dict(os.environ))
            next(iter(programs._stages[0][0].values())).wait(30)
    finally:
        os.umask(before)
    assert (mode(tmp_path / "airflow.cfg"), mode(tmp_path / "d")) == (0o600, 0o700)


@pytest.mark.parametrize("name", ["a?b", "a%20b", "a$HOME", "a#b", "a\nb"])
def test_a_home_that_cannot_be_addressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / name))
    with pytest.raises(UserError, match=r"in its path, which .* choose another folder with DP_ADS_HOME"):
        check_home()
    assert not (tmp_path / name).exists()


def test_a_home_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "/".join(["long"] * 300)))
    with pytest.raises(UserError, match=r"bytes, and the files in it would be too long .* at most 1,024"):
        check_home()
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / ("x" * 300)))
    with pytest.raises(UserError, match=r"cannot write to the home folder .*: File name too long. Choose another"):
        check_home()


@pytest.mark.parametrize("folder", ["/proc/no", "/dev/null", "/dev/null/no"])
def test_a_home_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("DP_ADS_HOME", folder)
    with pytest.raises(UserError, match=r"cannot write to the home folder .*Choose another folder with DP_ADS_HOME"):
        check_home()


def test_the_command_line_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks", "run", "--profile", "smoke"],
        env={**os.environ, "DP_ADS_HOME": str(tmp_path / "a?b")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the home folder ")
    assert "Traceback" not in done.stderr
