"""Segments of the test split: which rows they are, and metrics of trained models there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from dp_core.models.plain import predict_logits
from tasks.config.dataset import Dataset, Label
from tasks.data.preparation import prepare
from tasks.evaluation import segments
from tasks.evaluation.segments import SegmentReader, segment_rows, segments_of
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tests.support.trials import make_prepared, renew_manifest, without_privacy


def described(**changes: object) -> Dataset:
    values = {
        "format": "parquet",
        "time_column": "time",
        "integer_columns": ("price",),
        "categorical_columns": ("color",),
        "labels": {
            "pcvr": Label(column="conversions", kind="any"),
            "pconvs": Label(column="conversions", kind="count"),
        },
    }
    return Dataset.model_validate({**values, **changes})


def test_a_segment_column_must_be_a_feature() -> None:
    assert described(segment_column="color").segment_column == "color"
    assert described(segment_column="price").segment_column == "price"
    with pytest.raises(ValidationError, match="'colour', which is none of `categorical_columns` and `integer_columns`"):
        described(segment_column="colour")
    with pytest.raises(ValidationError, match="'time', which is none of"):
        described(segment_column="time")


def test_a_segment_column_changes_no_prepared_data(own_home: Path, tmp_path: Path) -> None:
    """It is about reports: the same log is not prepared or trained again for it."""
    make_prepared(tmp_path / "raw")
    raw = tmp_path / "raw" / "clicks.parquet"
    paths = {prepare("tiny_clicks", described(segment_column=name), raw, min_count=5) for name in (None, "color")}
    assert len(paths) == 1


def test_segments_are_the_rows_with_a_token_or_in_a_range(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = make_prepared(tmp_path / "raw")
    raw = pq.read_table(tmp_path / "raw" / "clicks.parquet").to_pandas().sort_values("time", kind="stable")
    test = raw.tail(prepared.splits["test"]["rows"])
    found = segment_rows(prepared, "pcvr", "color")
    counts = test["color"].value_counts()
    assert [counts[name] for name in found.names] == sorted(counts, reverse=True)
    assert [found.names[code] for code in found.codes] == test["color"].tolist()

    ranges = segment_rows(prepared, "pcvr", "price")
    edges = np.unique(np.quantile(test["price"], [0.25, 0.5, 0.75], method="lower"))
    expected = [f"up to {edges[0]:g}", f"above {edges[0]:g}, up to {edges[1]:g}", f"above {edges[2]:g}"]
    assert set(expected) <= set(ranges.names)
    for code, price in zip(ranges.codes, test["price"], strict=True):
        low, _, high = ranges.names[code].removeprefix("above ").removeprefix("up to ").partition(", up to ")
        name = ranges.names[code]
        assert price <= float(high or low) if "up to" in name else price > float(low)
        if name.startswith("above"):
            assert price > float(low)

    monkeypatch.setattr(segments, "LARGEST_SEGMENTS", 2)
    few = segment_rows(prepared, "pcvr", "color")
    assert (len(few.names), few.names[-1]) == (3, "others")
    assert np.sum(few.codes == 2) == sum(sorted(counts)[:2])
    hashed = make_prepared(tmp_path / "hashed", vocabulary="hash", vocabulary_buckets=50)
    assert all(name.startswith("bucket ") for name in segment_rows(hashed, "pcvr", "color").names[:-1])


def test_metrics_by_segment_are_of_the_released_model(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    trial = without_privacy(prepared, epochs=1)
    run_trial(trial, prepared)
    finished = FinishedTrial.open(trial)
    rows = segment_rows(prepared, "pcvr", "price")
    found = segments_of(finished, prepared, rows)
    assert found is not None
    split = prepared.split("test", "pcvr")
    logits = predict_logits(
        trial.model.model_dump(mode="json"), finished.read_parameters(), split.integers, split.categoricals
    )
    for place, one in enumerate(found):
        own = rows.codes == place
        assert (one["name"], one["rows"]) == (rows.names[place], int(own.sum()))
        assert one["auc"] == pytest.approx(roc_auc_score(split.labels[own], logits[own]))
        mean = float(np.mean(1 / (1 + np.exp(-logits[own].astype(np.float64)))))
        assert one["calibration"] == pytest.approx(mean / split.labels[own].mean())
    # All rows are in one segment each, so the segments' metrics add up to the record's.
    total = sum(one["calibration"] * one["mean_label"] * one["rows"] for one in found if one["calibration"])
    assert total / split.labels.sum() == pytest.approx(finished.record["test_metrics"]["calibration"], rel=1e-5)
    assert sum(one["rows"] for one in finished.record["reliability"]) == len(split)

    reader = SegmentReader({"tiny_clicks": prepared}, {"pcvr": "price"})
    (finished.folder / "parameters.npz").unlink()  # what was computed is kept
    renew_manifest(finished.folder)
    assert reader.read(trial) == found
    assert SegmentReader({}, {}).read(trial) is None
    assert reader.notes() == []
