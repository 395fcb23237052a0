"""What varies within a sweep, and the names of its trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.data.prepared import Prepared
from tasks.training.sweep_names import short_name, varying_settings
from tests.support.trials import label_trial, make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def test_what_varies_is_what_tells_trials_of_one_method_apart(prepared: Prepared) -> None:
    """A baseline with settings of its own varies nothing, and neither does what follows from the budget."""
    trials = [
        without_privacy(prepared, optimizer="yogi", learning_rate=0.01),
        *(
            make_trial(prepared, epsilon=epsilon, noise_multiplier=1 / epsilon, l2_clip_norm=clip)
            for epsilon in (1.0, 8.0)
            for clip in (1.0, 3.0)
        ),
    ]
    varies = varying_settings(trials)
    assert varies == ["epsilon", "l2_clip_norm"]
    assert [short_name(trial, varies) for trial in trials] == [
        "non-private",
        *("ε 1 · C 1", "ε 1 · C 3", "ε 8 · C 1", "ε 8 · C 3"),
    ]


def test_names_begin_with_what_differs_and_end_with_the_seed(prepared: Prepared) -> None:
    trials = [
        make_trial(prepared, seed=seed, task=task, learning_rate=rate, momentum=momentum)
        for seed in (0, 1)
        for task, rate, momentum in (("pcvr", 0.1, 0.9), ("pcvr", 0.3, 0.9), ("pconvs", 0.1, 0.5), ("pconvs", 0.1, 0.9))
    ]
    varies = varying_settings(trials)
    assert varies == ["task", "learning_rate", "momentum", "seed"]
    names = [short_name(trial, varies) for trial in trials]
    assert names[0] == "pCVR · ε 8 · rate 0.1 · momentum 0.9 · seed 0"
    assert len(set(names)) == len(trials)


def test_methods_are_named_where_there_are_several(prepared: Prepared) -> None:
    trials = [make_trial(prepared, epsilon=2.0), label_trial(prepared), label_trial(prepared, debias=True)]
    varies = varying_settings(trials)
    assert varies == ["mechanism", "debias"]
    assert [short_name(trial, varies) for trial in trials] == [
        "DP-SGD · ε 2",
        "LabelDP · ε 2 · debias no",
        "LabelDP · ε 2 · debias yes",
    ]


def test_a_sweep_of_one_trial_varies_nothing(prepared: Prepared) -> None:
    assert varying_settings([make_trial(prepared)]) == varying_settings([]) == []
    assert short_name(make_trial(prepared), []) == "ε 8"
