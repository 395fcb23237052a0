"""The planning step: a plan on disk, a run in MLflow, and the trials that are left to train."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.plan import plan
from tasks.runtime.home import write_json
from tasks.training.items import read_plan
from tasks.training.trial import Trial
from tests.support.sweep_config import BOTH, CONFIG, use
from tests.support.trials import make_prepared


class TestPlan:
    """The whole step, with its run in MLflow."""

    def planned(self, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
        use(text.replace("raw: clicks.parquet", f"raw: {folder / 'raw' / 'clicks.parquet'}"), folder, monkeypatch)
        prepared = make_prepared(folder / "raw")
        prepared.data_card.write_text("a card")
        card = str(prepared.data_card)
        dataset: Any = {"dataset": "tiny_clicks", "path": str(prepared.path), "fingerprint": "any", "data_card": card}
        return plan({"pipeline": "sweep", "profile": "tiny", **options}, [dataset])

    def test_untrained_trials_come_in_groups(
        self, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every trial of the plan that is not trained yet is in a group, with the others of its program."""
        options = {"epsilons": [2.0], "seeds": 1, "tasks": ["pcvr"]}
        planned = self.planned(BOTH, tmp_path, monkeypatch, **options)
        written = read_plan(planned["run"])
        assert written["options"] == {"pipeline": "sweep", "profile": "tiny", **options}
        assert written["selection"]["epsilons"] == [2.0]
        assert written["mean_trials"] is None
        assert [item["number"] for item in written["items"]] == list(range(1, 12))
        grouped = [item for group in planned["groups"] for item in group["items"]]
        assert sorted(grouped, key=lambda item: item["number"]) == written["items"]
        [group] = planned["groups"]
        mechanisms = [item["trial"]["mechanism"] for item in group["items"]]
        assert [name == "dp_sgd" for name in mechanisms] == [False] * 5 + [True] * 6, "the baseline with LabelDP first"
        assert (own_home / "runs" / "sweep" / "latest").resolve() == Path(planned["run"])

        trained = Trial.model_validate(written["items"][3]["trial"])
        write_json(trained.folder / "record.json", {})
        again = self.planned(BOTH, tmp_path, monkeypatch, **options)
        assert len(read_plan(again["run"])["items"]) == 11
        numbers = sorted(item["number"] for group in again["groups"] for item in group["items"])
        assert numbers == [1, 2, 3, *range(5, 12)]

    @pytest.mark.parametrize(
        ("exhibit", "grid"),
        [
            ("noise_and_batch", "{epsilons: [1, 2], curves: {batch_sizes: [100], epochs: 1, steps: 5}}"),
            ("throughput", "{speed: {batch_sizes: [100]}}"),
        ],
    )
    def test_a_pipeline_that_trains_nothing_plans_no_trials(
        self, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exhibit: str, grid: str
    ) -> None:
        text = CONFIG[: CONFIG.index("      tiny:")] + f"      tiny: {grid}\n"
        text = text.replace("    title: A sweep\n", f"    title: A sweep\n    exhibit: {exhibit}\n")
        planned = self.planned(text, tmp_path, monkeypatch)
        assert planned["groups"] == []
        written = read_plan(planned["run"])
        assert (written["items"], written["mean_trials"]) == ([], None)
        assert written["prepared"].keys() == {"tiny_clicks"}
