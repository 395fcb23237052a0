"""Figure 5: planted crossings of LabelDP and DP-SGD are found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from tasks.reporting.document import Verdict
from tasks.reporting.exhibits.common import Exhibit
from tasks.training.trial import Trial
from tests.support.exhibits import verdicts
from tests.support.sweeps import VERDICTS, Sweeping, baseline, by_chance, of_labels, settings, show, text_of


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_label_dp_is_ahead_at_large_budgets_alone_if_it_is(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        if trial.epsilon is None:
            return 0.1
        loses = (trial.mechanism == "label_dp") == (trial.epsilon == 1)
        return 0.25 + (effect + by_chance(trial)) * loses

    shown = show("label_dp", loss)
    # Two responses for each of two tasks, at two budgets.
    assert verdicts(shown) == [verdict] * 8
    assert [table.name for table in shown.tables] == ["table", "table_pconvs"]
    assert list(shown.tables[0].columns) == [
        *("ε", "DP-SGD", "randomised response", "randomised response · debiased"),
    ]
    assert list(shown.tables[1].columns) == [
        *("ε", "DP-SGD", "randomised response on counts", "randomised response on bins"),
    ]
    assert f"baseline has {text_of(0.9)}." in shown.tables[0].caption
    assert f"baseline has {text_of(0.1, task='pconvs')}." in shown.tables[1].caption


EPSILONS = (0.5, 1.0, 3.0, 10.0)


def crossing(gain: Callable[[float], float]) -> tuple[Exhibit, str]:
    """Returns the exhibit of a response that is ahead of DP-SGD by ``gain``, and where it says that it overtakes."""
    sweeping = Sweeping(settings(baseline), [*settings(), *settings(of_labels)], EPSILONS)

    def loss(trial: Trial) -> float:
        return 0.25 - gain(trial.epsilon or 1.0) * (trial.mechanism == "label_dp")

    shown = show("label_dp", loss, sweeping)
    said = shown.headline.removeprefix("Where LabelDP overtakes DP-SGD: pCTR, randomised response: ")
    assert said in shown.notes[0]
    return shown, said


@pytest.mark.parametrize("where", [0.6, 0.99, 1.7, 4.4, 9.5])
def test_where_label_dp_overtakes(where: float) -> None:
    """If the difference is linear in log ε, the crossing is exactly where the line crosses zero."""
    shown, said = crossing(lambda epsilon: 0.01 * math.log(epsilon / where))
    before = max(epsilon for epsilon in EPSILONS if epsilon < where)
    after = min(epsilon for epsilon in EPSILONS if epsilon > where)
    assert said == f"between ε = {before:g} and {after:g}, at about {where:.2g}."
    assert verdicts(shown) == ["shown", "shown"]


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((0.1, 0.1, 0.2, 0.3), "ahead at every ε from 0.5."),
        ((-0.1, -0.1, -0.01, 0.0), "behind at every ε up to 10."),
        ((-0.1, 0.1, -0.1, 0.1), "no single crossing: ahead at ε = 1, 10."),
        ((0.1, 0.1, -0.1, -0.1), "no single crossing: ahead at ε = 0.5, 1."),
        ((-0.1, 0.0, 0.1, 0.1), "between ε = 1 and 3, at about 1."),
    ],
)
def test_there_may_be_no_place_where_label_dp_overtakes(gains: Sequence[float], said: str) -> None:
    assert crossing(lambda epsilon: dict(zip(EPSILONS, gains, strict=True)).get(epsilon, 0.0))[1] == said
