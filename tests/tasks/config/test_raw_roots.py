"""Files that a run of the servers may read: those in the roots, whatever way leads to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.check import check
from tasks.config.loading import Config
from tasks.config.raw_roots import allowed_roots, outside_roots
from tasks.runtime.errors import UserError
from tasks.runtime.home import REPORTS_AT
from tests.support.yaml_files import SMALL, Load, edit, mistakes

REAL = edit(SMALL, "    synthetic: {kind: display}\n", "")


@pytest.fixture
def roots(tmp_path: Path) -> Path:
    """Makes a folder ``logs`` that may be read and one called ``logs_secret`` that may not, with links between them."""
    for name in ("logs/day=1/a.tsv", "logs/b.tsv", "logs_secret/passwd"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\t2\tx\n")
    (tmp_path / "logs/link.tsv").symlink_to(tmp_path / "logs_secret/passwd")
    (tmp_path / "logs/linked").symlink_to(tmp_path / "logs_secret")
    (tmp_path / "to_logs").symlink_to(tmp_path / "logs")
    return tmp_path


def with_roots(load: Load, *folders: Path) -> Config:
    return load(f"raw_roots: [{', '.join(map(str, folders))}]\n" + REAL)


@pytest.mark.parametrize(
    "name", ["logs/b.tsv", "logs/day=1", "logs/day=*/*.tsv", "to_logs/b.tsv", "logs/../logs/b.tsv"]
)
def test_inside(load: Load, roots: Path, name: str) -> None:
    assert outside_roots(with_roots(load, roots / "logs"), str(roots / name)) is None
    assert outside_roots(with_roots(load, roots / "to_logs"), str(roots / name)) is None, "a root may be a link"


@pytest.mark.parametrize(
    "name",
    [
        *("logs_secret/passwd", "logs_secret", "logs_secret/*", "logs_secr*/passwd", "logs/../logs_secret/passwd"),
        *("logs/link.tsv", "logs/linked/passwd", "logs/*.tsv", "logs", "logs/linked", "logs/lin*/passwd", "no/such"),
        *("logs/*/../../logs_secret/passwd", "", ".", "{day}/passwd", "logs_secret/{day}"),
    ],
)
def test_outside(load: Load, roots: Path, name: str) -> None:
    refused = outside_roots(with_roots(load, roots / "logs"), str(roots / name))
    assert refused is not None
    assert "add its folder to `raw_roots` in pipelines.yaml" in refused or "write it without .." in refused


@pytest.mark.parametrize("raw", ["/etc/passwd", "/proc/self/environ", "~nobody-there/log", "a\0b", "x" * 5000, "/" * 9])
def test_elsewhere(load: Load, roots: Path, raw: str) -> None:
    assert "outside of the folders" in str(outside_roots(with_roots(load, roots / "logs"), raw))


def test_by_default_the_files_of_datasets(load: Load, roots: Path) -> None:
    assert allowed_roots(load(REAL)) == []
    named = edit(
        REAL, "    format: tsv", f"    format: tsv\n    raw: [{roots}/logs/b.tsv, {roots}/logs/day=*/*.tsv, /*.x]"
    )
    assert allowed_roots(load(named)) == [roots / "logs/b.tsv", roots / "logs"]


def test_the_check_of_a_run(load: Load, roots: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_roots(load, roots / "logs")
    monkeypatch.setenv("DP_ADS_CONFIG", str(roots / "my.yaml"))
    options = {"pipeline": "sweep", "profile": "tiny", "raw": str(roots / "logs_secret/passwd")}
    monkeypatch.delenv(REPORTS_AT, raising=False)
    with pytest.raises(UserError, match="more than the"):  # its three rows are too few, so it was read
        check(options)
    monkeypatch.setenv(REPORTS_AT, "http://127.0.0.1:8090")
    with pytest.raises(UserError, match=r"^Raw log: .*logs_secret/passwd is outside of the folders .*raw_roots"):
        check(options)
    with pytest.raises(UserError, match=r"logs/none.tsv does not exist"):
        check({**options, "raw": str(roots / "logs/none.tsv")})


def test_roots_are_absolute(load: Load) -> None:
    (only,) = mistakes(load, "raw_roots: logs\n" + SMALL)
    assert only == "my.yaml:1: raw_roots: 'logs' is not an absolute path of a folder, such as /data/logs"
