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
from tasks.plan import _trials, _tried
from tasks.selection import Selection
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
    use(CONFIG.replace("        search: random\n", ""), tmp_path, monkeypatch)
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
