"""From a selection to trials: all of a grid, or a random number of its settings."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import tasks.plan
from tasks.budget import noise_multiplier_for
from tasks.config import load_config
from tasks.encoded import Prepared
from tasks.errors import UserError
from tasks.groups import program_of
from tasks.home import write_json
from tasks.plan import _trials, _tried, plan, read_plan
from tasks.selection import Selection
from tasks.trial import Trial
from tests.trials import make_prepared

CONFIG = """
datasets:
  tiny_clicks:
    format: parquet
    raw: clicks.parquet
    time_column: time
    integer_columns: [price]
    categorical_columns: [color]
    labels: {pcvr: {column: conversions, kind: any}}
profiles:
  tiny: {synthetic_rows: 3000, min_count: 5, hidden_layers: [8]}
pipelines:
  sweep:
    title: A sweep
    datasets: {pcvr: tiny_clicks}
    grids:
      tiny:
        epsilons: [4]
        seeds: 2
        search: random
        tasks:
          pcvr:
            non_private: {optimizer: yogi, learning_rate: 0.01, batch_size: 100, epochs: 1}
            dp_sgd: {optimizer: sgd, learning_rate: [0.1, 0.3, 1.0], batch_size: 100, epochs: 2, l2_clip_norm: [1, 3]}
"""
ALL = CONFIG.replace("        search: random\n", "")
BESIDE = ("    title: A sweep\n", "    title: A sweep\n    exhibit: label_dp\n    columns: [response, debias]\n")
PATHS = {"dataset": "tiny_clicks", "fingerprint": "any"}
LABEL_DP = """\
            label_dp: {optimizer: yogi, learning_rate: [0.01, 0.03], batch_size: 100, epochs: 1, response: binary, debias: [true, false]}
"""  # noqa: E501
BOTH = ALL.replace(*BESIDE) + LABEL_DP


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    use(CONFIG, tmp_path, monkeypatch)
    return make_prepared(tmp_path / "raw")


def use(config: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "my.yaml").write_text(config)
    monkeypatch.setenv("DP_ADS_CONFIG", str(folder / "my.yaml"))


def selection(**changes: Any) -> Selection:
    values: dict[str, Any] = {"pipeline": "sweep", "profile": "tiny", "tasks": ("pcvr",), "epsilons": (4.0,)}
    values |= {"datasets": {"pcvr": "tiny_clicks"}, "seeds": 2, "raw": None, **changes}
    return Selection(**values)


def test_a_random_search_draws_a_geometric_number_of_settings(prepared: Prepared) -> None:
    """Over 2,000 budgets, each of which draws by itself: the number has the mean of the whole grid and the
    spread of a geometric one, and every setting is as likely as another. Five standard deviations."""
    config = load_config()
    drawn = [list(_tried(config, selection(), "pcvr", 1 + k / 1000)) for k in range(2000)]
    numbers = np.array([len(tried) for tried in drawn])
    assert numbers.min() >= 1
    assert abs(numbers.mean() - 12) < 5 * np.sqrt(12 * 11 / 2000)
    assert np.mean(numbers == 1) == pytest.approx(1 / 12, abs=5 * np.sqrt(1 / 12 / 2000))
    settings = Counter((n["learning_rate"], n["l2_clip_norm"]) for tried in drawn for n, _ in tried)
    assert len(settings) == 6
    assert stats.chisquare(list(settings.values())).pvalue > 1e-5
    assert all([seed for _, seed in tried] == list(range(len(tried))) for tried in drawn)
    # Seeded, the same budget draws the same.
    assert drawn[7] == list(_tried(config, selection(), "pcvr", 1.007))


def test_every_training_of_a_random_search_is_the_same_mechanism(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, several in (
        ("batch_size: 100, epochs: 2", "batch_size: [100, 200], epochs: 2"),
        ("epochs: 2", "epochs: [1, 2]"),
    ):
        use(CONFIG.replace(key, several), tmp_path, monkeypatch)
        with pytest.raises(UserError, match="every training must be the same mechanism"):
            list(_tried(load_config(), selection(), "pcvr", 4.0))
    use(CONFIG.replace("epochs: 2,", "epochs: 2, sampler: balls_in_bins,"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match="which has no bound for balls_in_bins"):
        list(_tried(load_config(), selection(), "pcvr", 4.0))
    use(CONFIG.replace("[0.1, 0.3, 1.0]", "0.1").replace("[1, 3]", "1"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match="nothing to draw from"):
        list(_tried(load_config(), selection(seeds=1), "pcvr", 4.0))


def test_a_whole_grid_is_every_setting_with_every_seed(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(ALL, tmp_path, monkeypatch)
    config = load_config()
    trials = list(_trials(config, selection(), "pcvr", prepared))
    assert len(trials) == 2 + 12
    assert tasks.plan._mean_trials(config, selection()) is None
    private = [trial for trial in trials if trial.epsilon is not None]
    assert len({(t.learning_rate, t.l2_clip_norm, t.seed) for t in private}) == 12


def test_canaries_have_places_among_the_examples(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(CONFIG.replace("    title: A sweep\n", "    title: A sweep\n    canaries: 600\n"), tmp_path, monkeypatch)
    trials = list(_trials(load_config(), selection(), "pcvr", prepared))
    baseline, private = trials[0], trials[-1]
    assert (baseline.canaries, baseline.target_delta) == (0, 1 / 2400)
    assert (private.canaries, private.target_delta) == (600, 1 / 3000)
    expected = noise_multiplier_for(epsilon=4.0, delta=1 / 3000, examples=3000, batch_size=100, steps=60)
    assert private.noise_multiplier == expected


def test_a_vocabulary_that_leaves_nothing_for_training(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(CONFIG, tmp_path, monkeypatch)
    prepared = make_prepared(tmp_path / "raw", vocabulary="private", vocabulary_epsilon=5.0)
    with pytest.raises(UserError, match="vocabulary_epsilon: the vocabulary's 5 leaves nothing"):
        list(_trials(load_config(), selection(), "pcvr", prepared))


def test_lists_that_go_together_are_gone_through_in_step(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two batch sizes with their own numbers of epochs are two settings, and not four."""
    text = ALL.replace("    title: A sweep\n", "    title: A sweep\n    together: [batch_size, epochs]\n")
    text = text.replace("batch_size: 100, epochs: 2", "batch_size: [100, 200, 50], epochs: [2, 4, 1]")
    use(text, tmp_path, monkeypatch)
    trials = list(_trials(load_config(), selection(seeds=1), "pcvr", prepared))
    private = [trial for trial in trials if trial.epsilon is not None]
    found = Counter((trial.batch_size, trial.epochs, trial.learning_rate, trial.l2_clip_norm) for trial in private)
    pairs = [(100, 2.0), (200, 4.0), (50, 1.0)]
    assert found == Counter((*pair, rate, norm) for pair in pairs for rate in (0.1, 0.3, 1.0) for norm in (1.0, 3.0))
    assert [(trial.batch_size, trial.epochs) for trial in trials if trial.epsilon is None] == [(100, 1)]


def test_rdp_asks_for_more_noise(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ALL.replace("l2_clip_norm: [1, 3]", "l2_clip_norm: 1, accountant: [tightest, RDP]")
    use(text.replace("[0.1, 0.3, 1.0]", "0.1"), tmp_path, monkeypatch)
    trials = list(_trials(load_config(), selection(epsilons=(1.0, 4.0), seeds=1), "pcvr", prepared))
    assert [(trial.accountant, trial.epsilon) for trial in trials] == [
        (None, None),
        *((accountant, epsilon) for epsilon in (1.0, 4.0) for accountant in ("tightest", "RDP")),
    ]
    _, *noises = (trial.noise_multiplier or 0.0 for trial in trials)
    assert noises[0] < noises[1]
    assert noises[2] < noises[3]
    expected = noise_multiplier_for(epsilon=1.0, delta=1 / 2400, examples=2400, batch_size=100, steps=48)
    assert noises[0] == expected
    assert len({trial.key for trial in trials}) == 5


def test_label_dp_has_no_noise_in_training_and_no_delta(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(BOTH, tmp_path, monkeypatch)
    trials = list(_trials(load_config(), selection(epsilons=(1.0, 4.0)), "pcvr", prepared))
    kinds = Counter(trial.mechanism for trial in trials)
    assert kinds == {"non_private": 2, "dp_sgd": 2 * 12, "label_dp": 2 * 2 * 2 * 2}
    labels = [trial for trial in trials if trial.mechanism == "label_dp"]
    for trial in labels:
        none = (trial.noise_multiplier, trial.l2_clip_norm, trial.clipping, trial.sensitivity, trial.accountant)
        assert none == (None,) * 5
        assert trial.target_delta == 0
        assert (trial.response, trial.largest_count, trial.sampler) == ("binary", None, "poisson")
    settings = {(trial.epsilon, trial.learning_rate, trial.debias, trial.seed) for trial in labels}
    assert len(settings) == len(labels)
    others = [trial for trial in trials if trial.mechanism != "label_dp"]
    assert {(trial.response, trial.debias, trial.largest_count) for trial in others} == {(None, None, None)}
    # They train like the baseline, beside it: its group has all of them.
    assert len({program_of(trial) for trial in trials if trial.optimizer == "yogi"}) == 1


def test_counts_have_a_largest_one(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = BOTH.replace("pcvr", "pconvs").replace("kind: any", "kind: count")
    use(text.replace("response: binary", "response: [k_ary, bins], largest_count: 7"), tmp_path, monkeypatch)
    chosen = selection(tasks=("pconvs",), datasets={"pconvs": "tiny_clicks"})
    trials = list(_trials(load_config(), chosen, "pconvs", prepared))
    found = {(trial.response, trial.largest_count) for trial in trials if trial.mechanism == "label_dp"}
    assert found == {("k_ary", 7), ("bins", 7)}


class TestPlan:
    """The whole step, with its run in MLflow."""

    def planned(self, text: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
        use(text.replace("raw: clicks.parquet", f"raw: {folder / 'raw' / 'clicks.parquet'}"), folder, monkeypatch)
        prepared = make_prepared(folder / "raw")
        return plan({"pipeline": "sweep", "profile": "tiny", **options}, [{**PATHS, "path": str(prepared.path)}])

    def test_what_is_to_train_comes_in_groups(
        self, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Every trial of the plan that is not trained is in one group, by its program."""
        options = {"epsilons": [2.0], "seeds": 1, "tasks": ["pcvr"]}
        planned = self.planned(BOTH, tmp_path, monkeypatch, **options)
        written = read_plan(planned["run"])
        assert written["options"] == {"pipeline": "sweep", "profile": "tiny", **options}
        assert written["selection"]["epsilons"] == [2.0]
        assert written["mean_trials"] is None
        assert [item["number"] for item in written["items"]] == list(range(1, 12))
        grouped = [item for group in planned["groups"] for item in group["items"]]
        assert sorted(grouped, key=lambda item: item["number"]) == written["items"]
        assert [len(group["items"]) for group in planned["groups"]] == [5, 6], "the baseline with LabelDP, and DP-SGD"
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
    def test_what_trains_nothing_plans_no_trials(
        self, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exhibit: str, grid: str
    ) -> None:
        text = CONFIG[: CONFIG.index("      tiny:")] + f"      tiny: {grid}\n"
        text = text.replace("    title: A sweep\n", f"    title: A sweep\n    exhibit: {exhibit}\n")
        planned = self.planned(text, tmp_path, monkeypatch)
        assert planned["groups"] == []
        written = read_plan(planned["run"])
        assert (written["items"], written["mean_trials"]) == ([], None)
        assert written["prepared"].keys() == {"tiny_clicks"}
