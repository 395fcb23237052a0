"""The shipped ``pipelines.yaml`` has the paper's settings and numbers, and compares fairly."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tasks.config.dataset import TASKS
from tasks.config.grid_settings import combinations
from tasks.config.loading import config_path, load_config
from tasks.config.pipeline import TaskGrid, TrainingGrid
from tasks.runtime.home import CHECKOUT
from tests.support.yaml_files import SMALL, Load

TEXT = (CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8")


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
            theirs = grid.paper_recipe
            assert (theirs.optimizer, theirs.learning_rate, theirs.momentum) == (("sgd",), (0.01,), (0.9,))
            assert (theirs.batch_size, theirs.epochs) == ((65_536,), (150,))
            assert (theirs.l2_clip_norm, theirs.microbatch_size) == ((1, 10, 50, 100), (1, 4, 8))
            # The paper's baseline is one of those that are compared.
            assert "yogi" in grid.non_private.optimizer
            assert 0.01 in grid.non_private.learning_rate
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
            *("relative_loss", "decomposition", "clip_norm", "large_batch", "throughput", "optimizers"),
            "noise_and_batch",
            *("microbatch", "accountants", "label_dp"),
        ]
        for name, pipeline in config.pipelines.items():
            assert pipeline.exhibit == name
            assert list(pipeline.grids) == ["smoke", "quick", "paper"]
            assert "(the paper's " in pipeline.title

    def test_the_papers_tables_have_the_papers_settings(self, load: Load) -> None:
        """Tables 2, 3 and 4 of the paper, with their captions."""
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
        """Figures 1 to 5 of the paper, with their captions."""
        config = load(TEXT)
        one = config.grids("optimizers", "paper").tasks["pctr"].dp_sgd
        assert one is not None
        assert set(one.optimizer) == {"sgd", "yogi", "adagrad", "adam", "adamw"}
        assert one.learning_rate == (0.001, 0.01, 0.1)
        assert len(list(combinations(one, ()))) == 15
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
        """Every method chooses among equally many settings. A method is all combinations that share the columns'
        values. Figure 3 compares subsets by design: one factor tuned alone, and both."""
        config = load(TEXT)
        for name, pipeline in config.pipelines.items():
            for task, grid in config.grids(name, profile).tasks.items():
                methods: Counter[tuple[Any, ...]] = Counter()
                for kind, settings in private_grids(grid):
                    for numbers in combinations(settings, (), pipeline.together):
                        methods[(kind, *(numbers.get(column) for column in pipeline.columns))] += 1
                if name != "microbatch":
                    assert len(set(methods.values())) == 1, (name, task, methods)
                assert len(methods) > 1 or not pipeline.columns
