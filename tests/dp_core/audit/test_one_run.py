"""The lower bound from guesses holds at the stated confidence, and is large if the guesses are good."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from dp_core.audit.one_run import WAYS_TO_GUESS, audit_scores, probability_bound

CONFIDENCE = 0.95


def coins(rng: np.random.Generator, canaries: int) -> np.ndarray:
    return rng.random(canaries) < 0.5


def randomised_response(rng: np.random.Generator, included: np.ndarray, epsilon: float) -> np.ndarray:
    """Returns scores of a mechanism with exactly this ε: coins are reported, correctly with probability e^ε/(1 + e^ε).

    Ties are broken by noise that is independent of the coins."""
    right = rng.random(len(included)) < 1 / (1 + math.exp(-epsilon))
    return (included == right) + 0.5 * rng.random(len(included))


@pytest.mark.parametrize(("guesses", "epsilon"), [(1, 0.0), (6, 0.5), (10, 2.0)])
def test_without_delta_the_probability_is_that_of_coins(guesses: int, epsilon: float) -> None:
    """By enumerating every outcome of the guesses."""
    right = math.exp(epsilon) / (1 + math.exp(epsilon))
    for correct in range(guesses + 1):
        listed = sum(
            math.prod(right if hit else 1 - right for hit in outcome)
            for outcome in itertools.product((False, True), repeat=guesses)
            if sum(outcome) >= correct
        )
        found = probability_bound(100, guesses, correct, epsilon=epsilon, delta=0.0)
        assert found == pytest.approx(listed, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize("epsilon", [0.0, 1.0, 3.0])
def test_a_delta_that_gives_coins_away_stays_within_the_probability(epsilon: float, delta: float) -> None:
    """Each coin is revealed with probability δ and reported by randomised response otherwise, which is (ε, δ)-DP.

    The number of correct guesses is binomial, so its tail is known exactly."""
    right = delta + (1 - delta) / (1 + math.exp(-epsilon))
    for canaries, guesses in ((20, 20), (100, 10), (1000, 300)):
        for correct in range(guesses + 1):
            truly = stats.binom.sf(correct - 1, guesses, right)
            bound = probability_bound(canaries, guesses, correct, epsilon=epsilon, delta=delta)
            assert truly <= bound * (1 + 1e-9)


def slow_probability_bound(canaries: int, guesses: int, correct: int, epsilon: float, delta: float) -> float:
    """Theorem 5.2 of Steinke, Nasr and Jagielski (2023), written as in the paper."""

    def f(at_least: int) -> float:
        right = 1 / (1 + math.exp(-epsilon))
        return sum(
            math.comb(guesses, j) * right**j * (1 - right) ** (guesses - j)
            for j in range(max(at_least, 0), guesses + 1)
        )

    rate = max((f(correct - i) - f(correct)) / i for i in range(1, canaries + 1))
    return min(1.0, f(correct) + 2 * canaries * delta * rate)


@pytest.mark.parametrize(("canaries", "guesses"), [(12, 12), (30, 8)])
@pytest.mark.parametrize("delta", [1e-5, 1e-2])
def test_the_probability_is_the_theorems(canaries: int, guesses: int, delta: float) -> None:
    for correct in range(guesses + 1):
        for epsilon in (0.0, 0.7, 4.0):
            found = probability_bound(canaries, guesses, correct, epsilon=epsilon, delta=delta)
            expected = slow_probability_bound(canaries, guesses, correct, epsilon, delta)
            assert found == pytest.approx(expected, rel=1e-9)


def test_the_probability_rises_with_epsilon_and_delta_and_falls_with_what_was_right() -> None:
    epsilons, deltas = np.linspace(0, 5, 11), (0.0, 1e-8, 1e-5, 1e-3, 1e-2)
    for canaries, guesses in ((20, 20), (100, 10), (1000, 500)):
        table = np.array(
            [
                [
                    [
                        probability_bound(canaries, guesses, correct, epsilon=epsilon, delta=delta)
                        for correct in range(0, guesses + 1, max(1, guesses // 10))
                    ]
                    for delta in deltas
                ]
                for epsilon in epsilons
            ]
        )
        assert np.all((table >= 0) & (table <= 1))
        assert np.all(np.diff(table, axis=0) >= -1e-12)
        assert np.all(np.diff(table, axis=1) >= 0)
        assert np.all(np.diff(table, axis=2) <= 1e-12)
        assert np.all(table[:, :, 0] == 1)


@pytest.mark.parametrize("canaries", [100, 1000])
@pytest.mark.parametrize("attacks", [1, 3])
def test_guesses_that_are_all_right_give_the_bound_by_hand(canaries: int, attacks: int) -> None:
    """All n guesses are correct with probability at most pⁿ, p = e^ε/(1 + e^ε), so the most guesses show the most."""
    included = np.arange(canaries) % 2 == 0
    found = audit_scores([included.astype(float)] * attacks, included, delta=0.0, confidence=CONFIDENCE)
    allowed = (1 - CONFIDENCE) / (len(WAYS_TO_GUESS) * attacks)
    right = allowed ** (1 / canaries)
    assert (found.canaries, found.guesses, found.correct) == (canaries, canaries, canaries)
    assert found.confidence == CONFIDENCE
    assert found.epsilon_lower == pytest.approx(math.log(right / (1 - right)), abs=1e-5)


def test_a_delta_lowers_the_bound() -> None:
    included = np.arange(200) % 2 == 0
    lower = [
        audit_scores([included.astype(float)], included, delta=delta, confidence=CONFIDENCE).epsilon_lower
        for delta in (0.0, 1e-6, 1e-5, 1e-4, 1e-2)
    ]
    assert lower == sorted(lower, reverse=True)
    assert lower[0] > lower[2] > lower[4] == 0


def test_more_confidence_lowers_the_bound() -> None:
    included = np.arange(200) % 2 == 0
    lower = [
        audit_scores([included.astype(float)], included, delta=0.0, confidence=confidence).epsilon_lower
        for confidence in (0.9, 0.99, 0.999999)
    ]
    assert lower[0] > lower[1] > lower[2] > 0


def test_only_the_order_of_the_scores_matters() -> None:
    rng = np.random.default_rng(0)
    included = coins(rng, 500)
    scores = randomised_response(rng, included, 2.0)
    found = audit_scores([scores], included, delta=1e-6, confidence=CONFIDENCE)
    assert found.epsilon_lower > 0
    assert found == audit_scores([np.exp(scores) - 7], included, delta=1e-6, confidence=CONFIDENCE)
    shuffled = rng.permutation(500)
    assert found == audit_scores([scores[shuffled]], included[shuffled], delta=1e-6, confidence=CONFIDENCE)
    # Reversed scores are wrong, and wrong guesses show nothing.
    assert audit_scores([-scores], included, delta=1e-6, confidence=CONFIDENCE).epsilon_lower == 0


def test_a_useless_attack_beside_a_good_one_costs_little() -> None:
    rng = np.random.default_rng(0)
    included = coins(rng, 1000)
    good, useless = randomised_response(rng, included, 2.0), rng.random(1000)
    alone = audit_scores([good], included, delta=0.0, confidence=CONFIDENCE).epsilon_lower
    both = audit_scores([useless, good], included, delta=0.0, confidence=CONFIDENCE).epsilon_lower
    assert 0.9 * alone < both < alone


@pytest.mark.parametrize("canaries", [20, 200])
def test_scores_that_know_nothing_show_nothing(canaries: int) -> None:
    """Two attacks at once, 1,000 times: at most 5 % false alarms are allowed, shared by the ways to guess.

    At most 50 are expected, and more than 75 have a probability of 2·10⁻⁴. The seeds are fixed."""
    alarms = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        attacks = rng.random((2, canaries))
        alarms += audit_scores(attacks, coins(rng, canaries), delta=0.0, confidence=CONFIDENCE).epsilon_lower > 0
    assert alarms <= 75


@pytest.mark.parametrize(("canaries", "epsilon"), [(50, 1.0), (300, 0.3), (100, 3.0)])
def test_the_bound_is_above_the_truth_no_more_often_than_it_says(canaries: int, epsilon: float) -> None:
    """600 runs of a mechanism with known ε: at most 5 % of the bounds, 30 on average, may exceed it. More than 49 have
    a probability of 4·10⁻⁴. The seeds are fixed."""
    above = 0
    for seed in range(600):
        rng = np.random.default_rng(seed)
        included = coins(rng, canaries)
        scores = randomised_response(rng, included, epsilon)
        above += audit_scores([scores], included, delta=0.0, confidence=CONFIDENCE).epsilon_lower > epsilon
    assert above <= 49


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 3.0])
def test_many_canaries_find_most_of_epsilon(epsilon: float) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        included = coins(rng, 5000)
        scores = randomised_response(rng, included, epsilon)
        found = audit_scores([scores], included, delta=1e-8, confidence=CONFIDENCE)
        assert epsilon / 2 < found.epsilon_lower
        assert found.epsilon_lower <= 1.2 * epsilon


def test_few_who_give_themselves_away_are_found() -> None:
    """With few epochs, most included canaries were never sampled, so only the highest scores are informative."""
    rng = np.random.default_rng(0)
    included = coins(rng, 2000)
    seen = included & (rng.random(2000) < 0.15)
    scores = rng.random(2000) + 10 * seen
    found = audit_scores([scores], included, delta=0.0, confidence=CONFIDENCE)
    assert found.epsilon_lower > 2
    assert found.guesses <= 0.1 * 2000
    assert found.correct == found.guesses


@pytest.mark.parametrize("canaries", [0, 1, 2, 3])
def test_too_few_canaries_show_nothing(canaries: int) -> None:
    included = np.ones(canaries, bool)
    found = audit_scores([np.ones(canaries)], included, delta=1e-6, confidence=CONFIDENCE)
    assert (found.epsilon_lower, found.canaries) == (0.0, canaries)
    assert found.guesses <= canaries


def test_guesses_that_are_all_right_have_a_finite_bound_however_many() -> None:
    included = np.arange(100_000) % 2 == 0
    found = audit_scores([included.astype(float)], included, delta=0.0, confidence=CONFIDENCE)
    assert 9 < found.epsilon_lower < math.inf
