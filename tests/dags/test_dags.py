"""The DAGs as Airflow sees them, each time parsed in a new process, as the DAG processor does."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tasks.config.loading import load_config
from tasks.config.selection import FIELDS
from tasks.runtime.airflow_home import airflow_environment

CHECKOUT = Path(__file__).resolve().parent.parent.parent
DESCRIBE = """
import json, os, sys
from airflow.dag_processing.dagbag import DagBag
bag = DagBag(sys.argv[1])
heavy = [name for name in ("jax", "flax", "dask", "mlflow", "pyarrow", "pandas") if name in sys.modules]
dags = {
    dag.dag_id: {
        "doc": dag.doc_md,
        "display_name": dag.dag_display_name,
        "file": os.path.basename(dag.fileloc),
        "tags": sorted(dag.tags),
        "schedule": dag.schedule if dag.schedule is None else str(dag.schedule),
        "max_active_runs": dag.max_active_runs,
        "starts_paused": dag.is_paused_upon_creation,
        "params": {
            name: param.schema | {"default": param.value, "help": param.description or param.schema["description_md"]}
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
                "retries": task.retries,
                "backs_off": bool(task.retry_exponential_backoff),
                "links": sorted(link.name for link in task.operator_extra_links),
            }
            for task in dag.tasks
        },
    }
    for dag in bag.dags.values()
}
files = sorted(stat.file.lstrip("/") for stat in bag.dagbag_stats)
print("RESULT " + json.dumps({"errors": bag.import_errors, "heavy": heavy, "files": files, "dags": dags}))
"""


def parse(path: Path, airflow_home: Path) -> dict[str, Any]:
    """Parses a DAG file, or a folder of them, in a new process."""
    environment = airflow_environment(airflow_home)
    command = [sys.executable, "-c", DESCRIBE, str(path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert results, done.stderr
    return json.loads(results[0].removeprefix("RESULT "))


@pytest.fixture(scope="module")
def parsed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return parse(CHECKOUT / "dags", tmp_path_factory.mktemp("airflow"))


# Has a second round of training.
IN_ROUNDS = ["relative_loss", "decomposition"]
TRAINED = ["relative_loss", "clip_norm", "large_batch", "optimizers", "microbatch", "accountants", "label_dp"]
MEASURED = ["throughput", "noise_and_batch"]


def test_every_dag_parses_without_loading_anything_heavy(parsed: dict[str, Any]) -> None:
    assert parsed["errors"] == {}
    assert parsed["heavy"] == []
    assert set(parsed["dags"]) == {"prepare_data", "nightly_retrain_conversions", *TRAINED, *IN_ROUNDS, *MEASURED}
    assert set(load_config(CHECKOUT / "pipelines.yaml").pipelines) == {*TRAINED, *IN_ROUNDS, *MEASURED}


def test_a_dag_belongs_to_the_file_that_registers_it(parsed: dict[str, Any]) -> None:
    assert parsed["dags"]["prepare_data"]["file"] == "prepare_data.py"
    assert {parsed["dags"][name]["file"] for name in (*TRAINED, *IN_ROUNDS, *MEASURED)} == {"paper.py"}


def test_the_factory_registers_nothing(parsed: dict[str, Any], tmp_path: Path) -> None:
    """Airflow does not parse it as a DAG file; if it did, it would find no DAG and no error."""
    assert parsed["files"] == ["nightly.py", "paper.py", "prepare_data.py"]
    for name in ("factory.py", "nights.py"):
        factory = parse(CHECKOUT / "dags" / name, tmp_path)
        assert (factory["errors"], factory["dags"], factory["heavy"]) == ({}, {}, [])


def test_a_new_dag_is_one_file(parsed: dict[str, Any], tmp_path: Path) -> None:
    """The example in the factory's docstring works, also in another DAG folder."""
    example = (CHECKOUT / "dags" / "factory.py").read_text().partition("::\n")[2].partition("'''")[0]
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "nightly.py").write_text(textwrap.dedent(example))
    found = parse(folder, tmp_path)
    assert (found["errors"], list(found["dags"])) == ({}, ["relative_loss_nightly"])
    nightly = found["dags"]["relative_loss_nightly"]
    assert (nightly["file"], nightly["schedule"]) == ("nightly.py", "@daily")
    assert nightly["tasks"] == parsed["dags"]["relative_loss"]["tasks"]


def assert_chain(tasks: dict[str, Any], chain: list[str]) -> None:
    """Asserts that each task leads to the next, and that no other edges exist but from plan to report."""
    assert set(tasks) == set(chain)
    for task, following in itertools.pairwise(chain):
        assert following in tasks[task]["downstream"]
    assert set(tasks["plan"]["downstream"]) <= {*chain[3:], "report"}
    assert tasks["report"]["downstream"] == []
    assert all(task["retries"] >= 2 and task["backs_off"] for task in tasks.values())
    assert tasks["report"]["trigger_rule"] == "none_failed", "runs although train and audit were skipped"


@pytest.mark.parametrize("name", sorted(set(TRAINED) - set(IN_ROUNDS)))
def test_what_trains_is_a_chain_with_mapped_groups(parsed: dict[str, Any], name: str) -> None:
    tasks = parsed["dags"][name]["tasks"]
    chain = ["check", "prepare", "plan", "train", "audit", "report"]
    assert_chain(tasks, chain)
    assert [task for task in chain if tasks[task]["mapped"]] == ["train"]
    assert tasks["train"]["pool"] == "gpu"
    assert tasks["train"]["named"]
    assert tasks["train"]["links"] == tasks["audit"]["links"] == ["Trials in MLflow"]
    assert tasks["report"]["links"] == ["Report"]
    assert "Data card of synthetic_display" in tasks["prepare"]["links"]


def test_a_search_in_rounds_is_unrolled(
    parsed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two rounds of further values and one of other seeds follow the first. A round that is skipped skips the next."""
    text = (CHECKOUT / "pipelines.yaml").read_text()
    before, name, after = text.partition("  accountants:\n")
    searched = "epsilons: [1, 10]\n        search: extend\n        trainings: 2\n"
    (tmp_path / "mine.yaml").write_text(before + name + after.replace("epsilons: [1, 10]\n", searched, 1))
    monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "mine.yaml"))
    found = parse(CHECKOUT / "dags" / "paper.py", tmp_path)
    assert (found["errors"], found["heavy"]) == ({}, [])
    dag = found["dags"]["accountants"]
    assert "there are up to 4 rounds" in dag["doc"]
    tasks = dag["tasks"]
    rounds = [name for number in (2, 3, 4) for name in (f"next_round_{number}", f"train_{number}")]
    assert_chain(tasks, ["check", "prepare", "plan", "train", *rounds, "audit", "report"])
    for number in (2, 3, 4):
        planning, training = tasks[f"next_round_{number}"], tasks[f"train_{number}"]
        assert planning["trigger_rule"] == "none_failed_min_one_success"
        above = {name for name, task in tasks.items() if f"next_round_{number}" in task["downstream"]}
        first = {"plan", "train"} if number == 2 else {f"next_round_{number - 1}", f"train_{number - 1}"}
        assert above == first, "nothing else that would start it"
        assert {**training, "downstream": None} == {**tasks["train"], "downstream": None}
        assert training["mapped"]
    assert tasks["audit"]["trigger_rule"] == "none_failed"
    others = {name: dag["tasks"] for name, dag in found["dags"].items() if name != "accountants"}
    assert others == {name: parsed["dags"][name]["tasks"] for name in others}, "one round stays as it was"
    assert parsed["dags"]["accountants"]["tasks"]["audit"]["trigger_rule"] == "all_success"


@pytest.mark.parametrize("name", MEASURED)
def test_what_trains_nothing_is_a_chain_that_measures(parsed: dict[str, Any], name: str) -> None:
    tasks = parsed["dags"][name]["tasks"]
    assert_chain(tasks, ["check", "prepare", "plan", "measure", "report"])
    assert not any(task["mapped"] for task in tasks.values())
    assert tasks["measure"]["pool"] == "gpu", "nothing trains while speed is measured"


@pytest.mark.parametrize("name", [*TRAINED, *MEASURED])
def test_the_trigger_form_offers_the_choices(parsed: dict[str, Any], name: str) -> None:
    params = parsed["dags"][name]["params"]
    pipeline = load_config(CHECKOUT / "pipelines.yaml").pipeline(name)
    fields = {"profile", "tasks", "epsilons", "seeds", "dataset", "raw"}
    without_effect = {"throughput": {"epsilons", "seeds"}, "noise_and_batch": {"seeds"}}
    assert set(params) == fields - without_effect.get(name, set())
    assert params["profile"]["default"] == "quick"
    assert params["profile"]["enum"] == ["smoke", "quick", "paper"]
    assert "\n- **paper**: The paper's settings" in params["profile"]["help"], "a line for each"
    assert params["tasks"]["default"] == list(pipeline.datasets)
    assert params["dataset"]["values_display"] == {"null": "the pipeline's own"}
    assert all(params[key]["default"] is None for key in set(params) - {"profile", "tasks"})
    assert all(param["title"] == FIELDS[name] and param["help"] for name, param in params.items())


@pytest.mark.parametrize(
    ("name", "value", "accepted"),
    [
        *(("epsilons", value, True) for value in ("1, 10,", None, "", "1", " 1, 10 ", "0.5,1e-1,.3", [1, 0.5], [])),
        *(("epsilons", value, False) for value in ("1;10", "1 10", "-1", "inf", ",", [0], ["1"], 1)),
        *(("tasks", value, True) for value in (["pctr"], ["pcvr", "pctr"])),
        *(("tasks", value, False) for value in ([], None, ["pctr", "pctr"], ["ctr"], "pctr")),
        *(("seeds", value, value in (None, 1, 100)) for value in (None, 1, 100, 0, 101, 1.5)),
        *(("dataset", value, value != "mine") for value in (None, "synthetic_clicks", "mine")),
    ],
)
def test_a_field_takes_what_the_form_and_the_command_line_send(
    parsed: dict[str, Any], name: str, value: Any, accepted: bool
) -> None:
    schema = parsed["dags"]["relative_loss"]["params"][name]
    assert jsonschema.Draft202012Validator(schema).is_valid(value) == accepted


@pytest.mark.parametrize("name", [*TRAINED, *MEASURED])
def test_a_dag_says_what_it_is(parsed: dict[str, Any], name: str) -> None:
    dag = parsed["dags"][name]
    title = load_config(CHECKOUT / "pipelines.yaml").pipeline(name).title
    assert dag["display_name"] == f"{name} · {title.partition(' (')[0]}", "the UI's search looks at this name only"
    assert f"### {title.partition(' (')[0]}" in dag["doc"]
    assert f"`reports/{name}/`" in dag["doc"]
    assert ("Nothing is trained" in dag["doc"]) == (name in MEASURED)
    assert (dag["schedule"], dag["max_active_runs"]) == (None, 1)
    assert "paper" in dag["tags"]
    (exhibit,) = set(dag["tags"]) - {"paper"}
    assert exhibit.startswith(("Table ", "Figure "))
    assert exhibit in title


def test_a_decomposition_trains_once_more_than_what_it_takes_apart(parsed: dict[str, Any]) -> None:
    rounds = {
        name: {task for task in parsed["dags"][name]["tasks"] if task.startswith("next_round_")}
        for name in ("relative_loss", "decomposition")
    }
    last = len(rounds["relative_loss"]) + 2
    assert rounds["decomposition"] - rounds["relative_loss"] == {f"next_round_{last}"}


def test_no_documentation_is_indented(parsed: dict[str, Any]) -> None:
    """Markdown would show indented lines as code."""
    for dag in parsed["dags"].values():
        assert dag["doc"].strip().startswith("### ")
        assert not [line for line in dag["doc"].splitlines() if line.startswith(" ")]


def test_names_and_exhibits_are_distinct(parsed: dict[str, Any]) -> None:
    dags = list(parsed["dags"].values())
    assert len({dag["display_name"] for dag in dags}) == len(dags) == 12
    assert len({tuple(dag["tags"]) for dag in dags}) == 12


def test_a_night_is_a_chain_that_waits_until_it_is_switched_on(parsed: dict[str, Any]) -> None:
    night = parsed["dags"]["nightly_retrain_conversions"]
    chain = ["open", "wait", "check_data", "prepare", "reserve", "train", "audit", "register", "decide", "report"]
    tasks = night["tasks"]
    assert set(tasks) == set(chain)
    for task, following in itertools.pairwise(chain):
        assert tasks[task]["downstream"] == [following]
    assert all(task["retries"] >= 2 and task["backs_off"] for task in tasks.values())
    assert (tasks["train"]["pool"], tasks["report"]["links"]) == ("gpu", ["Report"])
    assert tasks["open"]["outlets"] == ["later_nights_of_conversions"], "no event after each night"
    assert (night["file"], night["max_active_runs"], night["starts_paused"]) == ("nightly.py", 1, True)
    assert (night["params"]["day"]["title"], night["params"]["day"]["default"]) == ("Day", None)


def test_preparing_produces_the_asset(parsed: dict[str, Any]) -> None:
    prepare = parsed["dags"]["prepare_data"]
    assert prepare["tasks"]["check"]["downstream"] == ["prepare"]
    assert prepare["tasks"]["prepare"]["outlets"] == ["prepared_data"]
    assert set(prepare["params"]) == {"pipeline", "profile", "dataset", "tasks", "raw", "refit"}
    assert prepare["params"]["pipeline"]["enum"] == list(load_config(CHECKOUT / "pipelines.yaml").pipelines)


def test_the_forms_share_their_fields(parsed: dict[str, Any]) -> None:
    prepare, pipeline = (parsed["dags"][name]["params"] for name in ("prepare_data", "relative_loss"))
    for name in ("profile", "dataset", "raw"):
        assert prepare[name] == pipeline[name]
    assert prepare["tasks"]["title"] == pipeline["tasks"]["title"]
    assert prepare["tasks"]["default"] is None


def test_the_forms_offer_what_another_configuration_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The defaults of the forms exist, without a profile `quick` or a pipeline `relative_loss`."""
    text = (CHECKOUT / "pipelines.yaml").read_text().replace("  quick:\n", "  night:\n")
    text = text.replace("profile: quick", "profile: night")
    (tmp_path / "mine.yaml").write_text(text.replace("  relative_loss:\n", "  mine:\n"))
    monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "mine.yaml"))
    found = parse(CHECKOUT / "dags", tmp_path)
    assert found["errors"] == {}
    params = found["dags"]["prepare_data"]["params"]
    assert (params["pipeline"]["default"], params["profile"]["default"]) == ("mine", "smoke")
    assert found["dags"]["mine"]["params"]["profile"]["default"] == "smoke"
