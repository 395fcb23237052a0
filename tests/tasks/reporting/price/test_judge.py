"""Doubts about made-up sweeps: a well-made one has none, and each planted fault is found, and nothing else with it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from tasks.config.pipeline import RecipeName
from tasks.reporting.price.budgets import blocks_of
from tasks.reporting.price.doubts import PRICE, Doubt, Judgement
from tasks.reporting.price.judge import Evidence, judge
from tasks.reporting.price.sampling import Labels, standard_error_of_auc
from tasks.reporting.results import Arm, Outcome, choose
from tasks.training.trial import Trial
from tests.support.sweeps import baseline, private

EPSILONS = (0.5, 1.0, 3.0, 10.0)
RATES, CLIPS = (0.03, 0.1, 0.3), (1.0, 3.0, 9.0)
LEVELLED = (0.1, 0.04, 0.02, 0.005, 0.0)


@dataclasses.dataclass(frozen=True)
class Planted:
    """A sweep whose best learning rate is ``best_rate``, and whose loss is 0.2 + ``price``/ε^0.5 for the best setting.

    ``curve`` is what the validation loss is above its last value, at each evaluation.
    """

    best_rate: float = 0.1
    best_clip: float = 3.0
    price: float = 0.02
    extra: float = 0.0
    baseline_loss: float = 0.2
    noise: float = 0.0003
    seeds: int = 3
    rates: Sequence[float] = RATES
    baseline_rates: Sequence[float] = RATES
    curve: Sequence[float] = LEVELLED
    baseline_curve: Sequence[float] = LEVELLED
    by_budget: Mapping[float, float] = dataclasses.field(default_factory=dict)
    diverges: Callable[[Trial], bool] = lambda trial: False
    test_prefers: Callable[[Trial], float] = lambda trial: 0.0
    audited: float = 0.99
    chance: bool = False
    recipes: tuple[RecipeName, ...] = ()
    noise_seed: int = 0


def loss_of(planted: Planted, trial: Trial) -> float:
    rate = 0.02 * math.log10(trial.learning_rate / planted.best_rate) ** 2
    if trial.epsilon is None:
        return planted.baseline_loss + rate
    if planted.chance:
        return 0.5
    clip = 0.02 * math.log10((trial.l2_clip_norm or 1.0) / planted.best_clip) ** 2
    price = planted.by_budget.get(trial.epsilon, planted.price / trial.epsilon**0.5)
    return 0.2 + planted.extra + price + rate + clip


def judged(planted: Planted, **options: Any) -> Judgement:
    rng = np.random.default_rng(planted.noise_seed)
    trials = [
        baseline(task="pctr", learning_rate=rate, seed=seed)
        for rate in planted.baseline_rates
        for seed in range(planted.seeds)
    ]
    trials += [
        private(task="pctr", epsilon=epsilon, learning_rate=rate, l2_clip_norm=clip, seed=seed)
        for epsilon in EPSILONS
        for rate in planted.rates
        for clip in CLIPS
        for seed in range(planted.seeds)
    ]
    shift = rng.normal(size=planted.seeds) * 0.003
    outcomes, curves = [], {}
    for trial in trials:
        if planted.diverges(trial):
            outcomes.append(Outcome(trial, None, None))
            continue
        loss = loss_of(planted, trial) + shift[trial.seed] + planted.noise * rng.normal()
        recipes = planted.recipes if trial.epsilon is not None else ()
        outcomes.append(Outcome(trial, loss, loss - planted.test_prefers(trial), recipes))
        shape = planted.baseline_curve if trial.epsilon is None else planted.curve
        curves[trial.key] = [loss + above for above in shape]
    audited = {trial.key: planted.audited * trial.epsilon for trial in trials if trial.epsilon is not None}
    evidence = Evidence(outcomes, curves, audited, {"pctr": Labels(rows=10**6, positives=10**5)})
    return judge(choose(outcomes), evidence, **{"claims_price": True, **options})


def serious(judgement: Judgement) -> list[tuple[str, str]]:
    return [(doubt.kind, doubt.claim) for doubt in judgement.doubts if doubt.serious]


def test_a_well_made_sweep_has_the_price_of_privacy() -> None:
    found = judged(Planted())
    assert serious(found) == []
    assert found.verdict == PRICE
    # One value of epochs and of the batch size is what the verdict calls "these searches".
    assert [(doubt.kind, doubt.claim) for doubt in found.doubts] == [
        ("not_tuned", "not tuned: one value of epochs and batch size was tried (baseline and DP-SGD)")
    ]


def test_false_alarms_on_well_made_sweeps_are_rare() -> None:
    """The tests of the curve have a level of 1 % and 5 % on fair differences; falling curves like these are far from
    the thresholds. Of 60 sweeps with other noise, at most 3 may have a doubt (0.001 by chance at a rate of 1 %)."""
    alarms = [serious(judged(Planted(noise_seed=seed, noise=0.0005))) for seed in range(60)]
    assert sum(map(bool, alarms)) <= 3, [alarm for alarm in alarms if alarm]


@pytest.mark.parametrize(
    ("planted", "expected"),
    [
        (
            Planted(best_rate=3.0),
            [
                ("edge", "pCTR, ε = 0.5, 1, 3 and 10: the best learning rate is the largest tried (0.3)"),
                ("edge", "pCTR, baseline: the best learning rate is the largest tried (0.3)"),
            ],
        ),
        (
            Planted(best_clip=0.1),
            [("edge", "pCTR, ε = 0.5, 1, 3 and 10: the best clip norm C is the smallest tried (1)")],
        ),
        (
            Planted(rates=(0.1,)),
            [("not_tuned", "not tuned: one value of learning rate was tried (DP-SGD)")],
        ),
        (
            Planted(baseline_rates=(0.1,)),
            [("not_tuned", "not tuned: one value of learning rate was tried (baseline)")],
        ),
        (
            Planted(curve=(0.1, 0.05, 0.03, 0.015, 0.0)),
            [("still_improving", "pCTR, ε = 0.5, 1, 3 and 10: validation loss was still falling when training ended")],
        ),
        (
            Planted(baseline_curve=(0.1, 0.05, 0.03, 0.015, 0.0)),
            [("still_improving", "pCTR, baseline: validation loss was still falling when training ended")],
        ),
        (
            Planted(baseline_curve=(0.05, -0.01, -0.008, -0.002, 0.0)),
            [("overfitted", "pCTR, baseline: validation loss had risen from its minimum when training ended")],
        ),
        (
            Planted(baseline_loss=0.215),
            [
                ("beats_baseline", "pCTR, ε = 3: the private model's loss is below the baseline's by "),
                ("beats_baseline", "pCTR, ε = 10: the private model's loss is below the baseline's by "),
            ],
        ),
        (
            Planted(by_budget={0.5: 0.0172, 1.0: 0.0165, 3.0: 0.0158, 10.0: 0.0164}),
            [("flat", "pCTR: from ε = 0.5 to 10 the relative loss goes from 8.")],
        ),
        (
            Planted(by_budget={0.5: 0.0172, 1.0: 0.0172, 3.0: 0.0172, 10.0: 0.006}),
            [("flat", "pCTR: from ε = 0.5 to 3 the relative loss goes from 8.")],
        ),
        (
            Planted(by_budget={0.5: 0.04, 1.0: 0.02, 3.0: 0.005, 10.0: 0.015}),
            [("rising", "pCTR: the loss rises by ")],
        ),
        (
            Planted(audited=0.5),
            [
                ("unused_budget", f"pCTR, ε = {epsilon:g}: the audited ε is {epsilon / 2:.2f}, far below the budget")
                for epsilon in EPSILONS
            ],
        ),
        (Planted(seeds=1), [("one_seed", "there is one seed")]),
    ],
    ids=lambda value: "" if isinstance(value, list) else None,
)
def test_each_planted_fault_is_found_and_nothing_else(planted: Planted, expected: list[tuple[str, str]]) -> None:
    found = judged(planted)
    told = serious(found)
    assert [kind for kind, _ in told] == [kind for kind, _ in expected], told
    claims = sorted(claim for _, claim in told)
    for claim, begins in zip(claims, sorted(begins for _, begins in expected), strict=True):
        assert claim.startswith(begins)
    assert found.verdict.startswith("Not the price of privacy yet: ")
    assert not found.holds


def test_a_flat_edge_is_no_doubt() -> None:
    """Beyond a plateau lies no gain: the next step gains at most what the last one gained."""
    for best, expected in ((0.14, set()), (0.2, {"edge"})):
        two = Planted(rates=(0.1, 0.2), baseline_rates=(0.1, 0.2), best_rate=best)
        assert {kind for kind, _ in serious(judged(two))} == expected


def test_more_epochs_that_were_worse_answer_the_doubt() -> None:
    still = Planted(curve=(0.1, 0.05, 0.03, 0.015, 0.0))
    trials = [private(task="pctr", epsilon=1.0, epochs=epochs, seed=seed) for epochs in (2, 4) for seed in range(2)]
    without = [baseline(task="pctr", seed=seed) for seed in range(2)]
    losses = {2: 0.25, 4: 0.26}
    outcomes = [Outcome(trial, 0.2, 0.2) for trial in without]
    outcomes += [Outcome(trial, losses[int(trial.epochs)], losses[int(trial.epochs)]) for trial in trials]
    curves = {trial.key: [0.25 + above for above in still.curve] for trial in trials}
    found = judge(choose(outcomes), Evidence(outcomes, curves, {}, {}), claims_price=True)
    assert "still_improving" not in found.counts()
    assert ("edge", "pCTR, ε = 1: the best number of epochs is the smallest tried (2)") in serious(found)


def test_a_model_of_chance() -> None:
    kinds = [kind for kind, _ in serious(judged(Planted(chance=True, noise=0.0001)))]
    assert kinds.count("chance") >= 1
    assert "flat" in kinds


def test_remarks_do_not_decide() -> None:
    diverged = judged(Planted(diverges=lambda trial: trial.learning_rate == 0.3))
    assert diverged.holds
    assert diverged.counts()["diverged_neighbour"] == 2
    disagree = judged(Planted(test_prefers=lambda trial: 0.02 * (trial.l2_clip_norm == 9.0)))
    assert disagree.holds
    assert disagree.counts()["splits_disagree"] >= 1


def test_the_recipe_of_the_paper_claims_nothing() -> None:
    """It is trained as the paper says; a private model of it that beats the baseline still shows that this is weak."""
    found = judged(Planted(best_clip=0.1, recipes=("paper_recipe",)))
    assert serious(found) == []
    assert [doubt.kind for doubt in found.doubts if doubt.arm is not None] == ["edge"]
    beaten = judged(Planted(baseline_loss=0.215, recipes=("paper_recipe",)))
    assert {kind for kind, _ in serious(beaten)} == {"beats_baseline"}


def test_a_page_that_compares_settings_claims_no_price() -> None:
    found = judged(Planted(best_rate=3.0, curve=(0.1, 0.05, 0.03, 0.015, 0.0)), claims_price=False)
    assert found.verdict == ""
    assert {doubt.kind for doubt in found.doubts} == {"edge"}


def test_a_remark_does_not_say_not_yet() -> None:
    for doubt in judged(Planted()).doubts:
        assert "not the price" not in doubt.consequence


def test_the_error_of_the_block_design() -> None:
    """The error of a difference of two budgets' means, over 400 sweeps: its mean square is the true variance, within
    five standard errors of a mean of scaled chi-squares."""
    rng, squares, seeds, noise = np.random.default_rng(3), [], 3, 0.01
    for _ in range(400):
        shift = rng.normal(size=seeds)
        found = [Outcome(baseline(seed=s), 0.2 + shift[s], 0.2 + shift[s] + noise * rng.normal()) for s in range(seeds)]
        for epsilon in EPSILONS:
            for s in range(seeds):
                value = 0.2 + shift[s] + noise * rng.normal()
                found.append(Outcome(private(epsilon=epsilon, seed=s), value, value))
        blocks = blocks_of(choose(found))
        assert blocks is not None
        assert blocks.freedom == 4 * 2
        squares.append(blocks.error**2)
    truth = 2 * noise**2 / seeds
    assert np.mean(squares) == pytest.approx(truth, abs=5 * truth * math.sqrt(2 / 8 / 400))


def test_the_standard_error_of_an_auc_against_resampling() -> None:
    """Hanley and McNeil's formula is exact for exponential scores: 2,000 splits agree within five standard errors of a
    standard deviation, 1/√(2·2,000)."""
    rng, positives, negatives = np.random.default_rng(5), 60, 140
    aucs = []
    for _ in range(2000):
        above, below = rng.exponential(3.0, positives), rng.exponential(1.0, negatives)
        aucs.append(np.mean(above[:, None] > below[None, :]))
    expected = standard_error_of_auc(0.75, Labels(positives + negatives, positives))
    assert np.std(aucs) == pytest.approx(expected, rel=5 / math.sqrt(4000))


def test_a_doubt_names_its_cells() -> None:
    doubt = Doubt("flat", "pcvr", Arm("non_private"), (), "something")
    assert doubt.claim == "pCVR, baseline: something"
