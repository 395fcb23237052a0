"""Tables behind a report: chosen settings, what varied, and scores of one kind in a column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from dp_core.models.spec import DCNv2Spec, MLPSpec
from tasks.privacy.choice_cost import ChoiceCost, choice_table
from tasks.reporting.results import Outcome, choose
from tasks.reporting.tables import settings_table, settings_that_varied
from tasks.training.trial import Trial
from tests.support.sweeps import baseline, of_labels, private

MAIN = "sgd 0.1, batch 100, 2 epochs, C = 1, σ = 1"


def chosen(trials: Sequence[Trial], columns: tuple[str, ...] = ()) -> list[str]:
    """Returns the settings of each private cell; the first trial has the lowest loss."""
    found = [Outcome(trial, 0.2 + 0.01 * number, 0.2) for number, trial in enumerate(trials)]
    results = choose([Outcome(baseline(), 0.1, 0.1), *found], columns)
    table = settings_table(results, {result.trial.key: result.epsilon for result in results})
    return [row[5].text for row in table.rows if row[2].text != "∞"]


def test_the_defaults_are_not_named() -> None:
    assert chosen([private(), private(l2_clip_norm=3.0)]) == [MAIN]
    assert chosen([private(epochs=1)]) == ["sgd 0.1, batch 100, 1 epoch, C = 1, σ = 1"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"momentum": 0.5}, "momentum 0.5"),
        ({"model": DCNv2Spec(hidden_layers=(8,))}, "dcn_v2"),
        ({"sampler": "balls_in_bins"}, "sampler balls in bins"),
        ({"clipping": "adaptive", "clip_quantile": 0.9}, "adaptive clipping"),
        ({"clipping": "adaptive", "clip_quantile": 0.5}, "adaptive clipping, quantile 0.5"),
        ({"accountant": "RDP"}, "accountant RDP"),
        ({"microbatch_size": 4, "sensitivity": "paper"}, "m = 4, sensitivity paper"),
    ],
    ids=str,
)
def test_what_is_not_the_default_is_named(changes: dict[str, Any], words: str) -> None:
    assert chosen([private(**changes)]) == [f"{MAIN}, {words}"]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("model", [MLPSpec(hidden_layers=(8,)), MLPSpec(hidden_layers=(16, 8))], "mlp, layers 8"),
        ("clipping", ["fixed", "automatic"], "fixed clipping"),
        ("sampler", ["poisson", "shuffle"], "sampler poisson"),
        ("accountant", ["tightest", "RDP"], "accountant tightest"),
    ],
)
def test_what_was_chosen_among_is_named_even_if_it_is_the_default(name: str, values: list[Any], words: str) -> None:
    trials = [private(**{name: value}) for value in values]
    assert chosen(trials) == [f"{MAIN}, {words}"]
    assert chosen(trials, (name,))[0] == MAIN, "the method has it"


def test_the_settings_of_label_dp() -> None:
    label = "sgd 0.1, batch 100, 2 epochs"
    assert chosen([of_labels(debias=True)]) == [f"{label}, randomised response"]
    assert chosen([of_labels(debias=True), of_labels()]) == [f"{label}, randomised response, debiased"]
    assert chosen([of_labels()]) == [f"{label}, randomised response, not debiased"]
    assert chosen([of_labels()], ("response", "debias")) == [label]


def test_one_training_in_a_cell_is_no_choice() -> None:
    results = choose([Outcome(baseline(), 0.1, 0.1), Outcome(private(), 0.2, 0.2)])
    audited = {result.trial.key: result.epsilon for result in results}
    one = choice_table(results, {1: ChoiceCost(1, 8.0, None, random=False)}, audited)
    assert "Each cell has one training" in one.caption
    assert "several trainings" not in one.caption
    assert (
        "among several trainings" in choice_table(results, {1: ChoiceCost(2, 9.0, None, random=False)}, audited).caption
    )


def test_scores_of_different_kinds_have_columns_of_their_own() -> None:
    found = []
    for task in ("pctr", "pconvs"):
        trials = (baseline(task=task), private(task=task))
        found += [Outcome(trial, 0.2 + 0.01 * number, 0.25) for number, trial in enumerate(trials)]
    results = choose(found)
    table = settings_table(results, {result.trial.key: result.epsilon for result in results})
    columns = list(table.columns)
    ranked, counted = columns.index("test AUC"), columns.index("test Poisson log loss")
    by_task = {row[0].text: (row[ranked].text, row[counted].text) for row in table.rows}
    assert by_task == {"pCTR": ("0.7500", "–"), "pConvs": ("–", "0.2500")}


def test_what_varied_and_what_did_not() -> None:
    trials = [
        *(baseline(task=task, seed=seed, optimizer="yogi") for task in ("pctr", "pcvr") for seed in (0, 1)),
        *(private(task="pctr", epsilon=epsilon, l2_clip_norm=clip) for epsilon in (8.0, 1.0) for clip in (1.0, 3.0)),
        private(task="pcvr", epsilon=1.0, l2_clip_norm=3.0),
    ]
    varied, fixed = ([tuple(cell.text for cell in row) for row in table.rows] for table in settings_that_varied(trials))
    assert ("ε budget", "1, 8", "DP-SGD of pCTR") in varied
    assert ("clip norm C", "1, 3", "DP-SGD of pCTR") in varied
    assert ("seed", "0, 1", "non-private") in varied
    assert ("clip norm C", "3", "DP-SGD of pCVR") in fixed
    assert {("optimiser", "yogi", "non-private"), ("optimiser", "sgd", "DP-SGD")} <= set(fixed)
    assert ("batch size", "100", "all") in fixed


def test_settings_of_one_trial_did_not_vary() -> None:
    (fixed,) = settings_that_varied([private()])
    assert fixed.name == "fixed"
