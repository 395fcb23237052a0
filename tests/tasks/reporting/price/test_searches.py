"""Judgements of searches that are no plain grid: relative rates, random searches, halving, unequal numbers of seeds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from tasks.reporting.price.doubts import Judgement
from tasks.reporting.price.judge import Evidence, judge
from tasks.reporting.results import Outcome, choose
from tasks.training.trial import Trial
from tests.support.sweeps import baseline, private
from tests.tasks.reporting.price.test_judge import serious


def relative(rates: Mapping[tuple[float, float], float], per: str) -> Judgement:
    """Returns the judgement of a sweep whose rates are relative: the loss by clip norm and number of the grid."""
    outcomes = [
        Outcome(baseline(task="pctr", learning_rate=rate, seed=seed), 0.2 + 0.01 * far, 0.2 + 0.01 * far)
        for rate, far in ((0.03, 1), (0.1, 0), (0.3, 1))
        for seed in range(2)
    ]
    for epsilon, more in ((0.5, 0.04), (3.0, 0.01)):
        for (clip, number), loss in rates.items():
            # With the guess, the rate follows from the noise, too.
            rate = number / clip * (1 if per == "clip_norm" else epsilon)
            for seed in range(2):
                trial = private(
                    task="pctr",
                    epsilon=epsilon,
                    l2_clip_norm=clip,
                    learning_rate=rate,
                    learning_rate_per=per,
                    seed=seed,
                )
                outcomes.append(Outcome(trial, loss + more + 0.001 * seed, loss + more + 0.001 * seed))
    return judge(choose(outcomes), Evidence(outcomes, {}, {}, {}), claims_price=True)


@pytest.mark.parametrize("per", ["clip_norm", "guess"])
def test_one_number_relative_to_several_clip_norms_is_one_value(per: str) -> None:
    found = relative({(1.0, 1.0): 0.23, (2.0, 1.0): 0.2, (4.0, 1.0): 0.23}, per)
    assert ("not_tuned", "not tuned: one value of learning rate was tried (DP-SGD)") in serious(found)
    tuned = {
        (clip, number): 0.2 + 0.01 * (abs(math.log2(clip / 2)) + abs(math.log2(number)))
        for clip in (1.0, 2.0, 4.0)
        for number in (0.5, 1.0, 2.0)
    }
    assert serious(relative(tuned, per)) == []


def test_equal_rates_of_other_numbers_are_no_line() -> None:
    """At C = 2 and the number 1 the rate is that of C = 4 and 2, and of no setting with C = 1, which was tried too."""
    losses = {
        (clip, number): 0.2 + 0.01 * (clip != 2.0) + 0.02 * abs(math.log2(number))
        for clip in (1.0, 2.0, 4.0)
        for number in (1.0, 2.0)
    }
    kinds = [claim for kind, claim in serious(relative(losses, "clip_norm")) if "clip norm" in claim]
    assert kinds == []


def test_a_random_search_is_judged_though_its_cells_share_no_seed() -> None:
    outcomes = [
        Outcome(baseline(task="pctr", learning_rate=rate, seed=seed), loss, loss)
        for rate, loss in ((0.03, 0.22), (0.1, 0.2), (0.3, 0.22))
        for seed in range(3)
    ]
    for epsilon, own, loss in ((0.5, 4, 0.19), (1.0, 5, 0.185), (10.0, 6, 0.18)):
        outcomes += [
            Outcome(private(task="pctr", epsilon=epsilon, seed=own), loss, loss),
            Outcome(private(task="pctr", epsilon=epsilon, learning_rate=0.3, seed=own + 1), 0.3, 0.3),
        ]
    found = judge(choose(outcomes, each_alone=True), Evidence(outcomes, {}, {}, {}), claims_price=True)
    kinds = [kind for kind, _ in serious(found)]
    assert kinds.count("beats_baseline") == 3
    assert ("one_seed", "pCTR, ε = 0.5, 1 and 10: one seed was trained") in serious(found)


def test_a_budget_with_fewer_seeds_does_not_take_them_from_the_others() -> None:
    outcomes = [
        Outcome(baseline(task="pctr", learning_rate=rate, seed=seed), loss, loss)
        for rate, loss in ((0.03, 0.22), (0.1, 0.2), (0.3, 0.22))
        for seed in range(3)
    ]
    for epsilon, losses in ((0.5, (0.25, 0.251, 0.252)), (1.0, (0.24,)), (10.0, (0.243, 0.23, 0.22))):
        outcomes += [
            Outcome(private(task="pctr", epsilon=epsilon, seed=seed), loss, loss) for seed, loss in enumerate(losses)
        ]
    found = judge(choose(outcomes), Evidence(outcomes, {}, {}, {}), claims_price=True)
    assert ("one_seed", "pCTR, ε = 1: one seed was trained") in serious(found)
    assert "rising" not in found.counts()


def halved(rates: Sequence[float], losses: Mapping[float, Sequence[float]]) -> Judgement:
    """Returns the judgement of a search by halving: the loss of each rate on the rungs that it reached, of 1, 3 and 9
    epochs. The best of the last rung was trained with two more seeds. The baseline is a grid."""
    outcomes = [
        Outcome(baseline(task="pctr", learning_rate=rate, epochs=epochs, seed=seed), loss, loss)
        for rate, loss in ((0.03, 0.22), (0.1, 0.2), (0.3, 0.22))
        for epochs in (1.0, 9.0)
        for seed in range(3)
    ]
    shortened: dict[Trial, Trial] = {}
    last: list[Trial] = []
    for epsilon, less in ((0.5, 0.0), (10.0, 0.02)):
        for clip in (1.0, 2.0, 4.0):
            for rate in rates:
                whole = private(task="pctr", epsilon=epsilon, learning_rate=rate, l2_clip_norm=clip, epochs=9.0)
                for epochs, loss in zip((1.0, 3.0, 9.0), losses[rate], strict=False):
                    trial = whole.model_copy(update={"epochs": epochs})
                    loss = loss - less + 0.01 * abs(math.log2(clip / 2))
                    outcomes.append(Outcome(trial, loss, loss))
                    if epochs < 9:
                        shortened[trial] = whole
                    elif clip == 2:
                        last.append(trial)
                        outcomes += [
                            Outcome(trial.model_copy(update={"seed": seed}), loss, loss + 0.001 * seed)
                            for seed in (1, 2)
                        ]
    evidence = Evidence(outcomes, {}, {}, {}, shortened)
    return judge(choose(outcomes, among=last), evidence, claims_price=True)


def test_what_halving_dropped_was_tried() -> None:
    inside = {0.1: (0.29, 0.27), 0.3: (0.28, 0.26, 0.24), 1.0: (0.29,)}
    assert serious(halved((0.1, 0.3, 1.0), inside)) == []


def test_a_survivor_of_halving_at_the_edge_is_found_out() -> None:
    edge = {0.03: (0.3,), 0.1: (0.29, 0.27), 0.3: (0.28, 0.26, 0.24)}
    claim = "pCTR, ε = 0.5 and 10: the best learning rate is the largest tried (0.3)"
    assert serious(halved((0.03, 0.1, 0.3), edge)) == [("edge", claim)]
    # The last rung that both reached decides, and there the last step gained nothing.
    flat = {0.03: (0.3,), 0.1: (0.29, 0.2601), 0.3: (0.28, 0.26, 0.24)}
    assert serious(halved((0.03, 0.1, 0.3), flat)) == []


def test_too_few_evaluations_are_said() -> None:
    trials = [baseline(task="pctr", learning_rate=rate, seed=seed) for rate in (0.03, 0.1, 0.3) for seed in range(2)]
    outcomes = [Outcome(trial, loss, loss) for trial in trials for loss in [0.2 + abs(trial.learning_rate - 0.1)]]
    for evaluations, expected in ((2, ["few_evaluations"]), (3, [])):
        curves = {trial.key: [0.2] * evaluations for trial in trials}
        found = judge(choose(outcomes), Evidence(outcomes, curves, {}, {}), claims_price=True)
        assert [kind for kind, _ in serious(found)] == expected
