"""The audit step: what it writes, logs and raises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.audit import audit, audit_group
from tasks.plan import plan
from tasks.privacy.verdict import AuditFailure
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_json
from tasks.train import train
from tests.support.trials import renew_manifest


def test_the_step_writes_the_statement_logs_it_and_fails_a_run_over_budget(own_home: Path) -> None:
    """Through real MLflow: the run of a failed audit is marked FAILED, and the step raises."""
    from mlflow.tracking import MlflowClient

    from tasks.prepare import prepare_datasets
    from tasks.runtime.tracking import tracking_uri

    options = {"profile": "smoke", "tasks": ["pconvs"], "epsilons": [2.0]}
    [group] = plan(options, prepare_datasets(options))["groups"]
    assert [item["trial"]["mechanism"] for item in group["items"]] == ["non_private", "dp_sgd", "dp_sgd"]
    kept, logged = train({**group, "items": group["items"][1:]}) or ()
    _, audited = audit_group([kept, logged])
    client = MlflowClient(tracking_uri())
    run = client.get_run(logged["mlflow_run"])
    assert run.info.status == "FINISHED"
    assert run.data.metrics["epsilon"] == pytest.approx(audited["epsilon"])
    assert [file.path for file in client.list_artifacts(run.info.run_id)] == ["privacy_statement.md"]

    folder = own_home / "trials" / logged["trial"]
    assert (folder / "privacy_statement.md").exists()
    record = read_json(folder / "record.json")
    write_json(folder / "record.json", {**record, "mechanism": {**record["mechanism"], "noise_multiplier": 0.3}})
    with pytest.raises(UserError, match=r"record\.json is damaged: it has [\d,]+ bytes instead of"):
        audit(logged)
    renew_manifest(folder)  # as if training had written it so
    with pytest.raises(AuditFailure, match="over the budget of 2"):
        audit(logged)
    # All trials of a group are audited, and their failures are reported together.
    (own_home / "trials" / kept["trial"] / "audit.json").unlink()
    with pytest.raises(AuditFailure, match=r"^audit of [^\n]*over the budget of 2[^\n]*$"):
        audit_group([logged, kept])
    assert read_json(own_home / "trials" / kept["trial"] / "audit.json")["verdict"] == "passed"
    assert client.get_run(logged["mlflow_run"]).info.status == "FAILED"
    assert client.get_run(logged["mlflow_run"]).data.tags["audit"] == "failed"

    (folder / "evidence.json").unlink()
    with pytest.raises(UserError, match=rf"evidence\.json is missing\. Delete the folder {folder} and run again"):
        audit(logged)
    renew_manifest(folder)
    with pytest.raises(AuditFailure, match="Delete the folder and train again"):
        audit(logged)
