"""Options of a run: the pipeline's defaults, what overrides them, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tasks.config.loading import Config, load_config
from tasks.config.selection import EPSILONS_PATTERN, FIELDS, Selection, examine, run_title, select
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT

SHIPPED = CHECKOUT / "pipelines.yaml"


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config(SHIPPED)


@pytest.fixture
def raw_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.txt"
    path.write_text("1\t2\n")
    return path


def edited(tmp_path: Path, **criteo: Any) -> Config:
    """Returns the shipped file with other settings for its real dataset."""
    content = yaml.safe_load(SHIPPED.read_text())
    content["datasets"]["criteo_kaggle"].update(criteo)
    path = tmp_path / "pipelines.yaml"
    path.write_text(yaml.safe_dump(content))
    return load_config(path)


def refusal(config: Config, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        select(config, options)
    return str(caught.value)


def test_nothing_chosen_is_the_pipeline_itself_under_the_quick_profile(config: Config) -> None:
    assert select(config, {}) == Selection(
        pipeline="relative_loss",
        profile="quick",
        tasks=("pctr", "pcvr", "pconvs"),
        datasets={"pctr": "synthetic_display", "pcvr": "synthetic_clicks", "pconvs": "synthetic_clicks"},
        epsilons=(0.5, 1, 3, 10, 50),
        seeds=3,
        raw=None,
    )


@pytest.mark.parametrize("empty", [None, "", " "])
def test_what_is_left_empty_is_the_pipelines_own(config: Config, empty: Any) -> None:
    assert select(config, {"tasks": empty, "epsilons": empty}) == select(config, {})
    names = ("pipeline", "profile", "dataset", "raw")
    assert select(config, dict.fromkeys(names, empty and empty.strip())) == select(config, {})


def test_no_task_at_all_is_not_every_task(config: Config) -> None:
    assert refusal(config, tasks=[]) == "Prediction tasks: choose at least one of pCTR, pCVR, pConvs"
    assert select(config, {"epsilons": []}) == select(config, {})


def test_a_text_with_commas_is_a_list(config: Config) -> None:
    """The form and the command line send text; JSON may have lists."""
    assert select(config, {"tasks": "pCVR, pctr", "epsilons": "10, .5,1e0"}) == select(
        config, {"tasks": ["pcvr", "pctr"], "epsilons": [0.5, 1, 10.0]}
    )


def test_the_profile_brings_its_grid(config: Config) -> None:
    smoke = select(config, {"profile": "smoke"})
    assert (smoke.epsilons, smoke.seeds) == ((1, 10), 1)


def test_chosen_numbers_replace_the_grids(config: Config) -> None:
    chosen = select(config, {"epsilons": [10, 0.1, 3.0], "seeds": 7})
    assert chosen.epsilons == (0.1, 3, 10), "in order"
    assert all(type(epsilon) is float for epsilon in chosen.epsilons)
    assert chosen.seeds == 7


@given(st.text("0123456789.eE+-_, ", max_size=12))
@example("1, 10,")
@example(",1")
@example("+1")
@example("1_0")
def test_the_form_takes_every_text_of_budgets_that_a_run_takes(text: str) -> None:
    """Airflow would refuse it with a regular expression instead of a sentence."""
    selection, problems = examine(load_config(SHIPPED), {"epsilons": text})
    if selection is not None and not problems:
        assert re.search(EPSILONS_PATTERN, text)


def test_a_whole_number_of_seeds_may_come_as_a_float_from_json(config: Config) -> None:
    seeds = select(config, {"seeds": 3.0}).seeds
    assert seeds == 3
    assert type(seeds) is int


def test_chosen_tasks_come_in_the_order_given(config: Config) -> None:
    chosen = select(config, {"tasks": ["pconvs", "pctr"]})
    assert chosen.tasks == ("pconvs", "pctr")
    assert chosen.datasets == {"pconvs": "synthetic_clicks", "pctr": "synthetic_display"}


def test_a_dataset_is_for_all_tasks(config: Config) -> None:
    chosen = select(config, {"dataset": "synthetic_clicks", "tasks": ["pcvr", "pconvs"]})
    assert set(chosen.datasets.values()) == {"synthetic_clicks"}


def test_a_raw_file_is_made_absolute(config: Config, raw_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(raw_file.parent)
    chosen = select(config, {"dataset": "criteo_kaggle", "tasks": ["pctr"], "raw": raw_file.name})
    assert chosen.raw == str(raw_file.resolve())


def test_a_raw_file_in_the_yaml_needs_no_choice(tmp_path: Path, raw_file: Path) -> None:
    config = edited(tmp_path, raw=str(raw_file))
    assert select(config, {"dataset": "criteo_kaggle", "tasks": ["pctr"]}).raw is None


def test_a_selection_survives_being_selected_again(config: Config) -> None:
    """``run`` checks the options, then passes them to the DAG; its steps check them again."""
    options = {"pipeline": "relative_loss", "profile": "smoke", "tasks": ["pcvr"], "epsilons": [2.0], "seeds": 2}
    chosen = select(config, options)
    again = {name: getattr(chosen, name) for name in options}
    assert select(config, again) == chosen


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"sedes": 3, "epsilon": 1},
            "unknown option epsilon, sedes; known: pipeline, profile, tasks, epsilons, seeds, dataset, raw",
        ),
        (
            {"pipeline": "relative_los"},
            "Pipeline: unknown pipeline 'relative_los' (did you mean 'relative_loss'?); known: "
            "relative_loss, decomposition, clip_norm, large_batch, throughput, optimizers, noise_and_batch, "
            "microbatch, accountants, label_dp",
        ),
        (
            {"profile": "papper"},
            "Profile: unknown profile 'papper' (did you mean 'paper'?); known: smoke, quick, paper",
        ),
        (
            {"tasks": ["pctr", "ctr"]},
            "Prediction tasks: there is no task 'ctr' (did you mean 'pctr'?); known: pctr, pcvr, pconvs",
        ),
        ({"tasks": ["pctr", "pcvr", "pctr"]}, "Prediction tasks: pctr is listed twice"),
        ({"epsilons": "1,10,1.0"}, "Privacy budgets ε: 1 is listed twice"),
        ({"seeds": 101}, "Seeds: 101 is too many; at most 100"),
        (
            {"dataset": "criteo", "tasks": ["pctr"]},
            "Dataset: unknown dataset 'criteo' (did you mean 'criteo_search'?); "
            "known: synthetic_display, synthetic_clicks, heavy_display, heavy_clicks, synthetic_days, criteo_kaggle, "
            "criteo_attribution, criteo_search",
        ),
        (
            {"dataset": "synthetic_clicks"},
            "Dataset: synthetic_clicks has no label for pCTR; it has pCVR, pConvs. Choose Prediction tasks to match",
        ),
        (
            {"dataset": "criteo_kaggle", "tasks": ["pctr"]},
            "Raw log: criteo_kaggle has no raw log. Give its file, folder or pattern, or set "
            "`datasets.criteo_kaggle.raw` in pipelines.yaml",
        ),
        (
            {"dataset": "criteo_kaggle", "tasks": ["pctr"], "raw": "/nowhere/train.txt"},
            "Raw log: the raw log /nowhere/train.txt does not exist",
        ),
        (
            {"raw": "/nowhere/train.txt"},
            "Raw log: it is for one Dataset, but the tasks read synthetic_display and synthetic_clicks: choose one",
        ),
    ],
)
def test_impossible_choices(config: Config, options: dict[str, Any], message: str) -> None:
    assert refusal(config, **options) == message


@pytest.mark.parametrize("epsilon", [0, -1, float("inf"), float("nan"), "inf", "1;2", "", None, True])
def test_epsilon_must_be_positive_and_finite(config: Config, epsilon: Any) -> None:
    assert refusal(config, epsilons=[1, epsilon]) == (
        f"Privacy budgets ε: {repr(epsilon) if isinstance(epsilon, str) else epsilon} is not a positive number; give "
        "numbers such as 1 or 0.5,1,10. The baseline without privacy (ε = inf) always runs"
    )


@pytest.mark.parametrize("seeds", [0, -1, 1.5, float("inf"), float("nan"), "2", True])
def test_seeds_must_be_a_count(config: Config, seeds: Any) -> None:
    assert refusal(config, seeds=seeds) == (
        f"Seeds: {repr(seeds) if isinstance(seeds, str) else seeds} is not a positive whole number, "
        "the number of seeds to average over"
    )


def test_an_option_without_effect_is_refused(config: Config) -> None:
    assert refusal(config, pipeline="throughput", epsilons="1,10", seeds=2).splitlines() == [
        "Privacy budgets ε: the pipeline throughput has no budgets, so leave this empty",
        "Seeds: the pipeline throughput trains nothing, so leave this empty",
    ]
    assert "Seeds: " in refusal(config, pipeline="noise_and_batch", epsilons="1,10", seeds=2)
    assert select(config, {"pipeline": "noise_and_batch", "epsilons": "1,10"}).epsilons == (1, 10)


@pytest.mark.parametrize("value", [5, ["smoke"], {"a": 1}, True])
@pytest.mark.parametrize("option", ["pipeline", "profile", "dataset", "raw"])
def test_a_name_must_be_text(config: Config, option: str, value: Any) -> None:
    """Only a program can send something else; other problems are said all the same."""
    assert refusal(config, **{option: value}, seeds=0).splitlines() == [
        f"{FIELDS[option]}: {value} is not a text",
        "Seeds: 0 is not a positive whole number, the number of seeds to average over",
    ]


@pytest.mark.parametrize("value", [10**400, "1" * 400, 10**5000], ids=["number", "text", "longer"])
def test_a_number_without_end_is_refused_in_short(config: Config, value: Any) -> None:
    for option in ("epsilons", "seeds"):
        assert len(refusal(config, **{option: value})) < 200


def test_a_raw_file_and_a_synthetic_dataset_exclude_each_other(config: Config, raw_file: Path) -> None:
    assert refusal(config, tasks=["pctr"], raw=str(raw_file)) == (
        "Raw log: synthetic_display is synthetic and generates its own log. Choose the Dataset that describes your "
        "files, one of: criteo_kaggle, criteo_attribution, criteo_search"
    )


def test_an_empty_folder_is_no_raw_log(config: Config, tmp_path: Path) -> None:
    message = refusal(config, dataset="criteo_kaggle", tasks=["pctr"], raw=str(tmp_path))
    assert message == f"Raw log: the raw log {tmp_path} is a folder without files"


def test_a_raw_file_in_the_yaml_must_be_there(tmp_path: Path) -> None:
    config = edited(tmp_path, raw="/nowhere/train.txt")
    message = refusal(config, dataset="criteo_kaggle", tasks=["pctr"])
    assert message == (
        "Dataset: datasets.criteo_kaggle.raw in pipelines.yaml: the raw log /nowhere/train.txt does not exist"
    )


def test_a_task_that_the_pipeline_does_not_have(tmp_path: Path) -> None:
    content = yaml.safe_load(SHIPPED.read_text())
    del content["pipelines"]["relative_loss"]["datasets"]["pctr"]
    path = tmp_path / "pipelines.yaml"
    path.write_text(yaml.safe_dump(content))
    message = refusal(load_config(path), tasks=["pctr"])
    assert message == "Prediction tasks: the pipeline relative_loss has no pCTR; it has pConvs, pCVR"


def test_a_profile_without_a_grid(tmp_path: Path) -> None:
    content = yaml.safe_load(SHIPPED.read_text())
    del content["pipelines"]["relative_loss"]["grids"]["paper"]
    path = tmp_path / "pipelines.yaml"
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    message = refusal(load_config(path), profile="paper")
    assert message == "Profile: pipeline 'relative_loss' has no grid for profile 'paper'; it has: smoke, quick"


def test_a_run_is_named_for_what_it_is(config: Config, raw_file: Path) -> None:
    smoke = {"profile": "smoke"}
    assert run_title(select(config, smoke)) == "smoke · pCTR, pCVR, pConvs · ε 1, 10"
    assert run_title(select(config, {"pipeline": "throughput"})) == "quick · pCTR", "nothing private"
    many = ",".join(str(number) for number in range(1, 12))
    assert run_title(select(config, {**smoke, "tasks": "pctr", "epsilons": many})) == (
        "smoke · pCTR · 11 budgets ε 1 to 11"
    )
    own = {**smoke, "dataset": "criteo_kaggle", "tasks": "pctr", "raw": str(raw_file)}
    assert run_title(select(config, own)) == "smoke · pCTR · ε 1, 10 · criteo_kaggle"
