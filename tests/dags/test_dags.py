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
from tasks.config import load_config

CHECKOUT = Path(__file__).resolve().parent.parent
DESCRIBE = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
heavy = [name for name in ("jax", "flax", "dask", "mlflow", "pyarrow", "pandas") if name in sys.modules]
dags = {
    dag.dag_id: {
        "doc": dag.doc_md,
        "display_name": dag.dag_display_name,
        "tags": sorted(dag.tags),
        "schedule": dag.schedule,
        "max_active_runs": dag.max_active_runs,
        "params": {
            name: param.schema | {"default": param.value, "description": param.description}
            for name, param in dag.params.items()
        },
        "tasks": {
            task.task_id: {
                "downstream": sorted(task.downstream_task_ids),
                "mapped": task.is_mapped,
                "pool": task.pool,
                "named": bool(getattr(task, "map_index_template", None)),
                "trigger_rule": task.trigger_rule.value,
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


TRAINED = ["relative_loss", "clip_norm", "large_batch", "optimizers", "microbatch", "accountants", "label_dp"]
MEASURED = ["throughput", "noise_and_batch"]


def test_every_dag_parses_without_loading_anything_heavy(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert set(parsed["dags"]) == {"prepare_data", *TRAINED, *MEASURED}
    assert set(load_config(CHECKOUT / "pipelines.yaml").pipelines) == {*TRAINED, *MEASURED}


def assert_chain(tasks: dict[str, Any], chain: list[str]) -> None:
    """Each task is followed by the next; only what plan says goes further than that."""
    assert set(tasks) == set(chain)
    for task, following in itertools.pairwise(chain):
        assert following in tasks[task]["downstream"]
    assert set(tasks["plan"]["downstream"]) <= {chain[2], "report"}
    assert tasks["report"]["downstream"] == []
    assert tasks["report"]["trigger_rule"] == "none_failed", "also where everything was trained before"


@pytest.mark.parametrize("name", TRAINED)
def test_what_trains_is_a_chain_with_mapped_groups(parsed: dict[str, Any], name: str) -> None:
    tasks = parsed["dags"][name]["tasks"]
    chain = ["prepare", "plan", "train", "audit", "report"]
    assert_chain(tasks, chain)
    assert [task for task in chain if tasks[task]["mapped"]] == ["train", "audit"]
    assert tasks["train"]["pool"] == "gpu"
    assert tasks["train"]["named"]
    assert tasks["audit"]["named"]


@pytest.mark.parametrize("name", MEASURED)
def test_what_trains_nothing_is_a_chain_that_measures(parsed: dict[str, Any], name: str) -> None:
    tasks = parsed["dags"][name]["tasks"]
    assert_chain(tasks, ["prepare", "plan", "measure", "report"])
    assert not any(task["mapped"] for task in tasks.values())
    assert tasks["measure"]["pool"] == "gpu", "nothing trains while speed is measured"


@pytest.mark.parametrize("name", [*TRAINED, *MEASURED])
def test_the_trigger_form_offers_the_choices(parsed: dict[str, Any], name: str) -> None:
    params = parsed["dags"][name]["params"]
    pipeline = load_config(CHECKOUT / "pipelines.yaml").pipeline(name)
    assert set(params) == {"profile", "tasks", "epsilons", "seeds", "dataset", "raw"}
    assert params["profile"]["default"] == "quick"
    assert params["profile"]["enum"] == ["smoke", "quick", "paper"]
    assert "paper: The paper's settings" in params["profile"]["description"]
    assert params["tasks"]["default"] == list(pipeline.datasets)
    assert params["epsilons"]["items"]["exclusiveMinimum"] == 0
    assert all(params[key]["default"] is None for key in ("epsilons", "seeds", "dataset", "raw"))
    assert all(param["title"] for param in params.values())


@pytest.mark.parametrize("name", [*TRAINED, *MEASURED])
def test_a_dag_says_what_it_is(parsed: dict[str, Any], name: str) -> None:
    dag = parsed["dags"][name]
    title = load_config(CHECKOUT / "pipelines.yaml").pipeline(name).title
    assert dag["display_name"] == title.partition(" (")[0]
    assert f"### {dag['display_name']}" in dag["doc"]
    assert f"reports/{name}/latest/page.html" in dag["doc"]
    assert ("Nothing is trained" in dag["doc"]) == (name in MEASURED)
    assert (dag["schedule"], dag["max_active_runs"]) == (None, 1)
    assert "paper" in dag["tags"]
    (exhibit,) = set(dag["tags"]) - {"paper"}
    assert exhibit.startswith(("Table ", "Figure "))
    assert exhibit in title


def test_names_and_exhibits_are_distinct(parsed: dict[str, Any]) -> None:
    dags = list(parsed["dags"].values())
    assert len({dag["display_name"] for dag in dags}) == len(dags) == 10
    assert len({tuple(dag["tags"]) for dag in dags}) == 10


def test_preparing_produces_the_asset(parsed: dict[str, Any]) -> None:
    prepare = parsed["dags"]["prepare_data"]
    assert prepare["tasks"]["prepare"]["outlets"] == ["prepared_data"]
    assert prepare["params"]["pipeline"]["enum"] == list(load_config(CHECKOUT / "pipelines.yaml").pipelines)
