"""``pipelines.yaml`` as a program sees it, and every mistake with its place and what would be right."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml
from pydantic import ValidationError

from tasks.config import Config, load_config
from tasks.descriptions import Dataset
from tasks.errors import UserError
from tasks.home import CHECKOUT
from tests.yaml_files import DP_SGD, GRID, SMALL, Load, edit, line_of, loader, mistakes

TEXT = (CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8")
DATA = yaml.safe_load(TEXT)
PAPER = "pipelines.relative_loss.grids.paper"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return loader(tmp_path)


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to a node and to everything below it."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield from walk(child, (*path, name))


class TestLoaded:
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
