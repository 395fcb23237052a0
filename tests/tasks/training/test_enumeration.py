"""Enumerating trials: all settings of a grid, or a random number of them, each with its noise."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tasks.config.loading import load_config
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared
from tasks.privacy import best_bands
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError
from tasks.training.enumeration import (
    TaskSweep,
    dp_sgd_trainings,
    enumerate_trials,
    expected_trainings,
    paper_recipe_trials,
    with_recipes,
)
from tasks.training.groups import program_of
from tests.support.sweep_config import ALL, BOTH, CONFIG, PAPER_RECIPE, TWO_RECIPES, use
from tests.support.trials import make_prepared


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepared:
    use(CONFIG, tmp_path, monkeypatch)
    return make_prepared(tmp_path / "raw")


def selection(**changes: Any) -> Selection:
    values: dict[str, Any] = {"pipeline": "sweep", "profile": "tiny", "tasks": ("pcvr",), "epsilons": (4.0,)}
    values |= {"datasets": {"pcvr": "tiny_clicks"}, "seeds": 2, "raw": None, **changes}
    return Selection(**values)


def test_a_random_search_draws_a_geometric_number_of_settings(prepared: Prepared) -> None:
    """Over 2,000 budgets with independent draws: the number of trainings has the mean of the whole grid and the spread
    of a geometric distribution, and all settings are equally likely. Tolerances are five standard deviations."""
    config = load_config()
    drawn = [dp_sgd_trainings(TaskSweep(config, selection(), "pcvr"), 1 + k / 1000) for k in range(2000)]
    numbers = np.array([len(tried) for tried in drawn])
    assert numbers.min() >= 1
    assert abs(numbers.mean() - 12) < 5 * np.sqrt(12 * 11 / 2000)
    assert np.mean(numbers == 1) == pytest.approx(1 / 12, abs=5 * np.sqrt(1 / 12 / 2000))
    settings = Counter((n["learning_rate"], n["l2_clip_norm"]) for tried in drawn for n, _ in tried)
    assert len(settings) == 6
    assert stats.chisquare(list(settings.values())).pvalue > 1e-5
    assert all([seed for _, seed in tried] == list(range(len(tried))) for tried in drawn)
    # With seeded randomness, the same budget repeats its draw.
    assert drawn[7] == dp_sgd_trainings(TaskSweep(config, selection(), "pcvr"), 1.007)


def test_every_training_of_a_random_search_is_the_same_mechanism(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, several in (
        ("batch_size: 100, epochs: 2", "batch_size: [100, 200], epochs: 2"),
        ("epochs: 2", "epochs: [1, 2]"),
        ("epochs: 2,", "epochs: 2, accountant: [tightest, RDP],"),
    ):
        use(CONFIG.replace(key, several), tmp_path, monkeypatch)
        with pytest.raises(UserError, match="every training must be equally private"):
            load_config()
    use(CONFIG.replace("epochs: 2,", "epochs: 2, sampler: balls_in_bins,"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match="which has no bound for balls_in_bins"):
        dp_sgd_trainings(TaskSweep(load_config(), selection(), "pcvr"), 4.0)
    use(CONFIG.replace("[0.1, 0.3, 1.0]", "0.1").replace("[1, 3]", "1"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match="nothing to draw from"):
        dp_sgd_trainings(TaskSweep(load_config(), selection(seeds=1), "pcvr"), 4.0)


def test_a_whole_grid_is_every_setting_with_every_seed(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(ALL, tmp_path, monkeypatch)
    config = load_config()
    trials = list(enumerate_trials(config, selection(), "pcvr", prepared))
    assert len(trials) == 2 + 12
    assert expected_trainings(config, selection()) is None
    private = [trial for trial in trials if trial.epsilon is not None]
    assert len({(t.learning_rate, t.l2_clip_norm, t.seed) for t in private}) == 12


def test_a_trial_of_both_recipes_is_planned_once(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(ALL.replace(*TWO_RECIPES) + PAPER_RECIPE, tmp_path, monkeypatch)
    config = load_config()
    ours = list(enumerate_trials(config, selection(), "pcvr", prepared))
    paper = list(paper_recipe_trials(config, selection(), "pcvr", prepared))
    found = with_recipes(ours, paper)
    assert len(ours) == 2 + 12
    assert len(paper) == 4
    assert len(found) == 2 + 12 + 2
    for trial, recipes in found.items():
        expected = [] if trial.epsilon is None else ["ours"] if trial.l2_clip_norm in (1.0, 3.0) else []
        if trial.epsilon is not None and trial.learning_rate == 0.1 and trial.l2_clip_norm in (3.0, 9.0):
            expected.append("paper_recipe")
        assert recipes == expected, trial.label()
    assert {recipe for recipes in with_recipes(ours, []).values() for recipe in recipes} == set()


def test_canaries_have_slots_beside_the_examples(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(CONFIG.replace("    title: A sweep\n", "    title: A sweep\n    canaries: 600\n"), tmp_path, monkeypatch)
    trials = list(enumerate_trials(load_config(), selection(), "pcvr", prepared))
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
        list(enumerate_trials(load_config(), selection(), "pcvr", prepared))


def test_lists_named_in_together_are_zipped(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three batch sizes, each with its own number of epochs, are three settings, not nine."""
    text = ALL.replace("    title: A sweep\n", "    title: A sweep\n    together: [batch_size, epochs]\n")
    text = text.replace("batch_size: 100, epochs: 2", "batch_size: [100, 200, 50], epochs: [2, 4, 1]")
    use(text, tmp_path, monkeypatch)
    trials = list(enumerate_trials(load_config(), selection(seeds=1), "pcvr", prepared))
    private = [trial for trial in trials if trial.epsilon is not None]
    found = Counter((trial.batch_size, trial.epochs, trial.learning_rate, trial.l2_clip_norm) for trial in private)
    pairs = [(100, 2.0), (200, 4.0), (50, 1.0)]
    assert found == Counter((*pair, rate, norm) for pair in pairs for rate in (0.1, 0.3, 1.0) for norm in (1.0, 3.0))
    assert [(trial.batch_size, trial.epochs) for trial in trials if trial.epsilon is None] == [(100, 1)]


def test_rdp_needs_more_noise(prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = ALL.replace("l2_clip_norm: [1, 3]", "l2_clip_norm: 1, accountant: [tightest, RDP]")
    use(text.replace("[0.1, 0.3, 1.0]", "0.1"), tmp_path, monkeypatch)
    trials = list(enumerate_trials(load_config(), selection(epsilons=(1.0, 4.0), seeds=1), "pcvr", prepared))
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
    trials = list(enumerate_trials(load_config(), selection(epsilons=(1.0, 4.0)), "pcvr", prepared))
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
    # LabelDP shares the baseline's program.
    assert len({program_of(trial) for trial in trials if trial.optimizer == "yogi"}) == 1


def test_responses_to_counts_have_a_largest_count(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = BOTH.replace("pcvr", "pconvs").replace("kind: any", "kind: count")
    use(text.replace("response: binary", "response: [k_ary, bins], largest_count: 7"), tmp_path, monkeypatch)
    chosen = selection(tasks=("pconvs",), datasets={"pconvs": "tiny_clicks"})
    trials = list(enumerate_trials(load_config(), chosen, "pconvs", prepared))
    found = {(trial.response, trial.largest_count) for trial in trials if trial.mechanism == "label_dp"}
    assert found == {("k_ary", 7), ("bins", 7)}


def test_bands_need_more_noise_and_auto_is_a_number(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ALL.replace("l2_clip_norm: [1, 3]", "l2_clip_norm: 1, bands: [1, 4, auto]").replace("[0.1, 0.3, 1.0]", "0.1")
    use(text, tmp_path, monkeypatch)
    monkeypatch.setattr(best_bands, "MOST_BANDS", 4)
    baseline, *private = enumerate_trials(load_config(), selection(epsilons=(8.0,), seeds=1), "pcvr", prepared)
    # The best of 1, 2, 3 and 4 is 4 here, which the grid lists as well.
    assert [trial.bands for trial in (baseline, *private)] == [1, 1, 4]
    plain, correlated = private
    assert correlated.noise_multiplier == noise_multiplier_for(
        epsilon=8.0, delta=1 / 2400, examples=2400, batch_size=100, steps=48, bands=4
    )
    assert (plain.noise_multiplier or 0) < (correlated.noise_multiplier or 0)
    assert "bands" not in plain.model_dump()
    assert "4 bands" in correlated.label()
    use(text.replace("[1, 4, auto]", "25"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"dp_sgd.bands: noise cannot be correlated over 25 steps here.*24 at most"):
        list(enumerate_trials(load_config(), selection(epsilons=(8.0,), seeds=1), "pcvr", prepared))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("bands: 4, sampler: shuffle", "is accounted for with `sampler: poisson` only, not with shuffle"),
        ("bands: [1, 2], sampler: [poisson, balls_in_bins]", "only, not with balls_in_bins"),
        ("bands: 0", "bands"),
        ("bands: most", "bands"),
    ],
)
def test_bands_that_are_not_accounted_for_are_refused(
    given: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(ALL.replace("l2_clip_norm: [1, 3]", f"l2_clip_norm: 1, {given}"), tmp_path, monkeypatch)
    with pytest.raises(UserError, match=says):
        load_config()
