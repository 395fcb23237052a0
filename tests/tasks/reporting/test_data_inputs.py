"""Prepared data as an input of MLflow runs, with its data card as an artifact."""

from __future__ import annotations

import json
from pathlib import Path

from mlflow.tracking import MlflowClient

from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.data.prepared import Prepared
from tasks.reporting.data_card import write_data_card
from tasks.runtime.tracking import data_input, start_pipeline_run, tracking_uri
from tasks.runtime.trial_runs import log_trial
from tests.support.timed_log import MODELS
from tests.support.trials import make_prepared, make_trial

RECORD = {
    "curve": [],
    "started": 1_700_000_000.0,
    "ended": 1_700_000_001.5,
    "loss_name": "auc_loss",
    **dict.fromkeys(("validation_loss", "test_loss", "steps_per_second", "seconds"), 0.5),
    **dict.fromkeys(("steps", "parameters"), 10),
}


def test_every_run_has_its_data_as_an_input(own_home: Path, tmp_path: Path, timed: Prepared) -> None:
    """Through real MLflow: the parent has all data and the cards, and a trial the data that it is trained on."""
    config = load_config()
    selection = select(config, {"profile": "smoke"})
    tiny = make_prepared(tmp_path / "raw")
    data = {"tiny_clicks": tiny, "logs": timed}
    cards = {name: write_data_card(p, p.path / "data_card.html", models=MODELS) for name, p in data.items()}
    parent = start_pipeline_run(config, selection, "first", data, cards)
    trial = make_trial(tiny)
    run_id = log_trial(parent, trial, RECORD, reused=False)
    assert log_trial(parent, trial, RECORD, reused=True) == run_id

    client = MlflowClient(tracking_uri())
    child, first = client.get_run(run_id), client.get_run(parent["mlflow_run"])
    assert first.data.tags["data_fingerprint"] == f"tiny_clicks={tiny.fingerprint},logs={timed.fingerprint}"
    for name, card in cards.items():
        logged = client.download_artifacts(parent["mlflow_run"], f"data_cards/{name}.html", str(tmp_path))
        assert Path(logged).read_bytes() == card.read_bytes()
    assert first.inputs is not None
    assert {found.dataset.name: found.dataset.digest for found in first.inputs.dataset_inputs} == {
        name: prepared.fingerprint for name, prepared in data.items()
    }
    assert child.inputs is not None
    (found,) = child.inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("tiny_clicks", trial.data_fingerprint)
    assert {tag.key: tag.value for tag in found.tags} == {"mlflow.data.context": "training"}
    assert (found.dataset.source_type, json.loads(found.dataset.source)["uri"]) == ("local", "clicks.parquet")
    assert json.loads(found.dataset.profile or "") == {"num_rows": 3000, "train": 2400, "validation": 300, "test": 300}
    columns = json.loads(found.dataset.schema or "")["mlflow_colspec"]
    assert [column["name"] for column in columns] == ["price", "color", "label pcvr", "label pconvs"]

    # A second run of the same data, and a trial whose parent is in another store or has other data.
    again = start_pipeline_run(config, selection, "second", data, {})
    client.log_inputs(run_id, [data_input(tiny)])
    stranger = log_trial({**again, "mlflow_run": "0" * 32}, trial, {**RECORD, "started": 1.0}, reused=True)
    other = log_trial(again, make_trial(tiny, data_fingerprint="another"), RECORD, reused=True)
    query = f"dataset.digest = '{tiny.fingerprint}' AND dataset.context = 'training'"
    runs = client.search_runs([parent["experiment"]], query)
    assert {run.info.run_id for run in runs} == {run_id, parent["mlflow_run"], again["mlflow_run"]}
    assert not {stranger, other} & {run.info.run_id for run in runs}
