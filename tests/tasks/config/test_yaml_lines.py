"""Mistakes are reported with their line; a file that is not YAML, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.config.loading import load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tests.support.yaml_files import DP_SGD, GRID, SMALL, Load, edit, line_of, mistakes

TEXT = (CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8")
PAPER = "pipelines.relative_loss.grids.paper"


def test_a_mistake_in_an_anchor_is_told_once(load: Load) -> None:
    """The three tasks of the shipped grids are aliases of one section."""
    old = "optimizer: sgd, learning_rate: 0.01, momentum: 0.9, batch_size: 65536"
    text = edit(TEXT, old, old.replace("sgd", "sdg"))
    (only,) = mistakes(load, text)
    key = f"{PAPER}.tasks.pctr.paper_recipe.optimizer"
    assert only.startswith(f"my.yaml:{line_of(text, 'sdg')}: {key}: no such name: 'sdg'")


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


class TestFile:
    def test_a_key_given_twice(self, load: Load) -> None:
        text = edit(SMALL, "    min_count: 2\n", "    min_count: 2\n    min_count: 3\n")
        text = edit(text, "{kind: display}", "{kind: display, kind: clicks}")
        assert mistakes(load, text) == [
            "my.yaml:3: datasets.logs.synthetic.kind: duplicate key",
            "my.yaml:13: profiles.tiny.min_count: duplicate key",
        ]

    def test_a_whole_section_given_twice(self, load: Load) -> None:
        last = SMALL.count("\n") + 1
        assert mistakes(load, SMALL + "profiles: {}\n") == [f"my.yaml:{last}: profiles: duplicate key"]

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
        assert message.startswith("my.yaml is not valid YAML: invalid value: ")
        assert '"my.yaml", line 12' in message

    def test_without_end(self, load: Load) -> None:
        expected = ["my.yaml is nested too deeply, or an alias in it refers to itself"]
        assert mistakes(load, "datasets: &self {logs: *self}") == expected
        assert mistakes(load, "[" * 5000) == expected

    @pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
    def test_empty(self, load: Load, text: str) -> None:
        assert mistakes(load, text) == [
            "my.yaml: should be a mapping (key: value), got nothing; "
            "allowed here: plugins, hardware, raw_roots, datasets, profiles, pipelines, nightly"
        ]

    def test_a_list(self, load: Load) -> None:
        assert mistakes(load, "- datasets\n- profiles\n") == [
            "my.yaml: should be a mapping (key: value), got ['datasets', 'profiles']; "
            "allowed here: plugins, hardware, raw_roots, datasets, profiles, pipelines, nightly"
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
        with pytest.raises(UserError, match=r"latin\.yaml is not UTF-8 text"):
            load_config(path)
