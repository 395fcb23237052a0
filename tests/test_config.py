"""``pipelines.yaml``: what the shipped file says, and every mistake with its place and what would be right."""

from __future__ import annotations

import copy
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from pydantic import ValidationError

from tasks.config import Config, config_path, load_config
from tasks.descriptions import TASKS, Dataset
from tasks.errors import UserError
from tasks.grids import LabelGrid, TaskGrid, TrainingGrid
from tasks.home import CHECKOUT
from tasks.plan import _combinations

TEXT = (CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8")
DATA = yaml.safe_load(TEXT)
PAPER = "pipelines.relative_loss.grids.paper"

# A small file in which every kind of section occurs; its line numbers are easily counted.
SMALL = """\
datasets:
  logs:
    synthetic: {kind: display}
    format: tsv
    columns: [click, n, c]
    integer_columns: [n]
    categorical_columns: [c]
    labels: {pctr: {column: click, kind: binary}}
profiles:
  tiny:
    synthetic_rows: 1000
    min_count: 2
    hidden_layers: [4, 4]
pipelines:
  sweep:
    title: A sweep
    datasets: {pctr: logs}
    grids:
      tiny:
        epsilons: [1, 10]
        seeds: 1
        tasks:
          pctr:
            non_private: {optimizer: yogi, learning_rate: 0.01, batch_size: 64, epochs: 1}
            dp_sgd:
              optimizer: sgd
              learning_rate: 0.1
              batch_size: 128
              epochs: 2
              l2_clip_norm: [1, 4]
"""
GRID = "pipelines.sweep.grids.tiny"
DP_SGD = f"{GRID}.tasks.pctr.dp_sgd"

Load = Callable[[str], Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def write_and_load(text: str) -> Config:
        path = tmp_path / "my.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)

    return write_and_load


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must be there once"
    return text.replace(old, new)


def line_of(text: str, part: str) -> int:
    assert text.count(part) == 1, f"{part!r} must be there once"
    return text[: text.index(part)].count("\n") + 1


def mistakes(load: Load, text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(text)
    return str(caught.value).splitlines()


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to a node and to everything below it."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield from walk(child, (*path, name))


def private_grids(grid: TaskGrid) -> list[tuple[str, TrainingGrid]]:
    found = {"dp_sgd": grid.dp_sgd, "label_dp": grid.label_dp}
    return [(name, settings) for name, settings in found.items() if settings is not None]


class TestShippedFile:
    def test_is_the_one_in_force(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DP_ADS_CONFIG", raising=False)
        assert config_path() == CHECKOUT / "pipelines.yaml"
        assert load_config() == load_config(CHECKOUT / "pipelines.yaml")

    def test_can_be_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "own.yaml"
        path.write_text(SMALL)
        monkeypatch.setenv("DP_ADS_CONFIG", str(path))
        assert list(load_config().pipelines) == ["sweep"]

    def test_says_what_the_paper_says(self, load: Load) -> None:
        config = load(TEXT)
        profile, grids = config.profile("paper"), config.grids("relative_loss", "paper")
        assert profile.synthetic_rows == 45_840_617
        assert profile.hidden_layers == (598, 598, 598, 598)
        assert grids.epsilons == (0.5, 1, 3, 5, 10, 30, 50)
        assert grids.seeds == 5
        assert set(grids.tasks) == set(TASKS)
        for grid in grids.tasks.values():
            assert grid.dp_sgd.batch_size == (65_536,)
            assert grid.dp_sgd.epochs == (150,)
            assert grid.dp_sgd.optimizer == ("sgd",)
            assert grid.dp_sgd.momentum == 0.9
            assert grid.non_private.optimizer == ("yogi",)
        assert config.dataset("criteo_kaggle").columns == (
            "label",
            *(f"I{number}" for number in range(1, 14)),
            *(f"C{number}" for number in range(1, 27)),
        )

    def test_has_the_papers_result_for_each_of_its_budgets(self, load: Load) -> None:
        config = load(TEXT)
        for task, results in config.pipeline("relative_loss").paper.items():
            assert tuple(results) == config.grids("relative_loss", "paper").epsilons, task

    def test_has_every_exhibit_of_the_paper_in_three_sizes(self, load: Load) -> None:
        config = load(TEXT)
        assert list(config.pipelines) == [
            *("relative_loss", "clip_norm", "large_batch", "throughput", "optimizers", "noise_and_batch"),
            *("microbatch", "accountants", "label_dp"),
        ]
        for name, pipeline in config.pipelines.items():
            assert pipeline.exhibit == name
            assert list(pipeline.grids) == ["smoke", "quick", "paper"]
            assert "(the paper's " in pipeline.title

    def test_the_papers_tables_have_the_papers_settings(self, load: Load) -> None:
        """Tables 2, 3 and 4 and their captions, as they stand in the paper."""
        config = load(TEXT)
        clip_norm, large_batch = (config.grids(name, "paper") for name in ("clip_norm", "large_batch"))
        for grids in (clip_norm, large_batch):
            assert (grids.epsilons, grids.seeds) == ((0.5, 3, 8), 5)
        two, three = clip_norm.tasks["pctr"].dp_sgd, large_batch.tasks["pctr"].dp_sgd
        assert two is not None
        assert three is not None
        assert (two.l2_clip_norm, two.batch_size, two.epochs) == ((1, 3, 30), (1024,), (8,))
        # Table 3, and the row of Table 2 that its caption compares it with.
        assert three.l2_clip_norm == (30,)
        assert set(zip(three.batch_size, three.epochs, strict=True)) == {(1024, 8), (8192, 32), (16_384, 64)}
        assert config.pipeline("large_batch").together == ("batch_size", "epochs")
        assert config.pipeline("clip_norm").paper == {
            "C = 1": {0.5: 0.7498, 3: 0.7524, 8: 0.7528},
            "C = 3": {0.5: 0.7441, 3: 0.7610, 8: 0.7629},
            "C = 30": {0.5: 0.5000, 3: 0.6971, 8: 0.7473},
        }
        assert config.pipeline("large_batch").paper == {
            "batch 1,024 · 8 epochs": {0.5: 0.5000, 3: 0.6971, 8: 0.7473},
            "batch 8,192 · 32 epochs": {0.5: 0.7689, 3: 0.7782, 8: 0.7799},
            "batch 16,384 · 64 epochs": {0.5: 0.7740, 3: 0.7810, 8: 0.7818},
        }
        speed = config.grids("throughput", "paper").speed
        assert speed is not None
        assert speed.batch_sizes == (32, 64, 256, 1024, 4096, 16_384, 65_536, 524_288, 1_048_576)
        assert config.pipeline("throughput").paper["ghost"][524_288] == 0.80

    def test_the_papers_figures_have_the_papers_settings(self, load: Load) -> None:
        """Figures 1 to 5 and their captions."""
        config = load(TEXT)
        one = config.grids("optimizers", "paper").tasks["pctr"].dp_sgd
        assert one is not None
        assert set(one.optimizer) == {"sgd", "yogi", "adagrad", "adam", "adamw"}
        assert one.learning_rate == (0.001, 0.01, 0.1)
        assert len(list(_combinations(one))) == 15
        curves = config.grids("noise_and_batch", "paper").curves
        assert curves is not None
        assert curves.baseline_batch_size == 1024
        assert max(curves.batch_sizes) > 10**6
        three = config.grids("microbatch", "paper").tasks["pctr"].dp_sgd
        assert three is not None
        assert three.l2_clip_norm == three.microbatch_size == (1, 8, 16, 32)
        assert config.pipeline("microbatch").columns == ("l2_clip_norm", "microbatch_size")
        four = config.grids("accountants", "paper").tasks["pctr"].dp_sgd
        assert four is not None
        assert set(four.accountant) == {"tightest", "RDP"}
        five = config.grids("label_dp", "paper").tasks
        assert all(grid.dp_sgd is not None and grid.label_dp is not None for grid in five.values())
        for name, pipeline in config.pipelines.items():
            grids = config.grids(name, "paper")
            assert grids.seeds == 5 or not grids.trains, "the paper averages over five runs"
            assert set(pipeline.paper) or name not in ("relative_loss", "clip_norm", "large_batch", "throughput")

    @pytest.mark.parametrize("profile", ["quick", "paper"])
    def test_methods_that_are_compared_have_equally_many_trainings(self, load: Load, profile: str) -> None:
        """Counted by hand: of every combination of values, those that share the columns' values are one method. In
        Figure 3 subsets are compared by design: one factor tuned alone, and both."""
        config = load(TEXT)
        for name, pipeline in config.pipelines.items():
            for task, grid in config.grids(name, profile).tasks.items():
                methods: Counter[tuple[Any, ...]] = Counter()
                for kind, settings in private_grids(grid):
                    for numbers in _combinations(settings, pipeline.together):
                        methods[(kind, *(numbers.get(column) for column in pipeline.columns))] += 1
                if name != "microbatch":
                    assert len(set(methods.values())) == 1, (name, task, methods)
                assert len(methods) > 1 or not pipeline.columns

    def test_one_value_is_a_list_of_one(self, load: Load) -> None:
        grid = load(SMALL).grids("sweep", "tiny").tasks["pctr"].dp_sgd
        assert grid.learning_rate == (0.1,)
        assert grid.l2_clip_norm == (1, 4)

    def test_a_missing_lookup_names_what_there_is(self, load: Load) -> None:
        with pytest.raises(UserError, match=r"no profile is called 'tinny' \(did you mean 'tiny'\?\); there are: tiny"):
            load(SMALL).profile("tinny")

    def test_is_frozen(self, load: Load) -> None:
        config = load(SMALL)
        for section, field in [
            (config, "profiles"),
            (config.profile("tiny"), "min_count"),
            (config.dataset("logs"), "columns"),
            (config.dataset("logs").labels["pctr"], "kind"),
            (config.grids("sweep", "tiny"), "epsilons"),
            (config.grids("sweep", "tiny").tasks["pctr"].dp_sgd, "l2_clip_norm"),
        ]:
            with pytest.raises(ValidationError, match="frozen"):
                setattr(section, field, getattr(section, field))


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        # Keys
        (
            "    min_count: 2",
            "    min_count: 2\n    evaluation: 3",
            13,
            "profiles.tiny.evaluation: unknown key (did you mean 'evaluations'?); "
            "allowed here: description, synthetic_rows, min_count, hidden_layers, "
            "cross_layers, interaction_dimension, evaluations",
        ),
        (
            "kind: display}",
            "kind: display, sed: 1}",
            3,
            "datasets.logs.synthetic.sed: unknown key (did you mean 'seed'?); allowed here: kind, seed",
        ),
        (
            "              epochs: 2",
            "              epochs: 2\n              qqq: 2",
            30,
            f"{DP_SGD}.qqq: unknown key; "
            "allowed here: optimizer, learning_rate, momentum, batch_size, epochs, model, sampler, "
            "l2_clip_norm, clipping, clip_quantile, microbatch_size, sensitivity, accountant",
        ),
        (
            "datasets:\n",
            "pipeline: {}\ndatasets:\n",
            1,
            "pipeline: unknown key (did you mean 'pipelines'?); allowed here: hardware, datasets, profiles, pipelines",
        ),
        ("    min_count: 2\n", "", 10, "profiles.tiny.min_count: missing"),
        ("              l2_clip_norm: [1, 4]\n", "", 25, f"{DP_SGD}.l2_clip_norm: missing"),
        # Types
        (
            "learning_rate: 0.1\n",
            "learning_rate: fast\n",
            27,
            f"{DP_SGD}.learning_rate: input should be a valid number, got 'fast'",
        ),
        (
            "learning_rate: 0.1\n",
            "learning_rate: 1e-3\n",
            27,
            f"{DP_SGD}.learning_rate: input should be a valid number, got '1e-3' "
            "(YAML reads 1e-3 as text: write 0.001 or 1.0e-3)",
        ),
        (
            "learning_rate: 0.1\n",
            "learning_rate:\n              - 0.1\n              - 2e-1\n",
            29,
            f"{DP_SGD}.learning_rate.1: input should be a valid number, got '2e-1' "
            "(YAML reads 1e-3 as text: write 0.001 or 1.0e-3)",
        ),
        (
            "seeds: 1",
            "seeds: '1'",
            21,
            f"{GRID}.seeds: input should be a valid integer, got '1' (write it without quotes)",
        ),
        ("seeds: 1", "seeds: true", 21, f"{GRID}.seeds: input should be a valid integer, got True"),
        (
            "batch_size: 128",
            "batch_size: 128.0",
            28,
            f"{DP_SGD}.batch_size: input should be a valid integer, got 128.0",
        ),
        ("epsilons: [1, 10]", "epsilons: 1", 20, f"{GRID}.epsilons: should be a list, got 1"),
        ("columns: [click, n, c]", "columns: click", 5, "datasets.logs.columns: should be a list, got 'click'"),
        (
            "hidden_layers: [4, 4]",
            "hidden_layers: [4, wide]",
            13,
            "profiles.tiny.hidden_layers.1: input should be a valid integer, got 'wide'",
        ),
        (
            "    synthetic: {kind: display}",
            "    synthetic: display",
            3,
            "datasets.logs.synthetic: should be keys with values (key: value), got 'display'; allowed here: kind, seed",
        ),
        (
            "    datasets: {pctr: logs}",
            "    datasets:",
            17,
            "pipelines.sweep.datasets: should be keys with values (key: value), got nothing",
        ),
        ("title: A sweep", "title: 7", 16, "pipelines.sweep.title: input should be a valid string, got 7"),
        # Ranges
        ("[1, 10]", "[1, 0]", 20, f"{GRID}.epsilons.1: input should be greater than 0, got 0"),
        ("[1, 10]", "[-0.5, 1]", 20, f"{GRID}.epsilons.0: input should be greater than 0, got -0.5"),
        ("[1, 10]", "[1, .inf]", 20, f"{GRID}.epsilons.1: input should be a finite number, got inf"),
        ("[1, 10]", "[1, .nan]", 20, f"{GRID}.epsilons.1: input should be a finite number, got nan"),
        ("[1, 10]", "[]", 20, f"{GRID}.epsilons: empty: give at least one"),
        ("[1, 10]", "[1, 3, 1.0]", 20, f"{GRID}.epsilons: 1.0 is in the list more than once"),
        ("l2_clip_norm: [1, 4]", "l2_clip_norm: []", 30, f"{DP_SGD}.l2_clip_norm: empty: give at least one"),
        ("seeds: 1", "seeds: 0", 21, f"{GRID}.seeds: input should be greater than or equal to 1, got 0"),
        (
            "synthetic_rows: 1000",
            "synthetic_rows: 999",
            11,
            "profiles.tiny.synthetic_rows: input should be greater than or equal to 1000, got 999",
        ),
        (
            "              epochs: 2",
            "              epochs: 2\n              momentum: 1.0",
            30,
            f"{DP_SGD}.momentum: input should be less than 1, got 1.0",
        ),
        # Names
        (
            "optimizer: sgd",
            "optimizer: sdg",
            26,
            f"{DP_SGD}.optimizer: input should be 'sgd', 'yogi', 'adagrad', 'adam' or 'adamw', got 'sdg'",
        ),
        (
            "{pctr: {column: click, kind: binary}}",
            "{ctr: {column: click, kind: binary}}",
            8,
            "datasets.logs.labels.ctr: input should be 'pctr', 'pcvr' or 'pconvs', got 'ctr'",
        ),
        (
            "kind: binary",
            "kind: bool",
            8,
            "datasets.logs.labels.pctr.kind: input should be 'binary', 'any' or 'count', got 'bool'",
        ),
        ("format: tsv", "format: xml", 4, "datasets.logs.format: input should be 'tsv', 'csv' or 'parquet', got 'xml'"),
        (
            "datasets: {pctr: logs}",
            "datasets: {pctr: log}",
            17,
            "pipelines.sweep.datasets.pctr: no dataset is called 'log' (did you mean 'logs'?); there are: logs",
        ),
        (
            "      tiny:\n",
            "      tinny:\n",
            19,
            "pipelines.sweep.grids.tinny: no profile is called 'tinny' (did you mean 'tiny'?); there are: tiny",
        ),
        # Combinations
        (
            "batch_size: 128",
            "batch_size: [128, 801]",
            28,
            f"{DP_SGD}.batch_size: a batch of 801 is larger than the 800 training examples "
            "that profile 'tiny' makes (80 % of synthetic_rows)",
        ),
        ("datasets: {pctr: logs}", "datasets: {}", 17, "pipelines.sweep.datasets: empty: give at least one"),
        (
            "    columns: [click, n, c]\n",
            "",
            2,
            "datasets.logs: a tsv without header needs `columns`, its columns in order; with one, `header: true`",
        ),
        (
            "columns: [click, n, c]",
            "columns: [click, n, c, n]",
            2,
            "datasets.logs: column 'n' is in `columns` more than once",
        ),
        (
            "categorical_columns: [c]",
            "categorical_columns: [c, n]",
            2,
            "datasets.logs: column 'n' is used more than once as a feature",
        ),
        (
            "integer_columns: [n]",
            "integer_columns: [n, click]",
            2,
            "datasets.logs: column 'click' is a label or the time, so it cannot be a feature",
        ),
        (
            "integer_columns: [n]",
            "integer_columns: [n]\n    time_column: c",
            2,
            "datasets.logs: column 'c' is a label or the time, so it cannot be a feature",
        ),
        (
            "column: click",
            "column: clicks",
            2,
            "datasets.logs: column 'clicks' is not in `columns` (did you mean 'click'?)",
        ),
        (
            "    integer_columns: [n]\n    categorical_columns: [c]\n",
            "",
            2,
            "datasets.logs: no features: give `integer_columns` or `categorical_columns`",
        ),
        (
            "{pctr: {column: click, kind: binary}}",
            "{}",
            2,
            "datasets.logs: `labels` is empty: give a label for at least one of pctr, pcvr, pconvs",
        ),
        (
            "    format: tsv",
            "    format: tsv\n    raw: logs.tsv",
            2,
            "datasets.logs: `synthetic` makes the logs and `raw` names a file of them: give one of the two",
        ),
    ],
)
def test_one_mistake_is_one_line(load: Load, old: str, new: str, line: int, message: str) -> None:
    assert mistakes(load, edit(SMALL, old, new)) == [f"my.yaml:{line}: {message}"]


def test_the_small_file_is_valid(load: Load) -> None:
    assert load(SMALL).grids("sweep", "tiny").epsilons == (1, 10)


def test_a_grid_must_cover_the_pipelines_tasks(load: Load) -> None:
    text = edit(
        SMALL,
        "{pctr: {column: click, kind: binary}}",
        "{pctr: {column: click, kind: binary}, pcvr: {column: click, kind: any}}",
    )
    text = edit(text, "datasets: {pctr: logs}", "datasets: {pctr: logs, pcvr: logs}")
    assert mistakes(load, text) == [f"my.yaml:22: {GRID}.tasks: no grid for pcvr, which the pipeline has a dataset for"]


def test_a_task_needs_a_label(load: Load) -> None:
    text = edit(TEXT, "pctr: synthetic_display, pcvr", "pctr: synthetic_clicks, pcvr")
    assert mistakes(load, text) == [
        f"my.yaml:{line_of(text, 'pctr: synthetic_clicks')}: pipelines.relative_loss.datasets.pctr: "
        "dataset 'synthetic_clicks' has no label for pctr; it has: pcvr, pconvs"
    ]


def test_a_mistake_in_an_anchor_is_told_once(load: Load) -> None:
    """The three tasks of the shipped grids are aliases of one section."""
    old = "optimizer: sgd, learning_rate: 0.01, momentum: 0.9, batch_size: 65536"
    text = edit(TEXT, old, old.replace("sgd", "sdg"))
    (only,) = mistakes(load, text)
    assert only.startswith(
        f"my.yaml:{line_of(text, 'sdg')}: {PAPER}.tasks.pctr.dp_sgd.optimizer: input should be 'sgd'"
    )


def test_a_merged_section_keeps_its_lines(load: Load) -> None:
    text = edit(SMALL, "    synthetic_rows: 1000\n", "    <<: *large\n    min_count: 0\n")
    text = edit(text, "    min_count: 2\n", "")
    text = edit(
        text,
        "profiles:\n",
        "profiles:\n  big: &large\n    synthetic_rows: 10\n    min_count: 5\n    hidden_layers: [1]\n",
    )
    assert mistakes(load, text) == [
        f"my.yaml:{line_of(text, 'synthetic_rows')}: profiles.big.synthetic_rows: "
        "input should be greater than or equal to 1000, got 10",
        f"my.yaml:{line_of(text, 'min_count: 0')}: profiles.tiny.min_count: "
        "input should be greater than or equal to 1, got 0",
    ]


def test_all_mistakes_are_told_in_the_order_of_the_file(load: Load) -> None:
    text = edit(SMALL, "format: tsv", "format: xml")
    text = edit(text, "min_count: 2", "min_count: two")
    text = edit(text, "epsilons: [1, 10]", "epsilons: [0, .inf, 1e-3]")
    text = edit(text, "l2_clip_norm", "l2_clip_nrom")
    assert [mistake.split(": ")[:2] for mistake in mistakes(load, text)] == [
        ["my.yaml:4", "datasets.logs.format"],
        ["my.yaml:12", "profiles.tiny.min_count"],
        ["my.yaml:20", f"{GRID}.epsilons.0"],
        ["my.yaml:20", f"{GRID}.epsilons.1"],
        ["my.yaml:20", f"{GRID}.epsilons.2"],
        ["my.yaml:25", f"{DP_SGD}.l2_clip_norm"],
        ["my.yaml:30", f"{DP_SGD}.l2_clip_nrom"],
    ]


def test_several_contradictions_are_all_told(load: Load) -> None:
    text = edit(SMALL, "batch_size: 64,", "batch_size: 9000,")
    text = edit(text, "batch_size: 128", "batch_size: 10000")
    text = edit(text, "    datasets: {pctr: logs}", "    datasets: {pctr: logs, pcvr: nowhere}")
    assert [mistake.split(": ")[:2] for mistake in mistakes(load, text)] == [
        ["my.yaml:17", "pipelines.sweep.datasets.pcvr"],
        ["my.yaml:22", f"{GRID}.tasks"],
        ["my.yaml:24", f"{GRID}.tasks.pctr.non_private.batch_size"],
        ["my.yaml:28", f"{DP_SGD}.batch_size"],
    ]


def test_a_batch_may_be_larger_than_synthetic_data_where_the_data_is_not_synthetic(load: Load) -> None:
    text = edit(edit(SMALL, "    synthetic: {kind: display}\n", ""), "batch_size: 128", "batch_size: 10000")
    assert load(text).grids("sweep", "tiny").tasks["pctr"].dp_sgd.batch_size == (10_000,)


LABEL_DP = """\
            label_dp: {optimizer: yogi, learning_rate: 0.01, batch_size: 64, epochs: 1, response: binary}
"""


# LabelDP alone, and what a table of several ways to be private needs.
ALONE = SMALL[: SMALL.index("            dp_sgd:")] + LABEL_DP
BESIDE = "    title: A sweep\n    exhibit: label_dp\n    columns: [response, debias]\n"


class TestExhibits:
    """What a pipeline shows, and which ways of being private it needs for that."""

    def test_label_dp_may_stand_beside_dp_sgd_or_alone(self, load: Load) -> None:
        config = load(edit(SMALL + LABEL_DP, "    title: A sweep\n", BESIDE))
        grid = config.grids("sweep", "tiny").tasks["pctr"].label_dp
        assert isinstance(grid, LabelGrid)
        assert (grid.response, grid.debias, grid.largest_count) == (("binary",), (True,), 10)
        assert config.pipeline("sweep").columns == ("response", "debias"), "which only one of the two has"
        assert load(ALONE).grids("sweep", "tiny").tasks["pctr"].dp_sgd is None

    def test_nothing_private(self, load: Load) -> None:
        text = SMALL[: SMALL.index("            dp_sgd:")]
        assert mistakes(load, text) == [
            f"my.yaml:23: {GRID}.tasks.pctr: nothing private to train: give dp_sgd, label_dp or both"
        ]

    @pytest.mark.parametrize("response", ["k_ary", "bins"])
    def test_a_response_that_is_for_other_labels(self, load: Load, response: str) -> None:
        assert mistakes(load, ALONE.replace("response: binary", f"response: {response}")) == [
            f"my.yaml:25: {GRID}.tasks.pctr.label_dp.response: {response!r} is not for the labels of pctr; "
            "allowed: binary"
        ]

    def test_counts_are_not_binary(self, load: Load) -> None:
        text = edit(ALONE, "{pctr: {column: click, kind: binary}}", "{pconvs: {column: click, kind: count}}")
        text = edit(text, "datasets: {pctr: logs}", "datasets: {pconvs: logs}")
        text = edit(text, "          pctr:\n", "          pconvs:\n")
        assert mistakes(load, text) == [
            f"my.yaml:25: {GRID}.tasks.pconvs.label_dp.response: 'binary' is not for the labels of pconvs; "
            "allowed: bins, k_ary"
        ]
        assert load(text.replace("response: binary", "response: [k_ary, bins]"))

    def test_a_key_of_dp_sgd_in_label_dp(self, load: Load) -> None:
        (only,) = mistakes(load, SMALL + LABEL_DP.replace("epochs: 1", "epochs: 1, l2_clip_norm: 3"))
        assert only.startswith(f"my.yaml:31: {GRID}.tasks.pctr.label_dp.l2_clip_norm: unknown key; allowed here: ")
        assert only.endswith("response, debias, largest_count")

    def test_a_column_that_is_no_setting(self, load: Load) -> None:
        assert mistakes(load, edit(SMALL, "    title: A sweep\n", BESIDE)) == [
            f"my.yaml:18: pipelines.sweep.columns: {column} is no setting of what pctr trains under tiny"
            for column in ("debias", "response")
        ]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ("[momentum]", "columns.0: input should be 'optimizer'"),
            ("[epochs, epochs]", "columns: 'epochs' is in the list more than once"),
        ],
    )
    def test_a_column_that_cannot_be(self, load: Load, columns: str, message: str) -> None:
        (only,) = mistakes(load, edit(SMALL, "    title: A sweep\n", f"    title: A sweep\n    columns: {columns}\n"))
        assert only.startswith(f"my.yaml:17: pipelines.sweep.{message}")

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            ("              epochs: 2\n", "              epochs: [2, 3]\n"),
            ("batch_size: 64, epochs: 1", "batch_size: [64, 32], epochs: 1"),
        ],
        ids=["dp_sgd", "non_private"],
    )
    def test_lists_in_step_of_different_lengths(self, load: Load, old: str, new: str) -> None:
        """Also of the baseline, whose settings go through the same lists."""
        text = edit(SMALL, "    title: A sweep\n", "    title: A sweep\n    together: [batch_size, epochs]\n")
        assert load(text)
        (only,) = mistakes(load, edit(text, old, new))
        assert only.startswith(
            "my.yaml:17: pipelines.sweep.together: lists to go through in step must be equally long, got {'batch_size'"
        )

    def test_a_random_search_with_columns_or_with_labels(self, load: Load) -> None:
        random = "        seeds: 1\n        search: random\n"
        text = edit(SMALL, "        seeds: 1\n", random)
        assert load(text)
        columns = "    title: A sweep\n    exhibit: clip_norm\n    columns: [l2_clip_norm]\n"
        assert mistakes(load, edit(text, "    title: A sweep\n", columns)) == [
            f"my.yaml:24: {GRID}.search: a table with columns needs every setting: use `search: all`, or no columns"
        ]
        assert mistakes(load, edit(ALONE, "        seeds: 1\n", random)) == [
            f"my.yaml:22: {GRID}.search: what `search: random` costs is not known for label_dp: use `search: all`"
        ]

    def test_missing_budgets(self, load: Load) -> None:
        text = edit(SMALL, "        epsilons: [1, 10]\n", "")
        assert mistakes(load, text) == [f"my.yaml:19: {GRID}.epsilons: missing"]

    CURVES = "        curves: {batch_sizes: [10, 20], epochs: 1, steps: 10}\n"
    SPEED = "        speed: {batch_sizes: [10, 20]}\n"

    def of(self, exhibit: str, grid: str) -> str:
        """The small file with another exhibit and another grid."""
        text = edit(SMALL, "    title: A sweep\n", f"    title: A sweep\n    exhibit: {exhibit}\n")
        return text[: text.index("        epsilons:")] + grid

    def test_what_is_computed_or_measured_trains_nothing(self, load: Load) -> None:
        curves = load(self.of("noise_and_batch", "        epsilons: [1]\n" + self.CURVES)).grids("sweep", "tiny")
        assert not curves.trains
        assert curves.curves is not None
        assert curves.curves.baseline_batch_size == 1024
        speed = load(self.of("throughput", self.SPEED)).grids("sweep", "tiny")
        assert not speed.trains
        assert speed.epsilons == ()
        assert load(SMALL).grids("sweep", "tiny").trains

    def test_curves_need_budgets(self, load: Load) -> None:
        assert mistakes(load, self.of("noise_and_batch", self.CURVES)) == [f"my.yaml:20: {GRID}.epsilons: missing"]

    def test_one_of_three(self, load: Load) -> None:
        told = f"{GRID}: give one of tasks (to train), curves (of noise) and speed (to measure), got "
        assert f"my.yaml:20: {told}none" in mistakes(load, self.of("throughput", "        epsilons: [1]\n"))
        text = self.of("throughput", self.CURVES + self.SPEED)
        assert mistakes(load, text) == [f"my.yaml:20: {told}['curves', 'speed']"]
        text = edit(SMALL, "        seeds: 1\n", self.SPEED)
        assert mistakes(load, text) == [f"my.yaml:19: {told}['tasks', 'speed']"]

    @pytest.mark.parametrize(
        ("exhibit", "grid", "missing"),
        [("clip_norm", SPEED, "tasks"), ("throughput", CURVES, "speed"), ("noise_and_batch", SPEED, "curves")],
        ids=["tasks", "speed", "curves"],
    )
    def test_an_exhibit_of_something_else(self, load: Load, exhibit: str, grid: str, missing: str) -> None:
        """One DAG and one kind of report serve all profiles of a pipeline."""
        text = self.of(exhibit, "        epsilons: [1]\n" + grid)
        assert mistakes(load, text) == [
            f"my.yaml:20: {GRID}: exhibit {exhibit} is made of {missing}, which are missing"
        ]

    @pytest.mark.parametrize(
        ("heading", "line", "message"),
        [
            ("exhibit: clip_norm", 15, "columns: exhibit clip_norm is of columns: [l2_clip_norm]"),
            (
                "exhibit: optimizers\n    columns: [learning_rate]",
                18,
                "columns: exhibit optimizers is of columns: [optimizer, learning_rate]",
            ),
        ],
        ids=["none", "other"],
    )
    def test_an_exhibit_without_its_columns(self, load: Load, heading: str, line: int, message: str) -> None:
        text = edit(SMALL, "    title: A sweep\n", f"    title: A sweep\n    {heading}\n")
        assert mistakes(load, text) == [f"my.yaml:{line}: pipelines.sweep.{message}"]

    def test_two_ways_to_be_private_are_for_one_exhibit(self, load: Load) -> None:
        assert mistakes(load, SMALL + LABEL_DP) == [
            f"my.yaml:23: {GRID}.tasks.pctr: exhibit relative_loss shows one way to be private: dp_sgd or label_dp"
        ]


class TestFile:
    def test_a_key_given_twice(self, load: Load) -> None:
        text = edit(SMALL, "    min_count: 2\n", "    min_count: 2\n    min_count: 3\n")
        text = edit(text, "{kind: display}", "{kind: display, kind: clicks}")
        assert mistakes(load, text) == [
            "my.yaml:3: datasets.logs.synthetic.kind: key given twice",
            "my.yaml:13: profiles.tiny.min_count: key given twice",
        ]

    def test_a_whole_section_given_twice(self, load: Load) -> None:
        last = SMALL.count("\n") + 1
        assert mistakes(load, SMALL + "profiles: {}\n") == [f"my.yaml:{last}: profiles: key given twice"]

    def test_no_yaml(self, load: Load) -> None:
        message = "\n".join(mistakes(load, edit(SMALL, "columns: [click, n, c]", "columns: [click, n, c")))
        assert message.startswith("my.yaml is not valid YAML: ")
        assert '"my.yaml", line 6' in message

    @pytest.mark.parametrize(
        "text", ["a: b: c", "\t- x", "{", "a: *nowhere", "a: \x07", "--- 1\n--- 2\n", "a: !thing x"]
    )
    def test_no_yaml_in_other_ways(self, load: Load, text: str) -> None:
        assert mistakes(load, text)[0].startswith("my.yaml is not valid YAML: ")

    @pytest.mark.parametrize(
        "value", ["2023-13-45", "!!int x", "!!bool maybe", "!!timestamp x", "9" * 5000, "0x" + "f" * 5000]
    )
    def test_a_value_that_yaml_cannot_make(self, load: Load, value: str) -> None:
        message = "\n".join(mistakes(load, edit(SMALL, "min_count: 2", f"min_count: {value}")))
        assert message.startswith("my.yaml is not valid YAML: not a value: ")
        assert '"my.yaml", line 12' in message

    def test_without_end(self, load: Load) -> None:
        expected = ["my.yaml is nested too deeply, or an alias in it refers to itself"]
        assert mistakes(load, "datasets: &self {logs: *self}") == expected
        assert mistakes(load, "[" * 5000) == expected

    @pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
    def test_empty(self, load: Load, text: str) -> None:
        assert mistakes(load, text) == [
            "my.yaml: the file: should be keys with values (key: value), got nothing; "
            "allowed here: hardware, datasets, profiles, pipelines"
        ]

    def test_a_list(self, load: Load) -> None:
        assert mistakes(load, "- datasets\n- profiles\n") == [
            "my.yaml: the file: should be keys with values (key: value), got ['datasets', 'profiles']; "
            "allowed here: hardware, datasets, profiles, pipelines"
        ]

    def test_without_its_sections(self, load: Load) -> None:
        assert mistakes(load, "{}") == [f"my.yaml: {name}: missing" for name in ("datasets", "pipelines", "profiles")]

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "nowhere.yaml"
        with pytest.raises(UserError) as caught:
            load_config(path)
        assert str(caught.value) == f"cannot read the configuration {path}: No such file or directory"

    def test_a_folder(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"cannot read the configuration .*: Is a directory"):
            load_config(tmp_path)

    def test_other_bytes(self, tmp_path: Path) -> None:
        path = tmp_path / "latin.yaml"
        path.write_bytes("title: é".encode("latin-1"))
        with pytest.raises(UserError, match=r"latin\.yaml is not text in UTF-8"):
            load_config(path)


def test_a_dataset_can_be_checked_by_itself() -> None:
    """As the tests of the preparation do."""
    assert Dataset.model_validate(DATA["datasets"]["criteo_kaggle"]).synthetic is None


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from([10**30, 10**400, "1e-3", "inf", "pctr", "paper", "sgd", "synthetic_clicks", "label"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=5,
)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


@hypothesis.given(path=st.sampled_from(sorted(walk(DATA), key=str)), value=VALUES)
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_value_in_any_place_is_fine_or_a_user_error(path: tuple[Any, ...], value: Any) -> None:
    content = value
    if path:
        content = copy.deepcopy(DATA)
        node = content
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my.yaml"
        file.write_text(yaml.dump(content, Dumper=_WithoutAliases, allow_unicode=True), encoding="utf-8")
        try:
            told: Config | str = load_config(file)
        except UserError as error:
            told = str(error)
    assert isinstance(told, Config) or told.startswith("my.yaml")


class TestVocabulary:
    """The keys of a dataset that say which tokens get an id."""

    LINE = "    integer_columns: [n]\n"

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"vocabulary": "threshold"},
            {"vocabulary": "hash"},
            {"vocabulary": "hash", "vocabulary_buckets": 2},
            {"vocabulary": "private"},
            {"vocabulary": "private", "vocabulary_epsilon": 0.5},
            {"vocabulary": "private", "vocabulary_epsilon": 1},
        ],
    )
    def test_what_is_allowed(self, load: Load, keys: dict[str, Any]) -> None:
        lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
        dataset = load(edit(SMALL, self.LINE, self.LINE + lines)).dataset("logs")
        assert dataset.vocabulary == keys.get("vocabulary", "threshold")
        assert dataset.vocabulary_buckets == keys.get("vocabulary_buckets")
        assert dataset.vocabulary_epsilon == keys.get("vocabulary_epsilon")

    @pytest.mark.parametrize(
        ("lines", "line", "message"),
        [
            (
                ["vocabulary_buckets: 100"],
                7,
                "_buckets: goes with `vocabulary: hash`, but `vocabulary` is threshold: leave out one of the two",
            ),
            (
                ["vocabulary: private", "vocabulary_buckets: 100"],
                8,
                "_buckets: goes with `vocabulary: hash`, but `vocabulary` is private: leave out one of the two",
            ),
            (
                ["vocabulary_epsilon: 1.0", "vocabulary: hash"],
                7,
                "_epsilon: goes with `vocabulary: private`, but `vocabulary` is hash: leave out one of the two",
            ),
            (
                ["vocabulary_epsilon: 1.0"],
                7,
                "_epsilon: goes with `vocabulary: private`, but `vocabulary` is threshold: leave out one of the two",
            ),
            (["vocabulary: hashed"], 7, ": input should be 'threshold', 'hash' or 'private', got 'hashed'"),
            (
                ["vocabulary: hashed", "vocabulary_buckets: 5"],
                7,
                ": input should be 'threshold', 'hash' or 'private', got 'hashed'",
            ),
            (
                ["vocabulary: hash", "vocabulary_buckets: 1"],
                8,
                "_buckets: input should be greater than or equal to 2, got 1",
            ),
            (
                ["vocabulary: hash", "vocabulary_buckets: 2.5"],
                8,
                "_buckets: input should be a valid integer, got 2.5",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: 0"],
                8,
                "_epsilon: input should be greater than 0, got 0",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: .inf"],
                8,
                "_epsilon: input should be a finite number, got inf",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: 1001"],
                8,
                "_epsilon: input should be less than or equal to 1000, got 1001",
            ),
        ],
    )
    def test_one_mistake_is_one_line(self, load: Load, lines: list[str], line: int, message: str) -> None:
        text = edit(SMALL, self.LINE, self.LINE + "".join(f"    {added}\n" for added in lines))
        assert mistakes(load, text) == [f"my.yaml:{line}: datasets.logs.vocabulary{message}"]

    def test_without_categorical_columns(self, load: Load) -> None:
        text = edit(SMALL, "    categorical_columns: [c]\n", "    vocabulary: private\n")
        assert mistakes(load, text) == [
            "my.yaml:2: datasets.logs: `vocabulary: private` is for `categorical_columns`, and there are none"
        ]
