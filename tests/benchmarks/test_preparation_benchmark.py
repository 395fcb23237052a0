"""The preparation benchmark, run for real on small logs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import preparation
from benchmarks.polars_preparation import first_difference
from benchmarks.preparation import bars, prepare_rows, print_report
from tasks.integrity.manifest import write_manifest
from tasks.logs.synthetic import generate

SIZES = ("--rows", "1500", "--large-rows", "6000", "--rounds", "1")


def test_the_benchmark_runs(own_home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status = preparation.main([*SIZES, "--check"])
    result = json.loads((own_home / "bench" / "preparation.json").read_text())
    assert status == (0 if all(bar.holds for bar in bars(result)) else 1)

    assert [(run["who"], run["rows"]) for run in result["runs"]] == [
        ("ours", 1500),
        ("polars", 1500),
        ("polars_tuned", 1500),
        ("ours", 6000),
    ]
    for run in result["runs"]:
        assert run["rows_per_second"] == pytest.approx(run["rows"] / run["seconds"])
        assert run["seconds_of_rounds"] == [run["seconds"]]
        # The memory of the process that starts it, with JAX and other tests, must not count.
        assert 50 * 2**20 < run["peak_memory_bytes"] < 500 * 2**20
    reading = result["reading"]
    assert reading["rows"] == reading["of_rows"] == 4800
    assert 0 < reading["seconds"] <= reading["median_seconds"] <= 1

    shown = capfd.readouterr()
    assert "Preparing 1,500 rows" in shown.out
    assert "4,800 of 4,800 training rows read" in shown.out
    assert "round 1 of 1: polars, 1,500 rows" in shown.err
    assert [path.name for path in (own_home / "bench").iterdir()] == ["preparation.json"]
    assert not (own_home / "data").exists()


@pytest.fixture(scope="module")
def prepared_once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns the folders of our result and of Polars' for one log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(tmp_path_factory.mktemp("home")))
        raw, small_raw = (str(generate("display", rows, 0)) for rows in (2000, 1000))
        ours, polars = (prepare_rows(who=who, raw=raw, small_raw=small_raw) for who in ("ours", "polars"))
    return Path(ours["folder"]), Path(polars["folder"])


@pytest.fixture
def both(prepared_once: tuple[Path, Path], own_home: Path) -> tuple[Path, Path]:
    """Returns a copy of them that a test may change."""
    ours, polars = (shutil.copytree(folder, own_home / folder.name) for folder in prepared_once)
    return ours, polars


def changed(folder: Path, array: str, place: int | tuple[int, int], change: Callable[[Any], Any]) -> None:
    values = np.load(folder / f"{array}.npy", mmap_mode="r+")
    values[place] = change(values[place])
    values.flush()
    write_manifest(folder.parent)  # as if it had been prepared so


def test_any_difference_is_found(both: tuple[Path, Path]) -> None:
    ours, peers = both
    assert first_difference(ours, peers) is None

    validation = ours / "validation"
    numbers = np.load(validation / "integers.npy")
    present, missing = (tuple(np.argwhere(kind)[0].tolist()) for kind in (numbers > 1, np.isnan(numbers)))
    changed(validation, "integers", present, lambda value: value * (1 + 2e-7))
    assert first_difference(ours, peers) is None, "rounding is no difference"

    # From the last column to the first, so that each difference comes before the earlier ones.
    for array, place, change, column in [
        ("categoricals", (17, 25), lambda value: int(value == 0), "C26"),
        ("categoricals", (199, 0), lambda value: int(value == 0), "C1"),
        ("integers", missing, lambda _: 0.0, f"I{missing[1] + 1}"),
        ("integers", present, lambda value: value + 1e-4, f"I{present[1] + 1}"),
        ("label_pctr", 3, lambda value: 1 - value, "pctr"),
    ]:
        before = np.load(validation / f"{array}.npy")[place]
        changed(validation, array, place, change)
        row = place if isinstance(place, int) else place[0]
        assert f"validation, column {column}, row {row}:" in str(first_difference(ours, peers))
        changed(validation, array, place, lambda _, before=before: before)

    (peers / "train.parquet").write_bytes((peers / "test.parquet").read_bytes())
    assert first_difference(ours, peers) == "train has 1,600 rows and Polars' 200"


def test_different_work_is_an_error(
    both: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed(both[0] / "test", "categoricals", (5, 2), lambda value: value + 1)
    folders = dict(zip(("ours", "polars"), both, strict=True))

    def measured(_: str, __: dict[str, str], *, who: str, **___: Any) -> dict[str, Any]:
        return {"seconds": 1.0, "peak_memory_bytes": 1, "folder": str(folders[who.removesuffix("_tuned")])}

    monkeypatch.setattr(preparation, "run_child", measured)
    assert preparation.main(SIZES) == 2
    assert "error: Polars and ours did different work: test, column C3, row 5:" in capsys.readouterr().err


def some_result(speed: float, *, memory: int, seconds: float, reading: float, growth: int = 4) -> dict[str, Any]:
    """Returns results at 1,000,000 rows in 2 s and 100 MiB (Polars: at the given speed), and ours at more rows."""

    def run(who: str, rows: int, seconds: float, memory: int) -> dict[str, Any]:
        figures = {"seconds": seconds, "rows_per_second": rows / seconds, "peak_memory_bytes": memory * 2**20}
        return {"who": who, "rows": rows, **figures, "seconds_of_rounds": [seconds]}

    large = run("ours", growth * 1_000_000, seconds, memory)
    times = {"seconds": reading, "median_seconds": reading, "first_seconds": 9.9999}
    return {
        "rounds": 3,
        "runs": [
            run("ours", 1_000_000, 2.0, 100),
            run("polars", 1_000_000, 2.0 * speed, 100),
            run("polars_tuned", 1_000_000, 1.0, 100),
            large,
        ],
        "reading": {"rows": 65_536, "of_rows": 3_200_000, **times},
    }


GOOD = {"speed": 1.0, "memory": 130, "seconds": 8.8, "reading": 0.040}


def test_bars() -> None:
    assert [bar.holds for bar in bars(some_result(**GOOD))] == [True] * 4
    for place, worse in enumerate([{"speed": 0.99}, {"memory": 131}, {"seconds": 8.9}, {"reading": 0.041}]):
        assert [bar.holds for bar in bars(some_result(**GOOD | worse))] == [other != place for other in range(4)]
    for seconds in (21.9, 22.1):
        assert bars(some_result(**GOOD | {"seconds": seconds}, growth=10))[2].holds == (seconds < 22)
    texts = [bar.text for bar in bars(some_result(1.234, memory=120, seconds=8.0, reading=0.0314))]
    for text, figures in zip(texts, ["1.23 of", "1.20 of", "4.00 of the time (bar: at most 4.40", "31.4"], strict=True):
        assert figures in text


@pytest.mark.parametrize(("worse", "status"), [({}, 0), ({"speed": 0.5}, 1), ({"reading": 0.1}, 1)])
def test_check(
    worse: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch, own_home: Path, capsys: Any
) -> None:
    monkeypatch.setattr(preparation, "measure", lambda *_: some_result(**GOOD | worse))
    assert preparation.main([]) == 0
    assert preparation.main(["--check"]) == status
    assert capsys.readouterr().out.count("does not hold") == 2 * status


def test_large_numbers_fit_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(some_result(0.001, memory=99_999, seconds=9_999.0, reading=0.9, growth=1000))
    assert "…" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rows", "0"], "must be positive, got 0"),
        (["--rounds", "many"], "'many' is not a whole number"),
        (["--large-rows", "1e6"], "'1e6' is not a whole number"),
        (["--rows", "5000", "--large-rows", "5000"], "--large-rows must be more than --rows, got 5,000 and 5,000"),
    ],
)
def test_a_wrong_argument_is_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        preparation.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("own_home")
def test_what_cannot_be_measured_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert preparation.main(["--rows", "10", "--large-rows", "2000"]) == 2
    assert "error: a synthetic log needs at least 1,000 rows, not 10" in capsys.readouterr().err
    monkeypatch.setattr(preparation.importlib.util, "find_spec", lambda _: None)
    assert preparation.main(list(SIZES)) == 2
    assert "error: Polars, which this compares with, is not installed: run `pip install" in capsys.readouterr().err
