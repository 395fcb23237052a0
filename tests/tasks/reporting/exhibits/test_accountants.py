"""Figure 4(a): planted effects of accountants are found, and none where none was planted."""

from __future__ import annotations

import functools

import pytest

from tasks.reporting.document import Verdict
from tasks.training.trial import Trial
from tests.support.exhibits import rows_of, verdicts
from tests.support.sweeps import SWEEPS, VERDICTS, by_chance, private, show


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_less_noise_gives_a_better_model_if_it_does(effect: float, verdict: Verdict) -> None:
    shown = show("accountants", lambda trial: 0.25 + (effect + by_chance(trial)) * (trial.accountant == "RDP"))
    assert verdicts(shown) == ["shown", verdict, verdict]
    assert shown.headline == "PLD accounting needs 20.0 to 20.0 % less noise than RDP for the same ε."
    assert rows_of(shown.tables[1])["8"] == {"PLD": "1.0000", "RDP": "1.2500", "less": "20.0 %"}
    assert list(shown.tables[0].columns) == ["ε", "PLD", "RDP"]


def test_the_noise_of_accountants_is_compared_at_the_same_settings() -> None:
    """Validation chooses large batches, which need more noise, for RDP alone."""
    noises = {("tightest", 100): 1.0, ("RDP", 100): 1.1, ("tightest", 400): 2.0, ("RDP", 400): 2.2}
    methods = [
        functools.partial(private, task="pctr", accountant=name, batch_size=size, noise_multiplier=noise)
        for (name, size), noise in noises.items()
    ]

    def loss(trial: Trial) -> float:
        return 0.2 if trial.batch_size == (400 if trial.accountant == "RDP" else 100) else 0.3

    shown = show("accountants", loss, SWEEPS["accountants"]._replace(methods=methods))
    assert rows_of(shown.tables[1])["1"] == {"PLD": "1.0000", "RDP": "1.1000", "less": "9.1 %"}
    assert shown.findings[0].verdict == "shown"


def test_an_accountant_that_asks_for_more_noise() -> None:
    more = [
        functools.partial(private, task="pctr", accountant=name, noise_multiplier=noise)
        for name, noise in (("tightest", 1.25), ("RDP", 1.0))
    ]
    shown = show("accountants", lambda trial: 0.25, SWEEPS["accountants"]._replace(methods=more))
    assert verdicts(shown) == ["not shown", "within noise", "within noise"]
