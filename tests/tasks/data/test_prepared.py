"""Prepared folders: fingerprints, reading rows, and folders that do not fit their schema."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.data import prepared as prepared_module
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.integrity.manifest import write_manifest
from tasks.runtime.errors import UserError
from tests.support.preparation_oracle import TSV, dataset, random_rows, write_tsv


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(("column", "value"), [(0, "1"), (2, "8"), (4, "new"), (6, "9")])
def test_fingerprint_changes_with_one_value(tmp_path: Path, column: int, value: str) -> None:
    rows = random_rows(100)
    rows[-1] = ["0", "", "7", "7", "a", "1", "2"]
    before = prepare("logs", dataset(TSV), write_tsv(tmp_path / "a", rows), min_count=2)
    rows[-1][column] = value
    after = prepare("logs", dataset(TSV), write_tsv(tmp_path / "b", rows), min_count=2)
    assert open_prepared(before).fingerprint != open_prepared(after).fingerprint


def test_fingerprint_changes_with_the_name_of_a_token(tmp_path: Path) -> None:
    folders = []
    for name in ("one", "two"):
        rows = [["0", "", "1", "2", name, "same", "0"]] * 50
        folders.append(prepare("logs", dataset(TSV), write_tsv(tmp_path / name, rows), min_count=2))
    first, second = (open_prepared(folder) for folder in folders)
    np.testing.assert_array_equal(first.split("train", "pctr").categoricals, second.split("train", "pctr").categoricals)
    assert first.fingerprint != second.fingerprint


def test_take_copies_any_rows(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    split = open_prepared(prepare("logs", dataset(TSV), raw, min_count=2)).split("train", "pconvs")
    assert len(split) == split.rows == 80
    for indices in ([5, 3, 3, -1], np.array([79, 0]), np.arange(80) % 3 == 0, []):
        integers, categoricals, labels = split.take(indices)
        wanted = np.arange(80)[np.array(indices, dtype=None if len(indices) else int)]
        np.testing.assert_array_equal(integers, split.integers[wanted])
        np.testing.assert_array_equal(categoricals, split.categoricals[wanted])
        np.testing.assert_array_equal(labels, split.labels[wanted])
        assert integers.flags.writeable
        assert categoricals.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        split.labels[0] = 1


def test_a_folder_is_read_once_unless_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = prepare("logs", dataset(TSV), write_tsv(tmp_path / "raw", random_rows(100)), min_count=2)
    reads: list[Path] = []

    def read(path: Path) -> Any:
        reads.append(path)
        return json.loads(path.read_text())

    monkeypatch.setattr(prepared_module, "read_json", read)
    first = open_prepared(folder)
    assert open_prepared(folder) is first
    (folder / "data_card.html").write_text("a card")
    assert open_prepared(folder) is first
    assert len(reads) == 1
    os.utime(folder / "test" / "label_pctr.npy", ns=(1, 1))
    assert open_prepared(folder) == first
    assert len(reads) == 2


def test_prepared_folder_that_does_not_fit_its_schema(tmp_path: Path) -> None:
    raw = write_tsv(tmp_path / "raw", random_rows(100))
    with pytest.raises(UserError, match="no prepared data"):
        open_prepared(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no schema\.json"):
        open_prepared(tmp_path)
    folder = prepare("logs", dataset(TSV), raw, min_count=2)
    with pytest.raises(UserError, match="no label for 'sales'; it has: pctr, pcvr, pconvs"):
        open_prepared(folder).split("train", "sales")
    with pytest.raises(UserError, match="there is no split 'dev'; there are: train, validation, test"):
        open_prepared(folder).split("dev", "pctr")
    labels = folder / "test" / "label_pcvr.npy"
    whole = labels.read_bytes()
    (folder / "manifest.json").unlink()  # of an earlier version
    for content, message in [
        (whole[:-8], "cannot be read"),
        (b"", "cannot be read"),
        (None, "cannot be read"),
    ]:
        labels.unlink() if content is None else labels.write_bytes(content)
        with pytest.raises(UserError, match=message):
            open_prepared(folder)
    np.save(labels, np.zeros(10))
    with pytest.raises(UserError, match=r"is float64 \(10,\), but the schema says float32 \(10,\)"):
        open_prepared(folder)
    (folder / "schema.json").write_text("{}")
    with pytest.raises(UserError, match="not a schema of prepared data"):
        open_prepared(folder)


@pytest.fixture
def folder(own_home: Path, tmp_path: Path) -> Path:
    return prepare("logs", dataset(TSV), write_tsv(tmp_path / "raw", random_rows(100)), min_count=2)


@pytest.mark.parametrize("token", [-1, 10_000])
@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_a_token_beyond_its_table_is_refused(folder: Path, split: str, token: int) -> None:
    """Also if the checksums are right, and also in a folder of an earlier version, which has none."""
    path = folder / split / "categoricals.npy"
    ids = np.load(path)
    ids[3, 1] = token
    np.save(path, ids)
    expected = rf"{split}/categoricals\.npy is damaged: a token id of \w+ is not between 0 and \d+. Delete the folder "
    with pytest.raises(UserError, match=rf"{split}/categoricals\.npy is damaged: its contents"):
        open_prepared(folder)
    write_manifest(folder)
    with pytest.raises(UserError, match=expected):
        open_prepared(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=expected):
        open_prepared(folder)


def test_the_largest_token_is_in_its_table(folder: Path) -> None:
    path = folder / "test" / "categoricals.npy"
    ids = np.load(path)
    ids[0] = [column.vocabulary_size - 1 for column in open_prepared(folder).categorical_columns]
    np.save(path, ids)
    write_manifest(folder)
    open_prepared(folder)


def test_a_folder_of_an_earlier_version_is_used_and_said_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "manifest.json").unlink()
    first = open_prepared(folder)
    assert capsys.readouterr().out.endswith(
        f"{folder} has no manifest, because an earlier version prepared it: it is used as it is\n"
    )
    assert open_prepared(folder) == first
    assert capsys.readouterr().out == ""


def test_preparing_again_finds_damage(folder: Path, tmp_path: Path) -> None:
    for name in ("train/label_pctr.npy", "schema.json", "vocabulary.parquet"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(kept[:-1])
        with pytest.raises(UserError, match=rf"{name} is damaged: .* Delete the folder {folder} and run again"):
            prepare("logs", dataset(TSV), tmp_path / "raw", min_count=2)
        (folder / name).write_bytes(kept)
    assert prepare("logs", dataset(TSV), tmp_path / "raw", min_count=2) == folder


def test_reading_needs_no_dask() -> None:
    code = "import sys, tasks.data.prepared; sys.exit('dask' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])
