"""Results: validation chooses the settings, the test split reports them, and methods are compared seed by seed."""

from __future__ import annotations

import itertools
import random
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.reporting.results import Arm, Outcome, Result, arm_of, choose, difference, paired
from tasks.runtime.errors import UserError
from tasks.training.trial import Trial
from tests.support.sweeps import baseline, of_labels, outcomes, private


def test_validation_chooses_and_test_is_reported() -> None:
    without, found = choose(outcomes())
    assert (without.epsilon, without.arm.label, found.epsilon, found.arm.label) == (None, "non-private", 1.0, "DP-SGD")
    assert without.loss == pytest.approx(0.20)
    assert without.spread == pytest.approx(0.02 / 2**0.5)
    assert found.trial.l2_clip_norm == 2.0
    assert found.losses == (0.30, 0.32)
    assert found.loss == pytest.approx(0.31)
    assert len(found.tried) == 4


def test_columns_are_not_chosen_among() -> None:
    without, one, two = choose(outcomes(), ["l2_clip_norm"])
    assert without.arm == Arm("non_private")
    assert [one.arm.label, two.arm.label] == ["C = 1", "C = 2"]
    assert [one.losses, two.losses] == [(0.25, 0.27), (0.30, 0.32)]
    assert [len(one.tried), len(two.tried)] == [2, 2]
    assert one.arm.value("l2_clip_norm") == 1.0


def slow_choice(found: list[Outcome], columns: list[str]) -> dict[tuple[Any, ...], tuple[float, set[Trial]]]:
    """Finds, by brute force, the best mean validation loss and its trials for each task, arm and budget."""
    cells: dict[tuple[Any, ...], tuple[float, set[Trial]]] = {}
    for first in found:
        cell = (first.trial.task, arm_of(first.trial, columns), first.trial.epsilon)
        same = [o for o in found if o.trial.model_copy(update={"seed": first.trial.seed}) == first.trial]
        if any(o.validation_loss is None for o in same):
            continue
        mean = sum(cast(float, o.validation_loss) for o in same) / len(same)
        if cell not in cells or mean < cells[cell][0] - 1e-12:
            cells[cell] = mean, {o.trial for o in same}
    return cells


@pytest.mark.parametrize("columns", [[], ["l2_clip_norm"], ["optimizer", "l2_clip_norm"]], ids=len)
@given(seed=st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_the_choice_is_the_one_found_slowly_in_whatever_order(columns: list[str], seed: int) -> None:
    rng = np.random.default_rng(seed)
    trials = [baseline(task=task, seed=k, learning_rate=r) for task in ("pctr", "pcvr") for k in (0, 1) for r in (1, 2)]
    grid = itertools.product(("pcvr", "pctr"), (8.0, 1.0), ("sgd", "yogi"), (1.0, 3.0), (0.1, 0.3), (0, 1))
    for task, epsilon, optimizer, clip, rate, k in grid:
        values = {"optimizer": optimizer, "l2_clip_norm": clip, "learning_rate": rate, "seed": k}
        trials.append(private(task=task, epsilon=epsilon, **values))
    found = [Outcome(trial, *rng.uniform(0.1, 0.5, 2)) for trial in trials]
    # One setting in each cell diverges with one of its seeds.
    found = [
        o._replace(validation_loss=None, test_loss=None)
        if (o.trial.seed, o.trial.learning_rate, o.trial.optimizer) == (1, 0.3, "sgd")
        else o
        for o in found
    ]
    expected = slow_choice(found, columns)
    shuffled = random.Random(seed).sample(found, len(found))
    for order in (found, shuffled):
        results = choose(order, columns)
        assert {(r.task, r.arm, r.epsilon): {o.trial for o in r.chosen} for r in results} == {
            cell: trials for cell, (_, trials) in expected.items()
        }
        assert sum(len(r.tried) for r in results) == len(found)
        keys = [(r.task, r.epsilon or 0.0) for r in results if r.arm == results[1].arm]
        assert keys == sorted(keys, key=lambda key: (("pctr", "pcvr").index(key[0]), key[1]))


def test_a_diverged_setting_cannot_win() -> None:
    half = [
        Outcome(private(epsilon=1.0, l2_clip_norm=4.0), None, None),
        Outcome(private(epsilon=1.0, l2_clip_norm=4.0, seed=1), 0.01, 0.01),
    ]
    assert choose([*outcomes(), *half])[1].trial.l2_clip_norm == 2.0
    assert choose([*half, *outcomes()])[0].trial.l2_clip_norm == 2.0


def test_where_every_setting_diverged() -> None:
    """Divergence of all settings is an error, or a result where methods are compared."""
    without = outcomes()[:2]
    diverged = [Outcome(private(epsilon=1.0, seed=seed), loss, loss) for seed, loss in ((0, None), (1, 0.3))]
    with pytest.raises(UserError, match=r"all settings diverged for pCVR · ε=1 .*: try a smaller learning rate"):
        choose([*without, *diverged])
    found = choose([*without, *diverged], ["l2_clip_norm"], may_diverge=True)[1]
    assert found.diverged
    assert (found.losses, found.spread, len(found.tried)) == ((), 0.0, 2)
    assert [o.test_loss for o in found.chosen] == [None, None]
    # Everything is compared with the baseline, so it must not diverge.
    with pytest.raises(UserError, match="all settings diverged for pCVR · non-private"):
        choose([without[0]._replace(validation_loss=None), *diverged], ["l2_clip_norm"], may_diverge=True)


def test_in_a_random_search_each_training_stands_for_itself() -> None:
    """The training with the best validation loss is reported alone; the baseline is still averaged over seeds."""
    found = outcomes()
    found[4] = found[4]._replace(validation_loss=0.27)
    without, kept = choose(found, each_alone=True)
    assert (len(without.chosen), len(kept.chosen)) == (2, 1)
    assert kept.chosen == (found[4],)
    assert (kept.spread, len(kept.tried)) == (0.0, 4)


@pytest.mark.parametrize(
    ("trial", "columns", "label"),
    [
        (private(), [], "DP-SGD"),
        (baseline(), ["l2_clip_norm"], "non-private"),
        (private(l2_clip_norm=30.0, microbatch_size=4), ["l2_clip_norm", "microbatch_size"], "C = 30 · m = 4"),
        (private(batch_size=8192, epochs=32), ["batch_size", "epochs"], "batch 8,192 · 32 epochs"),
        (private(optimizer="yogi", learning_rate=0.01), ["optimizer", "learning_rate"], "yogi · 0.01"),
        (private(), ["accountant"], "PLD"),
        (private(accountant="RDP"), ["accountant"], "RDP"),
        (private(model="dlrm"), ["model"], "dlrm"),
        (private(), ["response", "debias"], "DP-SGD"),
        (of_labels(), ["response", "debias"], "randomised response"),
        (of_labels(debias=True), ["response", "debias"], "randomised response · debiased"),
        (of_labels(task="pconvs"), ["response"], "randomised response on counts"),
        (of_labels(response="bins"), ["response"], "randomised response on bins"),
        (of_labels(), ["debias"], "LabelDP"),
        (of_labels(debias=True), ["debias"], "LabelDP · debiased"),
        (of_labels(), ["optimizer"], "LabelDP · sgd"),
    ],
)
def test_arms_have_names_for_a_person(trial: Trial, columns: list[str], label: str) -> None:
    assert arm_of(trial, columns).label == label


# Differences.


def result_of(losses: dict[int, float | None], **changes: Any) -> Result:
    found = tuple(Outcome(private(seed=seed, **changes), loss, loss) for seed, loss in losses.items())
    return Result("pcvr", Arm("dp_sgd"), 8.0, found, tuple(o.trial for o in found))


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=8))
@settings(max_examples=100, deadline=None)
def test_differences_are_judged_as_scipy_judges_pairs(pairs: list[tuple[float, float]]) -> None:
    one, other = np.array(pairs).T
    deltas = one - other
    found = difference(result_of(dict(enumerate(one))), result_of(dict(enumerate(other))))
    assert found.seeds == len(pairs)
    assert found.mean == pytest.approx(deltas.mean(), abs=1e-12)
    # If all differences are nearly equal, SciPy's result has no significant digits.
    if deltas.std() > 1e-9:
        expected = stats.ttest_rel(one, other).pvalue
        assert found.p_value == pytest.approx(expected, rel=1e-6, abs=1e-12)
        assert found.within_noise == (found.p_value is not None and found.p_value > 0.05)


def test_seeds_are_compared_with_themselves_whatever_their_order() -> None:
    """Differences within a seed cancel what the seed adds to both losses, which is larger than the effect."""
    one = result_of({0: 0.101, 1: 0.202, 2: 0.301})
    other = result_of({2: 0.300, 0: 0.100, 1: 0.200, 7: 0.9})
    found = difference(one, other)
    assert found.seeds == 3
    assert found.mean == pytest.approx(0.004 / 3)
    assert found == difference(one, result_of({0: 0.1, 1: 0.2, 2: 0.3}))
    assert not paired([0.001, 0.0011, 0.0012]).within_noise
    assert stats.ttest_ind([0.101, 0.202, 0.301], [0.1, 0.2, 0.3]).pvalue > 0.9


def test_from_one_seed_noise_cannot_be_told() -> None:
    found = paired([123.0])
    assert (found.mean, found.seeds, found.p_value, found.within_noise) == (123.0, 1, None, True)


def test_equal_differences_are_no_noise_unless_they_are_none() -> None:
    assert (paired([0.1, 0.1]).p_value, paired([0.1, 0.1]).within_noise) == (0.0, False)
    assert (paired([0.0, 0.0]).p_value, paired([0.0, 0.0]).within_noise) == (1.0, True)


def test_a_diverged_seed_is_no_pair() -> None:
    found = difference(result_of({0: 0.3, 1: None}), result_of({0: 0.1, 1: 0.2}))
    assert (found.seeds, found.mean) == (1, pytest.approx(0.2))
    with pytest.raises(UserError, match="have no seed in common"):
        difference(result_of({0: 0.3}), result_of({1: 0.1}))
