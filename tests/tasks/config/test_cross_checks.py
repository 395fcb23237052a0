"""Cross-field checks of grids and exhibits in ``pipelines.yaml``."""

from __future__ import annotations

import pytest

from tasks.config.grid_settings import combinations
from tasks.config.pipeline import LabelGrid, PrivateGrid
from tests.support.yaml_files import GRID, SMALL, Load, edit, mistakes

LABEL_DP = """\
            label_dp: {optimizer: yogi, learning_rate: 0.01, batch_size: 64, epochs: 1, response: binary}
"""


# LabelDP alone, and what a table of several ways to be private needs.
ALONE = SMALL[: SMALL.index("            dp_sgd:")] + LABEL_DP
BESIDE = "    title: A sweep\n    exhibit: label_dp\n    columns: [response, debias]\n"


class TestExhibits:
    """Mechanisms, and the columns that an exhibit shows of them."""

    def test_label_dp_may_stand_beside_dp_sgd_or_alone(self, load: Load) -> None:
        config = load(edit(SMALL + LABEL_DP, "    title: A sweep\n", BESIDE))
        grid = config.grids("sweep", "tiny").tasks["pctr"].label_dp
        assert isinstance(grid, LabelGrid)
        assert (grid.response, grid.debias, grid.largest_count) == (("binary",), (True,), (10,))
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
            f"my.yaml:25: {GRID}.tasks.pctr.label_dp.response: {response!r} does not fit the labels of pctr; "
            "allowed: binary"
        ]

    def test_counts_are_not_binary(self, load: Load) -> None:
        text = edit(ALONE, "{pctr: {column: click, kind: binary}}", "{pconvs: {column: click, kind: count}}")
        text = edit(text, "datasets: {pctr: logs}", "datasets: {pconvs: logs}")
        text = edit(text, "          pctr:\n", "          pconvs:\n")
        assert mistakes(load, text) == [
            f"my.yaml:25: {GRID}.tasks.pconvs.label_dp.response: 'binary' does not fit the labels of pconvs; "
            "allowed: bins, k_ary"
        ]
        assert load(text.replace("response: binary", "response: [k_ary, bins]"))

    def test_responses_on_labels_are_not_recalibrated(self, load: Load) -> None:
        (only,) = mistakes(load, ALONE.replace("response: binary", "response: binary, recalibration: shift"))
        assert only.startswith(f"my.yaml:25: {GRID}.tasks.pctr.label_dp.recalibration: ")
        assert "label_dp promises δ = 0" in only

    def test_a_key_of_dp_sgd_in_label_dp(self, load: Load) -> None:
        (only,) = mistakes(load, SMALL + LABEL_DP.replace("epochs: 1", "epochs: 1, l2_clip_norm: 3"))
        assert only.startswith(f"my.yaml:31: {GRID}.tasks.pctr.label_dp.l2_clip_norm: unknown key; allowed here: ")
        assert only.endswith("response, debias, largest_count")

    def test_a_column_that_is_no_setting(self, load: Load) -> None:
        assert mistakes(load, edit(SMALL, "    title: A sweep\n", BESIDE)) == [
            f"my.yaml:18: pipelines.sweep.columns: no mechanism of pctr in profile tiny has a setting {column}"
            for column in ("debias", "response")
        ]

    def test_every_setting_of_a_grid_takes_a_list_and_can_be_a_column(self, load: Load) -> None:
        for name in PrivateGrid.model_fields:
            text = edit(SMALL, "    title: A sweep\n", f"    title: A sweep\n    columns: [{name}]\n")
            assert load(text).pipeline("sweep").columns == (name,)
            grid = load(text).grids("sweep", "tiny").tasks["pctr"].dp_sgd
            assert isinstance(getattr(grid, name), tuple)
        text = edit(
            SMALL,
            "              l2_clip_norm: [1, 4]\n",
            "              l2_clip_norm: 1\n              momentum: [0, 0.9]\n",
        )
        private = load(text).grids("sweep", "tiny").tasks["pctr"].dp_sgd
        assert private is not None
        assert [settings["momentum"] for settings in combinations(private, (4,))] == [0, 0.9]

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (
                "[learning_rat]",
                "columns.0: no setting is called 'learning_rat' (did you mean 'learning_rate'?)",
            ),
            ("[seed]", "columns.0: no setting is called 'seed'"),
            ("[3]", "columns.0: input should be a valid string, got 3"),
            ("[epochs, epochs]", "columns: 'epochs' is listed twice"),
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
    def test_zipped_lists_of_different_lengths(self, load: Load, old: str, new: str) -> None:
        """Zipped lists of the baseline count, too."""
        text = edit(SMALL, "    title: A sweep\n", "    title: A sweep\n    together: [batch_size, epochs]\n")
        assert load(text)
        (only,) = mistakes(load, edit(text, old, new))
        assert only.startswith("my.yaml:17: pipelines.sweep.together: zipped lists must have the same length, got ")

    def test_a_random_search_with_columns_or_with_labels(self, load: Load) -> None:
        random = "        seeds: 1\n        search: random\n"
        text = edit(SMALL, "        seeds: 1\n", random)
        assert load(text)
        columns = "    title: A sweep\n    exhibit: clip_norm\n    columns: [l2_clip_norm]\n"
        assert mistakes(load, edit(text, "    title: A sweep\n", columns)) == [
            f"my.yaml:24: {GRID}.search: `search: random` does not try every setting, as columns need: "
            "use `search: all` or drop columns"
        ]
        assert mistakes(load, edit(ALONE, "        seeds: 1\n", random)) == [
            f"my.yaml:22: {GRID}.search: `search: random` has no known privacy cost for label_dp: use `search: all`"
        ]

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("accountant", "[tightest, RDP]"),
            ("sampler", "[poisson, shuffle]"),
            ("clipping", "[fixed, automatic]"),
            ("microbatch_size", "[1, 4]"),
            ("sensitivity", "[proven, paper]"),
        ],
    )
    def test_a_random_search_over_mechanisms_of_different_privacy(self, load: Load, name: str, values: str) -> None:
        """Such a search would price the noise of all trainings by that of the chosen one."""
        several = f"              epochs: 2\n              {name}: {values}\n"
        text = edit(SMALL, "              epochs: 2\n", several)
        assert load(text)
        (only,) = mistakes(load, edit(text, "        seeds: 1\n", "        seeds: 1\n        search: random\n"))
        assert f".dp_sgd.{name}: with `search: random` every training must be equally private" in only
        assert f"give one {name}" in only

    def test_missing_budgets(self, load: Load) -> None:
        text = edit(SMALL, "        epsilons: [1, 10]\n", "")
        assert mistakes(load, text) == [f"my.yaml:19: {GRID}.epsilons: missing"]

    CURVES = "        curves: {batch_sizes: [10, 20], epochs: 1, steps: 10}\n"
    SPEED = "        speed: {batch_sizes: [10, 20]}\n"

    def of(self, exhibit: str, grid: str) -> str:
        """Returns the small file with another exhibit and another grid."""
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
        told = f"{GRID}: give exactly one of tasks (to train), curves (of noise) and speed (of steps), got "
        assert f"my.yaml:20: {told}none" in mistakes(load, self.of("throughput", "        epsilons: [1]\n"))
        text = self.of("throughput", self.CURVES + self.SPEED)
        assert mistakes(load, text) == [f"my.yaml:20: {told}curves and speed"]
        text = edit(SMALL, "        seeds: 1\n", self.SPEED)
        assert mistakes(load, text) == [f"my.yaml:19: {told}tasks and speed"]

    @pytest.mark.parametrize(
        ("exhibit", "grid", "message"),
        [
            ("clip_norm", SPEED, "shows tasks, but the grid has speed; use: throughput"),
            ("throughput", CURVES, "shows speed, but the grid has curves; use: noise_and_batch"),
            ("noise_and_batch", SPEED, "shows curves, but the grid has speed; use: throughput"),
        ],
        ids=["tasks", "speed", "curves"],
    )
    def test_an_exhibit_of_something_else(self, load: Load, exhibit: str, grid: str, message: str) -> None:
        """One DAG and one kind of report serve all profiles of a pipeline."""
        text = self.of(exhibit, "        epsilons: [1]\n" + grid)
        assert mistakes(load, text) == [f"my.yaml:20: {GRID}: exhibit {exhibit} {message}"]

    @pytest.mark.parametrize(
        ("heading", "line", "message"),
        [
            (
                "exhibit: clip_norm",
                15,
                "columns: exhibit clip_norm needs columns: [l2_clip_norm]",
            ),
            (
                "exhibit: optimizers\n    columns: [learning_rate]",
                18,
                "columns: exhibit optimizers needs columns: [optimizer, learning_rate]",
            ),
        ],
        ids=["none", "other"],
    )
    def test_an_exhibit_without_its_columns(self, load: Load, heading: str, line: int, message: str) -> None:
        text = edit(SMALL, "    title: A sweep\n", f"    title: A sweep\n    {heading}\n")
        hint = "; exhibit comparison takes any columns"
        assert mistakes(load, text) == [f"my.yaml:{line}: pipelines.sweep.{message}{hint}"]

    RECIPE = (
        "            paper_recipe: {optimizer: sgd, learning_rate: 1, batch_size: 64, epochs: 1, l2_clip_norm: 1}\n"
    )

    def test_a_recipe_of_the_paper_beside_ours(self, load: Load) -> None:
        text = edit(SMALL, "    title: A sweep\n", "    title: A sweep\n    exhibit: relative_loss\n") + self.RECIPE
        grid = load(text).grids("sweep", "tiny").tasks["pctr"].paper_recipe
        assert grid is not None
        assert grid.batch_size == (64,)
        key = f"{GRID}.tasks.pctr.paper_recipe"
        too_large = edit(text, "learning_rate: 1, batch_size: 64", "learning_rate: 1, batch_size: 6400")
        (only,) = mistakes(load, too_large)
        assert f"{key}.batch_size: a batch of 6,400 is larger than the 800 training examples" in only
        (only,) = mistakes(load, edit(text, "        seeds: 1\n", "        seeds: 1\n        search: random\n"))
        assert "paper_recipe is not drawn: use `search: all`, or drop paper_recipe" in only
        without = text[: text.index("            dp_sgd:")] + self.RECIPE
        (only,) = mistakes(load, without)
        assert f"{key}: is compared with dp_sgd: give dp_sgd too" in only
        (only,) = mistakes(load, SMALL + self.RECIPE)
        assert (
            f"{key}: exhibit comparison shows one recipe of DP-SGD; of two recipes: decomposition, relative_loss"
            in only
        )

    def test_two_ways_to_be_private_are_for_one_exhibit(self, load: Load) -> None:
        assert load(SMALL + LABEL_DP).pipeline("sweep").exhibit == "comparison"
        text = edit(SMALL + LABEL_DP, "    title: A sweep\n", "    title: A sweep\n    exhibit: relative_loss\n")
        assert mistakes(load, text) == [
            f"my.yaml:24: {GRID}.tasks.pctr: exhibit relative_loss shows one mechanism: "
            "give dp_sgd or label_dp, not both"
        ]
