"""Models that were really trained, audited, registered and served. The long ones run with `make test-nights`."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pyarrow.parquet as pq
import pytest

import tasks.training.loop as loop
from dp_core.models.spec import MLPSpec, as_model_spec
from tasks.cli import main
from tasks.config.loading import load_config
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.logs.synthetic import generate
from tasks.privacy.verdict import judge
from tasks.runtime.tracking import open_client
from tasks.serving.packaging import log_model, save_model
from tasks.serving.registry import local_model, register, set_champion
from tasks.serving.released import ReleasedModel
from tasks.serving.scoring import score
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.tasks.serving.tiny_log import NAME, describe, finish, log_rows, prepare_log, raw_frame, secret_trial

# What is promised on 2 cores; a quiet machine does two to four times as much.
FEWEST_ROWS_A_SECOND = 100_000
SCORED_ROWS = 600_000
# Of a machine with more programs than this waiting for its 2 cores, we get a share, and wall time says how large that
# is. Then two cores' worth of CPU time counts.
BUSY = 3.0


def cpu_seconds() -> float:
    """The CPU time of this process and its children so far."""
    return sum(os.times()[:4])


def train(trial: Trial, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Trains and audits a trial; returns the trainer's own predictions on the test split."""
    logits: list[np.ndarray] = []
    original = loop._predict

    def predict(run: Any, state: Any, split: Any) -> Any:
        logits.append(np.asarray(run.trainer.predict(state, split.integers, split.categoricals), np.float64))
        return original(run, state, split)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_predict", predict)
        run_trial(trial, prepared)
    finished = FinishedTrial.open(trial)
    evidence = finished.evidence
    assert evidence is not None
    result, statement = judge(trial, finished.record, evidence, name=finished.public_name)
    assert result["verdict"] == "passed", result["findings"]
    finished.write_audit(result, statement)
    logits[-1] += finished.record.get("recalibration", {}).get("shift", 0.0)
    return np.exp(logits[-1]) if trial.task == "pconvs" else 1 / (1 + np.exp(-logits[-1]))


def test_a_trained_model_is_registered_by_the_verb_and_predicts_as_the_trainer(
    own_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = log_rows(1000)
    prepared = prepare_log(tmp_path / "raw", rows=rows, vocabulary="hash", vocabulary_buckets=20)
    dataset = describe("tsv", vocabulary="hash", vocabulary_buckets=20)
    config = load_config()
    known = {**config.datasets, NAME: dataset}
    monkeypatch.setattr("tasks.config.loading.load_config", lambda: config.model_copy(update={"datasets": known}))
    # The shift of a recalibration is part of what is served.
    trial = secret_trial(prepared, epochs=1, recalibration="shift", recalibration_epsilon=1.0)
    expected = train(trial, prepared, monkeypatch)
    assert main(["register", trial.key, "--name", "clicks"]) == 2
    assert "has no run of trial" in capsys.readouterr().err
    client = open_client()
    experiment = client.create_experiment("trials", (own_store / "mlflow/artifacts").as_uri())
    client.create_run(experiment, tags={"trial": trial.key})
    assert main(["register", trial.key, "--name", "clicks", "--champion", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) | {"model": ""} == {
        "name": "clicks",
        "version": 1,
        "model": "",
        "champion": True,
    }
    output = tmp_path / "scores.parquet"
    raw = tmp_path / "raw/log.tsv"
    assert main(["score", "--model", "clicks@champion", "--input", str(raw), "--output", str(output)]) == 0
    found = pq.read_table(output)["pcvr"].to_numpy()
    np.testing.assert_allclose(found[-len(expected) :], expected, atol=1e-6)


@pytest.mark.nights
@pytest.mark.parametrize("task", ["pcvr", "pconvs"])
@pytest.mark.parametrize(
    ("form", "vocabulary", "model", "changes"),
    [
        ("tsv", {"vocabulary": "threshold"}, {"name": "mlp"}, {}),
        ("csv", {"vocabulary": "private", "vocabulary_epsilon": 20.0}, {"name": "dlrm"}, {}),
        ("parquet", {"vocabulary": "hash", "vocabulary_buckets": 50}, {"name": "dcn_v2", "cross_layers": 1}, {}),
        # What is released is neither the last iterate nor the average alone.
        (
            "tsv",
            {"vocabulary": "hash", "vocabulary_buckets": 50},
            {"name": "piecewise_mlp"},
            {"averaging": "tail", "recalibration": "shift", "recalibration_epsilon": 1.0},
        ),
    ],
    ids=["threshold", "private", "hash", "piecewise, averaged and recalibrated"],
)
def test_predictions_are_the_trainers(
    own_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    vocabulary: dict[str, Any],
    model: dict[str, Any],
    changes: dict[str, Any],
    task: str,
) -> None:
    rows = log_rows(3000)
    for number, row in enumerate(rows[-300::3]):
        row["color"], row["price"] = f"new {number}", "-7.25"  # not in the training split
    prepared = prepare_log(tmp_path / "raw", form, rows, **vocabulary)
    spec = as_model_spec({"hidden_layers": (16, 8), **model})
    trial = secret_trial(prepared, task=task, model=spec, epsilon=40.0, learning_rate=0.002, **changes)
    expected = train(trial, prepared, monkeypatch)
    save_model(FinishedTrial.open(trial), prepared, describe(form, **vocabulary), tmp_path / "model")
    found = mlflow.pyfunc.load_model(str(tmp_path / "model")).predict(raw_frame(rows[-len(expected) :]))[task]
    np.testing.assert_allclose(found, expected, rtol=1e-6 if task == "pcvr" else 5e-6, atol=1e-6)


@contextmanager
def mlflow_program(*arguments: str, folder: Path, answers: str) -> Iterator[str]:
    """Runs a server of MLflow from a folder, without our checkout on its path; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {name: value for name, value in os.environ.items() if name in ("HOME", "LANG")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    server = subprocess.Popen(
        [sys.executable, "-m", "mlflow", *arguments, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env={**environment, "PATH": path, "MLFLOW_DISABLE_TELEMETRY": "true"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(240):
            assert server.poll() is None
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/{answers}", timeout=5).close()
                break
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.25)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(30)


def post(address: str, body: Any) -> tuple[int, Any]:
    request = urllib.request.Request(
        f"{address}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.mark.nights
def test_a_served_model_answers_raw_rows(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = log_rows(1000)
    prepared = prepare_log(tmp_path / "raw", rows=rows)
    trial = secret_trial(prepared, epochs=1)
    expected = train(trial, prepared, monkeypatch)
    save_model(FinishedTrial.open(trial), prepared, describe("tsv"), tmp_path / "model")
    (tmp_path / "empty").mkdir()
    tested = raw_frame(rows[-len(expected) :])
    serve = ("models", "serve", "--env-manager", "local", "--model-uri", str(tmp_path / "model"))
    with mlflow_program(*serve, folder=tmp_path / "empty", answers="ping") as address:
        for body in (
            {"dataframe_split": tested.to_dict("split")},
            {"dataframe_records": tested.to_dict("records")},
        ):
            status, answer = post(address, body)
            assert status == 200
            np.testing.assert_allclose([row["pcvr"] for row in answer["predictions"]], expected, atol=1e-6)
        # A value that is missing may be null, a placeholder, or left out.
        records = [{"price": 5, "color": None}, {"price": "5", "color": "none", "city": ""}, {"price": 5.0, "x": 1}]
        answers = [post(address, {"dataframe_records": [record]}) for record in records]
        assert len({answer["predictions"][0]["pcvr"] for _, answer in answers}) == 1
        status, answer = post(address, {"dataframe_records": [{"price": "cheap"}]})
        assert status == 400
        assert "row 0, column 'price': 'cheap' (str) should be a finite number" in answer["message"]


@pytest.mark.nights
def test_a_model_in_the_registry_of_a_server(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model's files are on the server, and are fetched once."""
    rows = log_rows(400)
    prepared = prepare_log(tmp_path / "raw", rows=rows)
    finished = finish(secret_trial(prepared), prepared)
    (tmp_path / "server").mkdir()
    store = ("--backend-store-uri", f"sqlite:///{tmp_path}/server/mlflow.db", "--artifacts-destination", "artifacts")
    with mlflow_program("server", *store, folder=tmp_path / "server", answers="health") as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        client = open_client()
        run = client.create_run(client.create_experiment("trials")).info.run_id
        uri = log_model(finished, prepared, describe("tsv"), mlflow_run=run)
        set_champion("clicks", register(uri, "clicks"))
        for reference in ("clicks@champion", "clicks/1", uri, f"runs:/{run}/model"):
            assert local_model(reference).is_relative_to(own_home / "models")
        found = mlflow.pyfunc.load_model(str(local_model("clicks@champion"))).predict(raw_frame(rows))
        output = tmp_path / "scores.parquet"
        raw = str(tmp_path / "raw/log.tsv")
        assert main(["score", "--model", "clicks@champion", "--input", raw, "--output", str(output)]) == 0
    np.testing.assert_allclose(pq.read_table(output)["pcvr"].to_numpy(), found["pcvr"], rtol=1e-6)
    assert len(list((own_home / "models").iterdir())) == 1


@pytest.mark.nights
@pytest.mark.parametrize("name", ["synthetic_display", "synthetic_clicks"])
def test_scoring_is_fast(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The quick model, on a file that is not in memory, with everything but the start of Python."""
    dataset = load_config().dataset(name)
    assert dataset.synthetic is not None
    small = generate(dataset.synthetic.kind, 20_000, dataset.synthetic.seed)
    prepared = open_prepared(prepare(name, dataset, small, min_count=50))
    task = next(iter(dataset.labels))
    trial = secret_trial(prepared, task=task, epochs=0.2, batch_size=1024, model=MLPSpec(hidden_layers=(32, 32)))
    trial = trial.model_copy(update={"dataset": name})
    train(trial, prepared, monkeypatch)
    save_model(FinishedTrial.open(trial), prepared, dataset, tmp_path / "model")
    large = generate(dataset.synthetic.kind, SCORED_ROWS, dataset.synthetic.seed + 1)
    before = cpu_seconds()
    done = score(ReleasedModel.load(tmp_path / "model"), [large], tmp_path / "scores.parquet")
    spent = cpu_seconds() - before
    assert done["rows"] == SCORED_ROWS
    fastest = done["rows_per_second"]
    if os.getloadavg()[0] > BUSY:
        fastest = max(fastest, 2 * SCORED_ROWS / spent)
    assert fastest > FEWEST_ROWS_A_SECOND, f"{done['rows_per_second']:,.0f} rows/s, {spent:.1f} s of CPU"
    shutil.rmtree(large.parent)
