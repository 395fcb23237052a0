"""The checking step: every problem at once, in the words of the form, within a moment."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tasks.check import check
from tasks.cli import main
from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tests.support.sweep_config import ALL, use


def problems(**options: Any) -> list[str]:
    with pytest.raises(UserError) as caught:
        check(options)
    return str(caught.value).splitlines()


def test_what_can_run_is_the_selection() -> None:
    options = {"profile": "smoke", "tasks": ["pcvr"], "epsilons": "1,10", "seeds": 2}
    assert check(options) == select(load_config(), options)


def test_every_problem_is_named_at_once() -> None:
    found = problems(
        profile="smoke", tasks=["pctr", "pcvr", "pctr"], epsilons="1,1,-2", seeds=101, dataset="criteo_kaggle"
    )
    assert [line.partition(":")[0] for line in found] == [
        *("Prediction tasks", "Privacy budgets ε", "Privacy budgets ε", "Seeds", "Dataset", "Raw log")
    ]


def test_an_unknown_profile_does_not_hide_other_problems() -> None:
    assert [line.partition(":")[0] for line in problems(profile="huge", epsilons="0", seeds=0)] == [
        *("Profile", "Privacy budgets ε", "Seeds")
    ]


LINES = b"a line\n" * 60


@pytest.mark.parametrize(
    ("name", "text", "format", "columns"),
    [
        ("log.tsv", LINES, "tsv", "columns: [time, price, color, conversions]"),
        ("log.csv.gz", gzip.compress(LINES, mtime=0), "csv", "header: true"),
    ],
)
def test_a_batch_that_no_log_of_that_length_can_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: bytes, format: str, columns: str
) -> None:
    """60 lines make at most 61 rows, 49 of them to train with; the grid asks for batches of 100."""
    (tmp_path / name).write_bytes(text)
    config = ALL.replace("    format: parquet\n", f"    format: {format}\n    {columns}\n")
    use(config.replace("raw: clicks.parquet", f"raw: {tmp_path / name}"), tmp_path, monkeypatch)
    assert problems(pipeline="sweep", profile="tiny") == [
        "Profile: tiny has batches of 100 for pCVR, which is more than the 49 training examples of tiny_clicks. "
        "Choose another profile or a larger log"
    ]


@pytest.mark.parametrize(("rows", "is_enough"), [(120, False), (125, True), (300, True)])
def test_the_rows_of_parquet_files_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, is_enough: bool
) -> None:
    for number, part in enumerate((rows // 2, rows - rows // 2)):
        pyarrow.parquet.write_table(pa.table({"time": range(part)}), tmp_path / f"{number}.parquet")
    use(ALL.replace("raw: clicks.parquet", f"raw: {tmp_path}/*.parquet"), tmp_path, monkeypatch)
    if is_enough:
        assert check({"pipeline": "sweep", "profile": "tiny"}).datasets == {"pcvr": "tiny_clicks"}
    else:
        assert len(problems(pipeline="sweep", profile="tiny")) == 1


def test_a_file_that_cannot_be_read_is_left_to_preparation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clicks.parquet").write_bytes(b"not Parquet")
    use(ALL.replace("raw: clicks.parquet", f"raw: {tmp_path}/clicks.parquet"), tmp_path, monkeypatch)
    check({"pipeline": "sweep", "profile": "tiny"})


def test_a_vocabulary_that_spends_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "clicks.parquet").write_bytes(b"not Parquet")
    private = f"raw: {tmp_path}/clicks.parquet\n    vocabulary: private\n    vocabulary_epsilon: 2"
    use(ALL.replace("raw: clicks.parquet", private), tmp_path, monkeypatch)
    check({"pipeline": "sweep", "profile": "tiny"})
    assert problems(pipeline="sweep", profile="tiny", epsilons="1,4") == [
        "Privacy budgets ε: 1 is not more than the 2 that the vocabulary of tiny_clicks spends. "
        "Choose larger budgets, or lower `datasets.tiny_clicks.vocabulary_epsilon`"
    ]


def test_it_imports_nothing_heavy() -> None:
    heavy = {"jax", "flax", "optax", "dask", "mlflow", "pyarrow", "pandas", "numpy", "scipy"}
    program = f"""
import sys
from tasks.check import check
check({{"profile": "smoke"}})
print(sorted({heavy!r} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_all_pipelines_are_checked_before_the_first_one_starts(capsys: pytest.CaptureFixture[str]) -> None:
    """Problems that pipelines share are said once. Seeds and budgets mean nothing to those that train nothing."""
    assert main(["run", "--pipeline", "all", "--tasks", "pcvr", "--epsilons", "0", "--seeds", "2"]) == 2
    first, *others = capsys.readouterr().err.splitlines()
    assert first.startswith("error: Privacy budgets ε: '0' is not a positive number")
    assert others[0] == "Prediction tasks: the pipeline clip_norm has no pCVR; it has pCTR"
    assert len(others) == len(set(others)) == 8
