"""The DAGs as Airflow sees them: parsed in a process of their own, as the DAG processor does."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.airflow_home import airflow_environment

CHECKOUT = Path(__file__).resolve().parent.parent
DESCRIBE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
heavy = [name for name in ("jax", "flax", "dask", "mlflow", "pyarrow", "pandas") if name in sys.modules]
dags = {
    dag.dag_id: {
        "doc": dag.doc_md,
        "params": {name: param.schema | {"default": param.value} for name, param in dag.params.items()},
        "tasks": {
            task.task_id: {
                "downstream": sorted(task.downstream_task_ids),
                "mapped": task.is_mapped,
                "pool": task.pool,
                "named": bool(getattr(task, "map_index_template", None)),
                "outlets": [outlet.name for outlet in task.outlets],
            }
            for task in dag.tasks
        },
    }
    for dag in bag.dags.values()
}
print("RESULT " + json.dumps({"errors": bag.import_errors, "heavy": heavy, "dags": dags}))
"""


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    environment = airflow_environment() | {"AIRFLOW_HOME": str(tmp_path_factory.mktemp("airflow"))}
    command = [sys.executable, "-c", DESCRIBE, str(CHECKOUT / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr
    return json.loads(results[0].removeprefix("RESULT "))


def test_every_dag_parses_without_loading_anything_heavy(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert set(parsed["dags"]) == {"prepare_data", "relative_loss"}


def test_the_pipeline_is_a_chain_with_mapped_trials(parsed: dict[str, Any]) -> None:
    tasks = parsed["dags"]["relative_loss"]["tasks"]
    chain = ["prepare", "plan", "train", "audit", "report"]
    assert set(tasks) == set(chain)
    for task, following in itertools.pairwise(chain):
        assert following in tasks[task]["downstream"]
    assert [name for name in chain if tasks[name]["mapped"]] == ["train", "audit"]
    assert tasks["train"]["pool"] == "gpu"
    assert tasks["train"]["named"]
    assert tasks["audit"]["named"]


def test_the_trigger_form_offers_the_choices(parsed: dict[str, Any]) -> None:
    params = parsed["dags"]["relative_loss"]["params"]
    assert set(params) == {"profile", "tasks", "epsilons", "seeds", "dataset", "raw"}
    assert params["profile"]["default"] == "quick"
    assert params["profile"]["enum"] == ["smoke", "quick", "paper"]
    assert params["tasks"]["default"] == ["pctr", "pcvr", "pconvs"]
    assert params["epsilons"]["items"]["exclusiveMinimum"] == 0
    assert "relative loss" in parsed["dags"]["relative_loss"]["doc"].lower()


def test_preparing_produces_the_asset(parsed: dict[str, Any]) -> None:
    assert parsed["dags"]["prepare_data"]["tasks"]["prepare"]["outlets"] == ["prepared_data"]
