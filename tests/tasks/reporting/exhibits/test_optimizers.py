"""Figure 1: planted effects of optimisers are found, and none where none was planted."""

from __future__ import annotations

import pytest

from tasks.reporting.document import Verdict
from tasks.training.trial import Trial
from tests.support.exhibits import verdicts
from tests.support.sweeps import SWEEPS, VERDICTS, by_chance, settings, show, text_of


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_what_is_best_without_privacy_is_not_with_it_if_so(effect: float, verdict: Verdict) -> None:
    def is_reused(trial: Trial) -> bool:
        return (trial.optimizer, trial.learning_rate) == ("yogi", 0.01)

    def loss(trial: Trial) -> float:
        return 0.25 + (effect + by_chance(trial)) * (trial.epsilon is not None and is_reused(trial))

    def validation(trial: Trial) -> float:
        best = is_reused(trial) if trial.epsilon is None else (trial.optimizer, trial.learning_rate) == ("sgd", 0.1)
        return 0.2 if best else 0.3

    shown = show("optimizers", loss, validation=validation)
    assert verdicts(shown) == [verdict] * 2
    assert shown.headline == (
        "Without privacy the best optimiser and learning rate are yogi · 0.01; at ε = 1 they are sgd · 0.1."
    )
    assert "The thick line is yogi · 0.01" in shown.figures[0].caption
    assert f"AUC {text_of(0.75)} with sgd · 0.1" in shown.findings[0].evidence


def test_the_non_private_choice_may_be_the_private_one_too() -> None:
    shown = show("optimizers", lambda trial: 0.2 + 0.1 * (trial.optimizer == "sgd") + trial.learning_rate / 100)
    assert verdicts(shown) == ["not shown"] * 2
    assert "yogi · 0.01 is the best private choice too" in shown.findings[0].evidence


def test_the_non_private_choice_may_not_have_been_tried() -> None:
    sweeping = SWEEPS["optimizers"]._replace(methods=settings(optimizer=["sgd"], learning_rate=[0.1]))
    shown = show("optimizers", lambda trial: 0.2 + 0.1 * (trial.optimizer == "sgd") + trial.learning_rate, sweeping)
    assert verdicts(shown) == ["not shown"] * 2
    assert "yogi · 0.01 was not tried with privacy" in shown.findings[0].evidence
