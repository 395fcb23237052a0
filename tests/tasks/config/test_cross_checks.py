"""What is well-formed in ``pipelines.yaml`` but cannot be, of grids and of what is shown of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.grids import LabelGrid
from tests.yaml_files import GRID, SMALL, Load, edit, loader, mistakes

LABEL_DP = """\
            label_dp: {optimizer: yogi, learning_rate: 0.01, batch_size: 64, epochs: 1, response: binary}
"""


# LabelDP alone, and what a table of several ways to be private needs.
ALONE = SMALL[: SMALL.index("            dp_sgd:")] + LABEL_DP
BESIDE = "    title: A sweep\n    exhibit: label_dp\n    columns: [response, debias]\n"


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return loader(tmp_path)


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
