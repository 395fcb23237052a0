"""Loading ``pipelines.yaml``: its values, and a message for every mistake with its line and what would be right."""

from __future__ import annotations

import pytest
import yaml
from pydantic import ValidationError

from tasks.config.dataset import Dataset
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tests.support.yaml_files import DP_SGD, GRID, SMALL, Load, edit, line_of, mistakes

TEXT = (CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8")
DATA = yaml.safe_load(TEXT)
PAPER = "pipelines.relative_loss.grids.paper"

# What a grid of DP-SGD may have.
SETTINGS = (
    "optimizer, learning_rate, momentum, batch_size, epochs, model, averaging, averaging_share, warmup, weight_decay, "
    "initial_bias, recalibration, table_updates, sampler, l2_clip_norm, clipping, clip_quantile, microbatch_size, "
    "sensitivity, accountant, learning_rate_per, initial_bias_epsilon, bands, recalibration_epsilon"
)


class TestLoaded:
    def test_one_value_is_a_list_of_one(self, load: Load) -> None:
        grid = load(SMALL).grids("sweep", "tiny").tasks["pctr"].dp_sgd
        assert grid.learning_rate == (0.1,)
        assert grid.l2_clip_norm == (1, 4)

    def test_a_missing_lookup_names_what_there_is(self, load: Load) -> None:
        with pytest.raises(UserError, match=r"unknown profile 'tinny' \(did you mean 'tiny'\?\); known: tiny"):
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
            "allowed here: description, only_for_tests, synthetic_rows, min_count, hidden_layers, evaluations",
        ),
        (
            "    min_count: 2",
            "    min_count: 2\n    only_for_tests: sometimes",
            13,
            "profiles.tiny.only_for_tests: input should be a valid boolean, got 'sometimes'",
        ),
        (
            "kind: display}",
            "kind: display, sed: 1}",
            3,
            "datasets.logs.synthetic.sed: unknown key (did you mean 'seed'?); allowed here: kind, seed, tails, days",
        ),
        (
            "              epochs: 2",
            "              epochs: 2\n              qqq: 2",
            30,
            f"{DP_SGD}.qqq: unknown key; allowed here: {SETTINGS}",
        ),
        (
            "              epochs: 2",
            "              epochs: 2\n              cross_layers: 2",
            30,
            f"{DP_SGD}.cross_layers: unknown key "
            "(a model's own numbers go inside `model: {name: …, cross_layers: …}`); "
            f"allowed here: {SETTINGS}",
        ),
        (
            "datasets:\n",
            "pipeline: {}\ndatasets:\n",
            1,
            "pipeline: unknown key (did you mean 'pipelines'?); "
            "allowed here: plugins, hardware, raw_roots, datasets, profiles, pipelines, nightly",
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
            "datasets.logs.synthetic: should be a mapping (key: value), got 'display'; "
            "allowed here: kind, seed, tails, days",
        ),
        (
            "    datasets: {pctr: logs}",
            "    datasets:",
            17,
            "pipelines.sweep.datasets: should be a mapping (key: value), got nothing",
        ),
        ("title: A sweep", "title: 7", 16, "pipelines.sweep.title: input should be a valid string, got 7"),
        # Ranges
        ("[1, 10]", "[1, 0]", 20, f"{GRID}.epsilons.1: input should be greater than 0, got 0"),
        ("[1, 10]", "[-0.5, 1]", 20, f"{GRID}.epsilons.0: input should be greater than 0, got -0.5"),
        ("[1, 10]", "[1, .inf]", 20, f"{GRID}.epsilons.1: input should be a finite number, got inf"),
        ("[1, 10]", "[1, .nan]", 20, f"{GRID}.epsilons.1: input should be a finite number, got nan"),
        ("[1, 10]", "[]", 20, f"{GRID}.epsilons: empty: give at least one value"),
        ("[1, 10]", "[1, 3, 1.0]", 20, f"{GRID}.epsilons: 1.0 is listed twice"),
        (
            "epochs: 2",
            "epochs: 2\n              model: [dcn_v2, {name: dcn_v2, cross_layers: 3}]",
            30,
            f"{DP_SGD}.model: dcn_v2 is listed twice",
        ),
        ("l2_clip_norm: [1, 4]", "l2_clip_norm: []", 30, f"{DP_SGD}.l2_clip_norm: empty: give at least one value"),
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
            f"{DP_SGD}.optimizer: no such name: 'sdg' (did you mean 'sgd'?); known: sgd, yogi, adagrad, adam, adamw, "
            "adam_corrected, adam_scaled",
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
        ("format: tsv", "format: xml", 4, "datasets.logs.format: no such name: 'xml'; known: tsv, csv, parquet"),
        (
            "datasets: {pctr: logs}",
            "datasets: {pctr: log}",
            17,
            "pipelines.sweep.datasets.pctr: unknown dataset 'log' (did you mean 'logs'?); known: logs",
        ),
        (
            "      tiny:\n",
            "      tinny:\n",
            19,
            "pipelines.sweep.grids.tinny: unknown profile 'tinny' (did you mean 'tiny'?); known: tiny",
        ),
        # Combinations
        (
            "batch_size: 128",
            "batch_size: [128, 801]",
            28,
            f"{DP_SGD}.batch_size: a batch of 801 is larger than the 800 training examples "
            "that profile 'tiny' generates (80 % of synthetic_rows)",
        ),
        ("datasets: {pctr: logs}", "datasets: {}", 17, "pipelines.sweep.datasets: empty: give at least one value"),
        (
            "    columns: [click, n, c]\n",
            "",
            2,
            "datasets.logs: a tsv without a header needs `columns`, its columns in order; "
            "if its first line names them, set `header: true`",
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
            "datasets.logs: column 'n' is a feature more than once",
        ),
        (
            "integer_columns: [n]",
            "integer_columns: [n, click]",
            2,
            "datasets.logs: column 'click' is a label, a time or an event id, so it cannot be a feature",
        ),
        (
            "integer_columns: [n]",
            "integer_columns: [n]\n    time_column: c",
            2,
            "datasets.logs: column 'c' is a label, a time or an event id, so it cannot be a feature",
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
            "datasets.logs: no features: give `integer_columns`, `categorical_columns` or both",
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
            "datasets.logs: `synthetic` generates the log and `raw` names its files: give one of the two",
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
    assert mistakes(load, text) == [
        f"my.yaml:22: {GRID}.tasks: no grid for pcvr, but the pipeline has a dataset for it"
    ]


def test_a_task_needs_a_label(load: Load) -> None:
    # Two pipelines have these datasets; the first is relative_loss.
    text = TEXT.replace("pctr: synthetic_display, pcvr", "pctr: synthetic_clicks, pcvr", 1)
    assert mistakes(load, text) == [
        f"my.yaml:{line_of(text, 'pctr: synthetic_clicks')}: pipelines.relative_loss.datasets.pctr: "
        "dataset 'synthetic_clicks' has no label for pctr; it has: pcvr, pconvs"
    ]


def test_a_batch_may_be_larger_than_synthetic_data_where_the_data_is_not_synthetic(load: Load) -> None:
    text = edit(edit(SMALL, "    synthetic: {kind: display}\n", ""), "batch_size: 128", "batch_size: 10000")
    assert load(text).grids("sweep", "tiny").tasks["pctr"].dp_sgd.batch_size == (10_000,)


def test_a_dataset_can_be_checked_by_itself() -> None:
    """Tests of the preparation validate a dataset alone."""
    assert Dataset.model_validate(DATA["datasets"]["criteo_kaggle"]).synthetic is None
