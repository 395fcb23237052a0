"""Figure 3: planted effects of microbatches are found, and none where none was planted."""

from __future__ import annotations

import pytest

from tasks.reporting.document import Verdict
from tasks.training.trial import Trial
from tests.support.exhibits import rows_of, verdicts
from tests.support.sweeps import VERDICTS, by_chance, show, text_of


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_microbatches_help_if_they_do(effect: float, verdict: Verdict) -> None:
    chosen_by = {(1.0, 1): 0.30, (8.0, 1): 0.29, (1.0, 4): 0.28, (8.0, 4): 0.27}

    def loss(trial: Trial) -> float:
        return 0.25 + (effect + by_chance(trial)) * (trial.epsilon is not None and trial.microbatch_size == 1)

    def validation(trial: Trial) -> float:
        return chosen_by.get((trial.l2_clip_norm or 0.0, trial.microbatch_size), 0.1)

    assert verdicts(show("microbatch", loss, validation=validation)) == [verdict] * 4


@pytest.mark.parametrize(
    ("losses", "ways"),
    [
        ({(1, 1): 4, (8, 1): 3, (1, 4): 2, (8, 4): 1}, [(1, 1), (8, 1), (1, 4), (8, 4)]),
        ({(1, 1): 1, (8, 1): 2, (1, 4): 3, (8, 4): 4}, [(1, 1), (1, 1), (1, 1), (1, 1)]),
        ({(1, 1): 2, (8, 1): 1, (1, 4): 3, (8, 4): 4}, [(1, 1), (8, 1), (1, 1), (8, 1)]),
        ({(1, 1): 3, (8, 1): 4, (1, 4): 1, (8, 4): 2}, [(1, 1), (1, 1), (1, 4), (1, 4)]),
    ],
    ids=["both", "neither", "C", "m"],
)
def test_the_four_ways_to_tune_c_and_m(losses: dict[tuple[int, int], int], ways: list[tuple[int, int]]) -> None:
    def loss(trial: Trial) -> float:
        return losses[int(trial.l2_clip_norm), trial.microbatch_size] / 10 if trial.l2_clip_norm else 0.05

    shown = show("microbatch", loss)
    table, everything = shown.tables
    assert list(table.columns) == ["ε", "neither", "C alone", "m alone", "both"]
    expected = [f"{text_of(1 - losses[way] / 10)} (C = {way[0]} · m = {way[1]})" for way in ways]
    assert [list(row.values()) for row in rows_of(table).values()] == [expected] * 2
    assert rows_of(everything)["1"]["C = 8 · m = 4"].startswith(text_of(1 - losses[8, 4] / 10))
    assert all(text.split(" (")[0] in shown.headline for text in expected[1:])
    # If validation chooses the same settings, more tuning did not help.
    same = [ways[0] == ways[2], ways[1] == ways[3]]
    assert verdicts(shown) == [("not shown" if one else "shown") for one in same] * 2
