"""Packaged models: raw rows give the predictions of the encoded ones, and what is inside says nothing of the data."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from dp_core.models.spec import MODELS, as_model_spec
from tasks.data.prepared import Prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.serving.packaging import example_rows, find_prepared, log_model, save_model
from tasks.serving.predictor import DamagedModel, Predictor
from tasks.serving.released import ReleasedModel
from tasks.serving.vendoring import vendor_code
from tasks.training.finished import FinishedTrial
from tasks.training.setup import build_model
from tests.extensions.test_toy_model import GatedSpec
from tests.tasks.serving.conftest import Made
from tests.tasks.serving.tiny_log import (
    FEATURES,
    NAME,
    describe,
    finish,
    log_rows,
    prepare_log,
    raw_frame,
    secret_trial,
)

IN_A_FRESH_PROCESS = """
import json, sys
import mlflow, pandas as pd
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pd.read_json(sys.stdin, orient="split", dtype=False, convert_dates=False)
print(json.dumps({
    "predictions": model.predict(rows)["pcvr"].tolist(),
    "ours": [name for name in sys.modules if name.split(".")[0] in ("tasks", "dp_core", "jax", "dask")],
    "metadata": model.metadata.metadata,
}))
"""


def expected_predictions(finished: FinishedTrial, prepared: Prepared) -> np.ndarray:
    """What the network predicts for the prepared test split."""
    trial, split = finished.trial, prepared.split("test", finished.trial.task)
    nested: dict[str, Any] = {}
    for name, array in finished.read_parameters().items():
        layer, _, kind = name.partition("/")
        nested.setdefault(layer, {})[kind] = array
    model = build_model(trial, prepared, None)
    logits = np.asarray(model.apply({"params": nested}, split.integers, split.categoricals), np.float64)
    return np.exp(logits) if trial.task == "pconvs" else 1 / (1 + np.exp(-logits))


@pytest.mark.parametrize(
    ("form", "vocabulary", "changes"),
    [
        ("tsv", {"vocabulary": "threshold"}, {}),
        ("csv", {"vocabulary": "hash", "vocabulary_buckets": 11}, {"task": "pconvs"}),
        ("parquet", {"vocabulary": "private", "vocabulary_epsilon": 50.0}, {"model": {"name": "dlrm"}}),
        ("tsv", {"vocabulary": "hash"}, {"model": {"name": "dcn_v2", "cross_layers": 1}}),
        ("csv", {"vocabulary": "threshold"}, {"model": {"name": "piecewise_mlp"}}),
    ],
    ids=["threshold", "hash", "private", "cross layers", "piecewise"],
)
def test_raw_rows_are_predicted_as_the_encoded_ones(
    own_home: Path, tmp_path: Path, form: str, vocabulary: dict[str, Any], changes: dict[str, Any]
) -> None:
    rows = log_rows()
    prepared = prepare_log(tmp_path, form, rows, **vocabulary)
    model = as_model_spec({"hidden_layers": (8,), **changes.pop("model", {"name": "mlp"})})
    finished = finish(secret_trial(prepared, model=model, **changes), prepared)
    save_model(finished, prepared, describe(form, **vocabulary), tmp_path / "model")
    released = ReleasedModel.load(tmp_path / "model")
    tested = rows[-prepared.splits["test"]["rows"] :]
    found = released.predictor.predict(raw_frame(tested))
    assert list(found.columns) == [finished.trial.task]
    expected = expected_predictions(finished, prepared)
    assert len({round(value, 4) for value in expected}) > 20
    np.testing.assert_allclose(found[finished.trial.task], expected, rtol=1e-6, atol=1e-6)


def test_typed_values_are_predicted_as_their_text(made: Made) -> None:
    rows = raw_frame(log_rows())
    typed = rows.astype({"visits": int, "city": int})
    typed["price"] = pd.to_numeric(rows["price"].replace("none", ""))
    typed.loc[rows["color"].isin(["", "none", "-1"]), "color"] = None
    predictor = made.model.predictor
    assert typed["price"].isna().any()
    pd.testing.assert_frame_equal(predictor.predict(typed), predictor.predict(rows))
    shuffled = typed[[*FEATURES][::-1]]
    pd.testing.assert_frame_equal(predictor.predict(shuffled.assign(conversions=1)), predictor.predict(rows))
    one_by_one = pd.concat([predictor.predict(rows[i : i + 1]) for i in range(20)])
    np.testing.assert_allclose(one_by_one["pcvr"], predictor.predict(rows[:20])["pcvr"], rtol=1e-6)
    assert predictor.predict(rows[:0]).shape == (0, 1)


def test_unseen_and_missing_tokens_are_what_they_were_in_training(made: Made) -> None:
    def predicted(color: Any) -> float:
        return made.model.predictor.predict(pd.DataFrame([{**dict.fromkeys(FEATURES), "color": color}]))["pcvr"][0]

    assert predicted("never seen") == predicted("日本") != predicted("red")
    # A missing color is frequent enough to have an id of its own.
    assert predicted(None) == predicted("") == predicted("none") != predicted("never seen")


def test_nothing_inside_identifies_the_data(made: Made) -> None:
    folder, trial = made.folder / "model", made.finished.trial
    for path in folder.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            for secret in (trial.key, trial.data_fingerprint, str(made.folder)):
                assert secret.encode() not in content, path
    assert pq.read_schema(folder / "data/released/vocabulary.parquet").names == ["column", "token"]
    facts = read_json(folder / "data/released/model.json")
    assert facts["guarantee"] == {
        "epsilon": 1.25,
        "delta": trial.target_delta,
        "protects": "examples",
        "mechanism": "dp_sgd",
        "covers_vocabulary": False,
        "public_name": made.finished.public_name,
    }
    assert made.model.statement == made.finished.statement.read_text()


def test_the_example_is_made_up(made: Made) -> None:
    example = example_rows(made.dataset)
    assert example.to_dict("records") == [
        {"price": 10, "visits": 20, "color": "example 1", "city": "example 2"},
        dict.fromkeys(FEATURES),
    ]
    known = pq.read_table(made.folder / "model/data/released/vocabulary.parquet")["token"].to_pylist()
    assert not {"example 1", "example 2"} & set(known)
    saved = read_json(made.folder / "model/input_example.json")
    assert saved == {"columns": list(FEATURES), "data": [[10, 20, "example 1", "example 2"], [None] * 4]}


def test_requirements_are_pinned(made: Made) -> None:
    lines = (made.folder / "model/requirements.txt").read_text().splitlines()
    assert [line.split("==")[0] for line in lines] == ["mlflow", "numpy", "pandas", "pyarrow"]
    lock = (Path(__file__).parents[3] / "requirements.lock").read_text()
    assert all(f"\n{line} " in lock for line in lines)


def test_it_loads_in_a_fresh_process_without_our_checkout(made: Made, tmp_path: Path) -> None:
    rows = log_rows()[-40:]
    environment = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    done = subprocess.run(
        [sys.executable, "-c", IN_A_FRESH_PROCESS, str(made.folder / "model")],
        cwd=tmp_path,
        env={**environment, "MLFLOW_DISABLE_TELEMETRY": "true"},
        input=raw_frame(rows).to_json(orient="split"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    np.testing.assert_allclose(answer["predictions"], expected_predictions(made.finished, made.prepared), atol=1e-6)
    assert answer["ours"] == []
    assert answer["metadata"]["epsilon"] == 1.25
    assert answer["metadata"]["task"] == "pcvr"
    assert list(tmp_path.iterdir()) == []


def test_the_code_inside_is_small_and_named_by_its_digest(tmp_path: Path) -> None:
    first, second = vendor_code(tmp_path / "a"), vendor_code(tmp_path / "b")
    assert first == second
    assert first.startswith("private_ad_model_")
    files = list((tmp_path / "a").rglob("*.py"))
    assert sum(path.stat().st_size for path in files) < 60_000
    for path in files:
        assert "from tasks." not in path.read_text()
        assert "from dp_core." not in path.read_text()


def test_what_cannot_be_packaged_for_other_reasons(made: Made, own_home: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists: give a new folder"):
        save_model(made.finished, made.prepared, made.dataset, made.folder / "model")
    other = prepare_log(tmp_path / "other", rows=log_rows(seed=1))
    with pytest.raises(UserError, match="was not trained on the data in"):
        save_model(made.finished, other, made.dataset, tmp_path / "model")
    with pytest.raises(UserError, match="does not have the columns"):
        save_model(made.finished, made.prepared, describe("tsv", categorical_columns=["city"]), tmp_path / "model")
    MODELS["gated"] = GatedSpec
    try:
        trial = secret_trial(other, model=GatedSpec(hidden_layers=(4,)))
        with pytest.raises(
            UserError, match="of kind 'gated' comes from a plug-in and cannot be packaged; models that can: mlp"
        ):
            save_model(finish(trial, other), other, made.dataset, tmp_path / "model")
    finally:
        del MODELS["gated"]
    assert not (tmp_path / "model").exists()


def test_files_that_were_changed_are_refused(made: Made, tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(made.folder / "model", changed)
    parameters = made.finished.read_parameters()
    parameters["output/bias"] = parameters["output/bias"] + 1
    np.savez(changed / "data/released/parameters.npz", **dict(parameters))
    with pytest.raises(DamagedModel, match="is not what was released"):
        Predictor.load(changed / "data/released")
    with pytest.raises(UserError, match="is not what was released"):
        ReleasedModel.load(changed)
    (changed / "data/released/parameters.npz").write_bytes(b"half a file")
    with pytest.raises(UserError, match="has no complete released model"):
        ReleasedModel.load(changed)
    with pytest.raises(UserError, match="is not a released model"):
        ReleasedModel.load(tmp_path)
    facts = changed / "data/released/model.json"
    facts.write_text(facts.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(UserError, match="written by a newer version"):
        ReleasedModel.load(changed)


def test_a_model_is_logged_once(made: Made, run_id: str) -> None:
    from tasks.runtime.tracking import open_client

    before = open_client().get_run(run_id)
    uri = log_model(made.finished, made.prepared, made.dataset, mlflow_run=run_id)
    assert log_model(made.finished, made.prepared, made.dataset, mlflow_run=run_id) == uri
    after = open_client().get_run(run_id)
    assert [output.model_id for output in after.outputs.model_outputs] == [uri.removeprefix("models:/")]
    # The run that trained it is as it was.
    assert (after.info.end_time, after.info.status) == (before.info.end_time, "FINISHED")
    assert find_prepared(made.finished.trial).path == made.prepared.path
    with pytest.raises(UserError, match=f"is not in .*{NAME}: prepare it again"):
        find_prepared(made.finished.trial.model_copy(update={"data_fingerprint": "another"}))
