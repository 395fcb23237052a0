"""Noisy labels: drawn once, kept as often as ε says, unbiased if debiased, never over the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from dp_core.labels.record import composed_epsilon, response_defects
from tasks.runtime.errors import UserError
from tasks.training.noisy_labels import NoisyLabels, draw_labels
from tasks.training.trial import Trial
from tests.support.trials import label_trial, make_trial

ENTROPY = (5, 0)
KINDS: dict[str, dict[str, Any]] = {
    "binary": {"response": "binary"},
    "k_ary": {"response": "k_ary", "task": "pconvs", "largest_count": 4},
    "bins": {"response": "bins", "task": "pconvs", "largest_count": 4},
}


class _Shape:
    """A stand-in for prepared data, with the two attributes that a trial reads."""

    fingerprint = "none"
    splits = {"train": {"rows": 60_000}}  # noqa: RUF012


def trial_of(kind: str, **changes: Any) -> Trial:
    return label_trial(_Shape, **{**KINDS[kind], **changes})  # type: ignore[arg-type]


def true_labels(kind: str, number: int = 60_000) -> np.ndarray:
    rng = np.random.default_rng(3)
    if kind == "binary":
        return (rng.random(number) < 0.2).astype(np.float32)
    return np.minimum(rng.poisson(0.7, number), 4).astype(np.float32)


def drawn(kind: str, *, entropy: tuple[int, ...] = ENTROPY, **changes: Any) -> NoisyLabels:
    return draw_labels(trial_of(kind, **changes), true_labels(kind), entropy)


@pytest.mark.parametrize("kind", KINDS)
def test_one_draw_serves_every_way_to_train(kind: str) -> None:
    """Trials of one seed and budget have the same responses and draw id, however they train."""
    first = drawn(kind)
    for change in ({"learning_rate": 7.0}, {"epochs": 9}, {"batch_size": 3}, {"optimizer": "adam"}):
        again = drawn(kind, **change)
        np.testing.assert_array_equal(again.labels, first.labels)
        assert again.record == first.record
    debiased = drawn(kind, debias=True)
    assert debiased.record.draw == first.record.draw
    assert composed_epsilon([first.record, debiased.record, first.record]) == first.record.epsilon

    other = drawn(kind, entropy=(6, 0))
    assert other.record.draw != first.record.draw
    assert not np.array_equal(other.labels, first.labels)
    assert composed_epsilon([first.record, other.record]) == first.record.epsilon + other.record.epsilon


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_kept_as_often_as_the_budget_says(kind: str, epsilon: float) -> None:
    """Counts kept labels independently. The tolerance is five standard deviations: a correct draw exceeds it for one
    seed in two million, and the seed is fixed."""
    noisy, labels = drawn(kind, epsilon=epsilon), true_labels(kind)
    starts = np.asarray(noisy.record.starts)
    true = np.array([np.flatnonzero(starts <= label).max() for label in labels])
    responses = np.array([int(np.flatnonzero(noisy.stand_for == label).item()) for label in noisy.labels])
    spent = 0.1 * epsilon if kind == "bins" else 0.0
    stated = math.exp(epsilon - spent) / (math.exp(epsilon - spent) + len(starts) - 1)
    kept = np.mean(true == responses)
    assert abs(kept - stated) < 5 * math.sqrt(stated * (1 - stated) / len(labels))
    assert noisy.record.keep_probability == pytest.approx(stated, rel=1e-12)

    expected = [[int(np.sum((true == i) & (responses == j))) for j in range(len(starts))] for i in range(len(starts))]
    found = noisy.transitions(labels, noisy.labels)
    assert found == expected
    assert response_defects(noisy.record, np.asarray(found)) == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_debiased_labels_have_the_true_mean_and_plain_ones_do_not(kind: str, epsilon: float) -> None:
    """The tolerance is five standard errors of the responses. The means of chosen bins come from a noisy histogram of
    60,000 labels, which adds less than 0.002."""
    plain, debiased = (drawn(kind, epsilon=epsilon, debias=debias) for debias in (False, True))
    labels = true_labels(kind)
    error = debiased.labels.std(dtype=np.float64) / math.sqrt(len(labels))
    assert abs(debiased.labels.mean(dtype=np.float64) - labels.mean()) < 5 * error + (0.002 if kind == "bins" else 0)
    if kind != "bins":  # plain values of chosen bins are unbiased too
        assert abs(plain.labels.mean() - labels.mean()) > 0.1 * labels.mean()
    assert plain.labels.dtype == debiased.labels.dtype == np.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0, 10.0, 50.0, 500.0])
def test_the_record_is_within_the_budget_and_nearly_all_of_it(kind: str, epsilon: float) -> None:
    record = drawn(kind, epsilon=epsilon).record
    assert record.epsilon <= epsilon * (1 + 1e-12)
    p = record.keep_probability
    odds = p * (len(record.values) - 1) / (1 - p)
    assert record.response_epsilon == pytest.approx(math.log(odds), rel=1e-9)
    if epsilon < 30:  # above that, chances are rounded to 53 bits
        assert record.epsilon == pytest.approx(epsilon, rel=1e-6)
    assert record.histogram_epsilon == (pytest.approx(0.1 * epsilon) if kind == "bins" else 0)
    assert (record.kind, record.examples, record.debiased) == (kind, 60_000, False)


def test_what_a_response_can_be() -> None:
    assert drawn("binary").record.values == (0, 1)
    assert drawn("k_ary").record.values == (0, 1, 2, 3, 4)
    bins = drawn("bins", epsilon=3.0).record
    assert bins.starts[0] == 0
    assert 2 <= len(bins.values) <= 5
    # Counts above the largest one are taken for it.
    counts = np.array([0.0, 4.0, 9.0, 1000.0], np.float32)
    kept = draw_labels(trial_of("k_ary", epsilon=500.0), counts, ENTROPY)
    assert kept.labels.tolist() == [0, 4, 4, 4]
    assert np.asarray(kept.transitions(counts, kept.labels)).diagonal().tolist() == [1, 0, 0, 0, 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_without_end_changes_no_label(kind: str) -> None:
    for debias in (False, True):
        noisy = drawn(kind, epsilon=500.0, debias=debias)
        assert len(noisy.record.values) == (2 if kind == "binary" else 5), "each count is worth a bin of its own"
        np.testing.assert_allclose(noisy.labels, true_labels(kind), atol=1e-6)


def test_draws_that_kept_every_label_are_told_apart_by_their_chances() -> None:
    """At ε = 30 and ε = 35 no label changes, so the responses are equal; their ε is not."""
    draws = [drawn("binary", epsilon=epsilon) for epsilon in (30.0, 35.0)]
    np.testing.assert_array_equal(draws[0].labels, draws[1].labels)
    assert composed_epsilon(noisy.record for noisy in draws) == pytest.approx(65, rel=1e-2)


def test_what_was_trained_on_is_what_is_counted() -> None:
    """True labels that were trained on by mistake are not counted as responses."""
    labels = true_labels("binary")
    for debias in (False, True):
        noisy = drawn("binary", debias=debias)
        assert response_defects(noisy.record, np.asarray(noisy.transitions(labels, noisy.labels))) == []
        assert response_defects(noisy.record, np.asarray(noisy.transitions(labels, labels))) != []


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0, 0.5])
@pytest.mark.parametrize("kind", KINDS)
def test_labels_that_count_nothing_are_refused(kind: str, bad: float) -> None:
    labels = true_labels(kind, 100)
    labels[17] = bad
    with pytest.raises(UserError, match="labels must be non-negative integers"):
        draw_labels(trial_of(kind), labels, ENTROPY)


def test_budgets_too_small_to_tell_anything_are_refused() -> None:
    for kind in KINDS:
        with pytest.raises(UserError, match=r"so small|at least"):
            drawn(kind, epsilon=1e-17)


def test_other_trials_have_no_responses() -> None:
    with pytest.raises(AssertionError):
        draw_labels(make_trial(_Shape), true_labels("binary"), ENTROPY)  # type: ignore[arg-type]
