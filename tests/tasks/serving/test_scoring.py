"""Scores of whole logs: one for each readable row, beside its file and line, the same as for single rows."""

from __future__ import annotations

import csv
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tasks.serving.scoring as scoring
from tasks.cli import main
from tasks.data.parts import QUARANTINE_COLUMNS
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.runtime.errors import UserError
from tasks.serving.packaging import save_model
from tasks.serving.released import ReleasedModel
from tasks.serving.scoring import Scored, predict_files, score
from tests.tasks.serving.conftest import Made
from tests.tasks.serving.tiny_log import (
    COLUMNS,
    FEATURES,
    NAME,
    Row,
    describe,
    finish,
    log_rows,
    prepare_log,
    raw_frame,
    secret_trial,
    write_log,
)

TINY = 700  # bytes of a block
WITHOUT_LABEL = tuple(name for name in COLUMNS if name != "conversions")


@pytest.fixture(scope="module")
def models(made: Made) -> dict[str, ReleasedModel]:
    """The same model for every format of its log."""
    models = {}
    for form in ("tsv", "csv", "parquet"):
        save_model(made.finished, made.prepared, describe(form), made.folder / f"model of {form}")
        models[form] = ReleasedModel.load(made.folder / f"model of {form}")
    return models


def scores(done: Scored) -> pd.DataFrame:
    path = Path(done["output"])
    return pq.read_table(path).to_pandas() if path.suffix == ".parquet" else pd.read_csv(path)


def check(done: Scored, model: ReleasedModel, files: dict[Path, Sequence[tuple[int, Row]]]) -> None:
    """Asserts that a file of scores has these rows, with the predictions of single rows."""
    found = scores(done)
    assert list(found.columns) == ["file", "line", "pcvr"]
    expected = [(str(path.resolve()), line, row) for path, rows in files.items() for line, row in rows]
    assert list(zip(found["file"], found["line"], strict=True)) == [(path, line) for path, line, _ in expected]
    predicted = model.predictor.predict(raw_frame([row for *_, row in expected]))["pcvr"]
    np.testing.assert_allclose(found["pcvr"], predicted, rtol=1e-6)
    assert done["rows"] == len(expected)


@pytest.mark.parametrize("form", ["tsv", "csv", "parquet"])
@pytest.mark.parametrize("columns", [COLUMNS, WITHOUT_LABEL, (*FEATURES, "junk")], ids=["all", "no label", "features"])
def test_a_log_needs_neither_labels_nor_times(
    models: dict[str, ReleasedModel], tmp_path: Path, form: str, columns: tuple[str, ...]
) -> None:
    rows = log_rows(120, seed=3)
    first = write_log(tmp_path / "in" / f"9.{form}", form, rows[:80], columns)
    second = write_log(tmp_path / "in" / f"10.{form}", form, rows[80:], columns)
    explicit = columns if form == "tsv" and columns == WITHOUT_LABEL else None
    output = tmp_path / ("scores.csv" if form == "csv" else "scores.parquet")
    done = score(models[form], [tmp_path / "in"], output, columns=explicit, block_bytes=TINY)
    start = 2 if form == "csv" else 1
    files = {first: list(enumerate(rows[:80], start)), second: list(enumerate(rows[80:], start))}
    check(done, models[form], files)
    assert (done["bad_rows"], done["left_out"], done["quarantine"], done["files"]) == (0, 0, None, 2)
    assert sorted(path.name for path in tmp_path.glob("scores*")) == [output.name]


def test_text_without_a_header_that_may_lack_one_column_or_another(
    models: dict[str, ReleasedModel], tmp_path: Path
) -> None:
    log = write_log(tmp_path / "log", "tsv", log_rows(5), WITHOUT_LABEL)
    with pytest.raises(
        UserError, match="may be conversions or time that it lacks: name its columns in order with --col"
    ):
        score(models["tsv"], [log], tmp_path / "scores.csv")
    with pytest.raises(UserError, match="columns can only be given for text without a header"):
        score(models["csv"], [log], tmp_path / "scores.csv", columns=WITHOUT_LABEL)
    wrong = write_log(tmp_path / "wrong", "tsv", log_rows(5), ("price", "color"))
    with pytest.raises(UserError, match="expected 7 fields separated by tabs, found 2 fields"):
        score(models["tsv"], [wrong], tmp_path / "scores.csv")
    assert not (tmp_path / "scores.csv").exists()


def test_bad_rows_are_put_aside_and_the_others_keep_their_lines(
    models: dict[str, ReleasedModel], tmp_path: Path
) -> None:
    rows = log_rows(90, seed=4)
    rows[10] = {**rows[10], "price": "cheap"}
    rows[40] = {**rows[40], "visits": "1\t2"}
    rows[41] = {**rows[41], "conversions": "not needed", "time": "nor this"}
    log = write_log(tmp_path / "log.gz", "tsv", rows)
    done = score(models["tsv"], [log], tmp_path / "scores.parquet", block_bytes=TINY)
    good = [(line, row) for line, row in enumerate(rows, 1) if line not in (11, 41)]
    check(done, models["tsv"], {log: good})
    assert (done["bad_rows"], done["quarantine"]) == (2, str(tmp_path / "scores.quarantine.csv"))
    with (tmp_path / "scores.quarantine.csv").open(newline="") as file:
        header, *aside = list(csv.reader(file))
    assert tuple(header) == QUARANTINE_COLUMNS
    assert [(line, reason) for _, line, reason, *_ in aside] == [
        ("11", "not a number"),
        ("41", "wrong number of fields"),
    ]
    # The quarantine of an earlier output does not stay beside one without bad rows.
    write_log(log, "tsv", log_rows(20))
    assert score(models["tsv"], [log], tmp_path / "scores.parquet")["bad_rows"] == 0
    assert not (tmp_path / "scores.quarantine.csv").exists()


def test_keep_rows_chooses_if_its_column_is_there(made: Made, tmp_path: Path) -> None:
    chosen = describe("csv", keep_rows={"junk": ["x"], "conversions": ["0", "1"]})
    save_model(made.finished, made.prepared, chosen, tmp_path / "model")
    model, rows = ReleasedModel.load(tmp_path / "model"), log_rows(30)
    rows = [{**row, "junk": "x" if i % 3 else "y"} for i, row in enumerate(rows)]
    log = write_log(tmp_path / "log.csv", "csv", rows)
    done = score(model, [log], tmp_path / "scores.csv")
    check(done, model, {log: [(i + 2, row) for i, row in enumerate(rows) if i % 3]})
    assert done["left_out"] == 10
    log = write_log(tmp_path / "other.csv", "csv", rows, FEATURES)
    done = score(model, [log], tmp_path / "scores.csv")
    check(done, model, {log: list(enumerate(rows, 2))})


def test_what_cannot_be_scored(models: dict[str, ReleasedModel], tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.csv", "csv", log_rows(5))
    for output, message in {
        tmp_path / "no" / "scores.csv": "the folder .* of the output does not exist",
        tmp_path / "scores.txt": r"should end with .parquet or .csv",
        log: "is one of the files to score",
        tmp_path / "empty.csv": "is a folder",
    }.items():
        (tmp_path / "empty.csv").mkdir(exist_ok=True)
        with pytest.raises(UserError, match=message):
            score(models["csv"], [log], output)
    lacking = write_log(tmp_path / "lacking.csv", "csv", log_rows(5), ("price", "visits", "color"))
    with pytest.raises(UserError, match="has no column 'city'"):
        score(models["csv"], [lacking], tmp_path / "scores.csv")
    with pytest.raises(UserError, match="does not exist: no file matches"):
        score(models["csv"], [tmp_path / "*.nothing"], tmp_path / "scores.csv")
    with pytest.raises(UserError, match="is not a complete Parquet file"):
        score(models["parquet"], [log], tmp_path / "scores.csv")
    assert not list(tmp_path.glob("*scores*"))


def test_an_interruption_leaves_the_earlier_output(
    models: dict[str, ReleasedModel], module_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = write_log(tmp_path / "log.csv", "csv", log_rows(50))
    output = tmp_path / "scores.parquet"
    score(models["csv"], [log], output)
    before, at_home = output.read_bytes(), sorted(module_home.iterdir())

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    for name in ("_score_block", "write_block"):
        with monkeypatch.context() as patch:
            patch.setattr(scoring, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                score(models["csv"], [log], output)
        assert output.read_bytes() == before
        assert sorted(module_home.iterdir()) == at_home
        assert list(tmp_path.glob(".*")) == []


def test_the_verb(models: dict[str, ReleasedModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "log.csv", "csv", log_rows(50))
    arguments = [
        "--model",
        str(models["csv"].folder.parents[1]),
        "--input",
        str(log),
        "--output",
        str(tmp_path / "scores.csv"),
    ]
    assert main(["score", "--json", *arguments]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["rows"], answer["bad_rows"], answer["output"]) == (50, 0, str(tmp_path / "scores.csv"))
    assert answer["rows_per_second"] > 0
    assert main(["score", *arguments]) == 0
    assert "scores.csv: 50 rows in " in capsys.readouterr().out
    assert main(["score", *arguments[:1], "nothing@champion", *arguments[2:]]) == 2
    assert "no registered model is called 'nothing'" in capsys.readouterr().err


def test_columns_in_which_every_value_is_missing(models: dict[str, ReleasedModel], tmp_path: Path) -> None:
    """Writers of Parquet give them the type null."""
    rows = [{**row, "color": "", "price": ""} for row in log_rows(20)]
    log = write_log(tmp_path / "log.parquet", "parquet", rows)
    table = pq.read_table(log)
    for name in ("color", "price"):
        table = table.set_column(table.column_names.index(name), name, pa.nulls(len(table)))
    pq.write_table(table, log)
    check(score(models["parquet"], [log], tmp_path / "scores.csv"), models["parquet"], {log: list(enumerate(rows, 1))})


@pytest.mark.parametrize("form", ["tsv", "parquet"])
def test_logits_and_labels_are_in_the_order_of_time(own_home: Path, tmp_path: Path, form: str) -> None:
    """As in prepared data: the same rows, in the same order, with the same labels."""
    rows = log_rows(300)
    shuffled = [rows[i] for i in np.random.default_rng(0).permutation(300)]
    for i, row in enumerate(shuffled):
        row["time"] = str(int(row["time"]) // 40)  # many rows have equal times
        row["junk"] = str(i)
    prepared = prepare_log(tmp_path / "raw", form, shuffled, vocabulary="hash")
    dataset = describe(form, vocabulary="hash")
    save_model(finish(secret_trial(prepared, task="pconvs"), prepared), prepared, dataset, tmp_path / "model")
    model = ReleasedModel.load(tmp_path / "model")
    files = [write_log(tmp_path / f"{i}.{form}", form, shuffled[150 * i : 150 * (i + 1)]) for i in range(2)]
    found = predict_files(model, files, block_bytes=TINY)
    assert found.times is not None
    order = sorted(range(300), key=lambda i: int(shuffled[i]["time"]))
    assert found.times.tolist() == [int(shuffled[i]["time"]) for i in order]
    again = open_prepared(prepare(NAME, dataset, files, min_count=5))
    for task in ("pcvr", "pconvs"):
        whole = np.concatenate([again.split(split, task).labels for split in ("train", "validation", "test")])
        np.testing.assert_array_equal(found.labels[task], whole)
    expected = model.predictor.predict(raw_frame([shuffled[i] for i in order]))["pconvs"]
    np.testing.assert_allclose(np.exp(found.logits), expected, rtol=1e-5)


def test_files_are_parsed_once_for_two_models(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "day.tsv", "tsv", log_rows(60, seed=9))
    first = predict_files(made.model, [log])
    assert "read: 60 rows" in capsys.readouterr().out
    second = predict_files(made.model, [log])
    assert "read:" not in capsys.readouterr().out
    np.testing.assert_array_equal(first.logits, second.logits)


def test_labels_that_count_following_events(own_home: Path, tmp_path: Path) -> None:
    following = {"event": "junk", "event_time": "conversions", "same": ["city"], "within_days": 1}
    labels = {"pcvr": {"column": None, "following": following, "kind": "any"}}
    rows = log_rows(200)
    for i, row in enumerate(rows):
        row["junk"], row["conversions"] = (f"event {i}", str(int(row["time"]) + 5)) if i % 7 == 0 else ("", "")
    changes: dict[str, Any] = {"labels": labels, "vocabulary": "hash"}
    prepared = prepare_log(tmp_path, "tsv", rows, **changes)
    dataset = describe("tsv", **changes)
    save_model(finish(secret_trial(prepared), prepared), prepared, dataset, tmp_path / "model")
    model = ReleasedModel.load(tmp_path / "model")
    found = predict_files(model, [tmp_path / "log.tsv"])
    whole = np.concatenate([prepared.split(split, "pcvr").labels for split in ("train", "validation", "test")])
    assert 0 < whole.sum() < len(whole)
    np.testing.assert_array_equal(found.labels["pcvr"], whole)
    # To be scored, the log needs neither the events nor their times.
    log = write_log(tmp_path / "scored", "tsv", rows, FEATURES)
    assert score(model, [log], tmp_path / "scores.csv", columns=FEATURES)["rows"] == 200


def test_a_model_travels_to_the_workers_of_a_cluster(made: Made) -> None:
    rows = raw_frame(log_rows(30))
    sent = pickle.loads(pickle.dumps(made.model.predictor))
    pd.testing.assert_frame_equal(sent.predict(rows), made.model.predictor.predict(rows))
