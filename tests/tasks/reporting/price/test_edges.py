"""Settings at the edge of their lists that a comparison along one list alone would miss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tasks.reporting.price.judge import Evidence, judge
from tasks.reporting.results import Outcome, choose
from tasks.training.trial import Trial
from tests.support.sweeps import baseline, private
from tests.tasks.reporting.price.test_judge import serious

Settings = Sequence[dict[str, Any]]
RATES, CLIPS = (0.03, 0.1, 0.3), (1.0, 3.0, 9.0)
LEVELLED, FALLING = (0.1, 0.04, 0.02, 0.005, 0.0), (0.1, 0.05, 0.03, 0.015, 0.0)


def crossed(**lists: Sequence[Any]) -> Settings:
    return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]


def found(
    settings: Settings, more: Callable[[Trial], float] = lambda trial: 0.0, curve: Sequence[float] = LEVELLED
) -> list[tuple[str, str]]:
    """Returns the serious doubts about a sweep of two budgets: the best rate is 0.1 and the best C is 3 but for what a
    setting costs ``more``. The baseline's best is inside."""
    outcomes, curves = [], {}
    for seed in range(3):
        trials = [baseline(task="pctr", learning_rate=rate, seed=seed) for rate in RATES]
        trials += [private(task="pctr", epsilon=epsilon, seed=seed, **one) for epsilon in (0.5, 10) for one in settings]
        for trial in trials:
            loss = 0.2 + 0.001 * seed + 0.02 * math.log10(trial.learning_rate / 0.1) ** 2
            if trial.l2_clip_norm is not None:
                loss += 0.01 / (trial.epsilon or 1) + 0.02 * math.log10(trial.l2_clip_norm / 3) ** 2 + more(trial)
            outcomes.append(Outcome(trial, loss, loss))
            shape = curve if trial.l2_clip_norm is not None else LEVELLED
            curves[trial.key] = [loss + above for above in shape]
    return serious(judge(choose(outcomes), Evidence(outcomes, curves, {}, {}), claims_price=True))


TUNED = crossed(learning_rate=RATES, l2_clip_norm=CLIPS)


def with_each(settings: Settings, **lists: Sequence[Any]) -> Settings:
    return [{**one, **more} for one in settings for more in crossed(**lists)]


def edge(noun: str, which: str) -> list[tuple[str, str]]:
    return [("edge", f"pCTR, ε = 0.5 and 10: the best {noun} is the {which} tried")]


def with_bands(epochs: int) -> dict[str, Any]:
    return {"epochs": epochs, "bands": {5: 8, 10: 16, 20: 24}[epochs]}


@pytest.mark.parametrize(
    ("settings", "more", "expected"),
    [
        pytest.param(
            [{**one, **with_bands(epochs)} for one in TUNED for epochs in (5, 10, 20)],
            lambda trial: 0.1 / trial.epochs,
            edge("number of epochs", "largest"),
            id="bands that follow from the epochs",
        ),
        pytest.param(
            with_each(TUNED, bands=(4, 8, 16)),
            lambda trial: 0.1 / trial.bands,
            edge("number of bands", "largest"),
            id="bands that were searched for",
        ),
        pytest.param(
            with_each(TUNED, bands=(1, 2, 4)),
            lambda trial: 0.01 * trial.bands,
            [],
            id="independent noise has no fewer bands",
        ),
        pytest.param(
            with_each(TUNED, initial_bias=["label_rate"], initial_bias_epsilon=(0.01, 0.1)),
            lambda trial: 0.001 / (trial.initial_bias_epsilon or 1),
            edge("ε of the initial bias", "largest"),
            id="the share of the initial bias",
        ),
        pytest.param(
            crossed(learning_rate=(0.1, 0.105, 0.11), l2_clip_norm=CLIPS),
            lambda trial: -0.024 * math.log10(trial.learning_rate / 0.1),
            edge("learning rate", "largest"),
            id="a short list far from the best, where each step gains little",
        ),
        pytest.param(
            [
                {"optimizer": name, "learning_rate": rate, "l2_clip_norm": clip}
                for name, rate in (("sgd", 0.1), ("adam", 0.01))
                for clip in CLIPS
            ],
            lambda trial: 0.0 if trial.optimizer == "sgd" else 0.1,
            [("not_tuned", "not tuned: one value of learning rate was tried (DP-SGD)")],
            id="one rate for each optimiser",
        ),
    ],
)
def test_an_edge_that_other_settings_hide_is_found(
    settings: Settings, more: Callable[[Trial], float], expected: list[tuple[str, str]]
) -> None:
    told = found(settings, more)
    assert [kind for kind, _ in told] == [kind for kind, _ in expected], told
    assert all(claim.startswith(begins) for (_, claim), (_, begins) in zip(told, expected, strict=True)), told


def test_more_epochs_of_larger_batches_are_no_longer_training() -> None:
    """20 epochs of batches of 1,024 have as many steps as 5 of 256, so they do not show that 5 epochs were enough."""
    both = [{**one, "epochs": epochs, "batch_size": batch} for one in TUNED for epochs, batch in ((5, 256), (20, 1024))]
    told = found(both, lambda trial: 0.0001 * (trial.epochs == 20), FALLING)
    assert [kind for kind, _ in told] == ["still_improving"]
    assert (
        found([{**one, "batch_size": 256} for one in both], lambda trial: 0.0001 * (trial.epochs == 20), FALLING) == []
    )
