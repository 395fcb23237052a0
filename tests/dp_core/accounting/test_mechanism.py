"""ε of mechanism records, alone and composed with others on the same examples."""

from __future__ import annotations

import functools
import json
import math

import dp_accounting
import pytest
from dp_accounting import NeighboringRelation, dp_event

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import poisson_event
from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease, compose, proven_sensitivity
from dp_core.accounting.noise_tails import NoiseTails, tail_charge
from tests.support.records import record

DELTA = 1e-5


@functools.cache
def epsilon(*records: MechanismRecord, delta: float = DELTA, group_size: int = 1) -> float:
    return compose(records, group_size=group_size).epsilon_bound(delta).epsilon


@pytest.mark.parametrize("vocabulary", [None, VocabularyRelease(noise_multiplier=5.0, delta=1e-6, draw="a")])
def test_a_record_survives_json(vocabulary: VocabularyRelease | None) -> None:
    """A round-trip through JSON text, in which the vocabulary's release becomes a list."""
    before = record(
        vocabulary=vocabulary, clipping="adaptive", count_noise_multiplier=4.0, microbatch_size=4, sensitivity=2.0
    )
    after = MechanismRecord.from_json(json.loads(json.dumps(before.to_json())))
    assert after == before
    assert after.vocabulary is None or isinstance(after.vocabulary, VocabularyRelease)
    assert MechanismRecord.from_json(before.to_json()) == before


def test_epsilon_of_a_record_follows_what_ran() -> None:
    before = epsilon(record())
    assert epsilon(record(steps=1000)) > 1.2 * before
    assert epsilon(record(noise_multiplier=0.5)) > 2 * before
    assert epsilon(record(expected_batch_size=2000, max_batch_size=2600)) > 1.5 * before
    # The clip norm scales signal and noise equally.
    assert epsilon(record(l2_clip_norm=20.0)) == before
    assert record().epsilon_bound(DELTA).epsilon == before


def test_epsilon_of_a_record_is_that_of_its_poisson_samples() -> None:
    ran = record()
    event = poisson_event(sampling_probability=0.01, noise_multiplier=1.0, steps=500)
    expected = epsilon_bound(event, DELTA - ran.truncation_delta()).epsilon
    assert ran.epsilon_bound(DELTA).epsilon == pytest.approx(expected, rel=1e-9)


def test_without_noise_epsilon_is_infinite_and_nothing_is_known_from_below() -> None:
    silent = record(noise_multiplier=0.0)
    assert silent.epsilon_bound(DELTA).epsilon == math.inf
    assert silent.epsilon_lower(DELTA) is None
    # Neither does an adaptive clip norm with a count that was released without noise.
    assert epsilon(record(clipping="adaptive", count_noise_multiplier=None)) == math.inf
    assert epsilon(record(clipping="adaptive", count_noise_multiplier=0.0)) == math.inf


def test_truncation_is_charged_to_delta() -> None:
    tight = record(max_batch_size=1150)
    assert tight.truncation_delta() > DELTA
    with pytest.raises(ValueError, match="max_batch_size is too small"):
        tight.epsilon_bound(DELTA)
    assert tight.epsilon_bound(1e-2).epsilon > record().epsilon_bound(1e-2).epsilon


def test_a_sampler_without_accounting_is_refused() -> None:
    unknown = record(sampler="with_replacement")
    for ask in (
        unknown.training_event,
        unknown.truncation_delta,
        lambda: unknown.epsilon_bound(DELTA),
        lambda: unknown.epsilon_lower(DELTA),
    ):
        with pytest.raises(ValueError, match="no accounting for sampler 'with_replacement'; known: poisson, shuffle"):
            ask()


def test_a_group_of_examples_moves_a_sum_by_two_clip_norms() -> None:
    """A group's clipped mean can flip its sign, so noise scaled to one clip norm counts half."""
    assert (proven_sensitivity(1), proven_sensitivity(2), proven_sensitivity(64)) == (1.0, 2.0, 2.0)
    assert record(microbatch_size=4, sensitivity=1.0).effective_noise_multiplier == 0.5
    assert record(microbatch_size=4, sensitivity=2.0).effective_noise_multiplier == 1.0
    assert epsilon(record(microbatch_size=4, sensitivity=1.0)) == epsilon(record(noise_multiplier=0.5))
    assert epsilon(record(microbatch_size=4, sensitivity=2.0)) == epsilon(record())


def test_a_claim_is_what_the_noise_was_scaled_to() -> None:
    """The paper scales the noise of microbatches to one clip norm and states ε as if that were the sensitivity."""
    assert record().as_claimed() is None
    assert record(microbatch_size=4, sensitivity=2.0).as_claimed() is None
    papers = record(microbatch_size=4, sensitivity=1.0)
    claimed = papers.as_claimed()
    assert claimed is not None
    assert epsilon(claimed) == epsilon(record()) < epsilon(papers)


def test_an_adaptive_clip_norm_is_one_release_more_at_each_step() -> None:
    """A gradient at z₁ and a count at z₂ on one sample are one release at 1/z² = 1/z₁² + 1/z₂²."""
    adaptive = record(clipping="adaptive", noise_multiplier=1.25, count_noise_multiplier=5 / 3)
    assert adaptive.effective_noise_multiplier == pytest.approx(1.0)
    assert epsilon(adaptive) == pytest.approx(epsilon(record()), rel=1e-6)
    # In groups, only the gradient moves twice as far.
    grouped = record(clipping="adaptive", noise_multiplier=2.5, count_noise_multiplier=5 / 3, microbatch_size=4)
    assert grouped.effective_noise_multiplier == pytest.approx(1.0)


def test_two_runs_cost_what_one_of_twice_the_steps_does() -> None:
    together = compose([record(), record()])
    one = compose([record(steps=1000)])
    assert together.spent_delta == pytest.approx(one.spent_delta)
    assert together.epsilon_bound(DELTA).epsilon == pytest.approx(one.epsilon_bound(DELTA).epsilon, rel=1e-6)


def test_runs_cost_more_together_than_alone_and_less_than_their_sum() -> None:
    """ε adds up if δ does: each part is asked at half of δ here."""
    first, second = record(), record(noise_multiplier=2.0, steps=800)
    both = epsilon(first, second)
    assert max(epsilon(first), epsilon(second)) < both
    assert both <= epsilon(first, delta=DELTA / 2) + epsilon(second, delta=DELTA / 2)


def test_runs_compose_in_any_order_and_from_any_iterable() -> None:
    runs = [record(), record(steps=100, noise_multiplier=2.0), record(steps=200, noise_multiplier=3.0)]
    in_order = epsilon(*runs)
    assert compose(iter(runs)).epsilon_bound(DELTA).epsilon == in_order
    assert epsilon(*reversed(runs)) == pytest.approx(in_order, rel=1e-6)


def test_nothing_that_ran_costs_nothing() -> None:
    assert epsilon() == 0


def test_a_vocabulary_is_one_more_release_with_a_delta_of_its_own() -> None:
    vocabulary = VocabularyRelease(noise_multiplier=5.0, delta=2e-6, draw="a")
    ran = record(vocabulary=vocabulary)
    event = dp_accounting.ComposedDpEvent([ran.training_event(), dp_accounting.GaussianDpEvent(5.0)])
    expected = epsilon_bound(event, DELTA - ran.truncation_delta() - 2e-6).epsilon
    assert epsilon(ran) == pytest.approx(expected, rel=1e-9)
    assert epsilon(ran) > epsilon(record())
    # The same release with a smaller δ of its own leaves more for the rest.
    assert epsilon(record(vocabulary=vocabulary._replace(delta=1e-6))) < epsilon(ran)


def test_a_shared_vocabulary_counts_once_and_two_count_twice() -> None:
    # A vocabulary drawn again from the same logs has the same numbers but is another release.
    one, other = (VocabularyRelease(5.0, 1e-6, draw) for draw in ("first", "second"))
    shared = compose([record(vocabulary=one), record(vocabulary=one)])
    two = compose([record(vocabulary=one), record(vocabulary=other)])
    some = compose([record(vocabulary=one), record()])
    cutting = 2 * record().truncation_delta()
    assert shared.spent_delta == pytest.approx(1e-6 + cutting)
    assert two.spent_delta == pytest.approx(2e-6 + cutting)
    assert shared == compose([record(vocabulary=one), record(vocabulary=one)])
    assert shared.epsilon_bound(DELTA).epsilon < two.epsilon_bound(DELTA).epsilon
    assert shared.epsilon_bound(DELTA).epsilon == some.epsilon_bound(DELTA).epsilon
    expected = epsilon_bound(
        dp_accounting.ComposedDpEvent([record(steps=1000).training_event(), dp_accounting.GaussianDpEvent(5.0)]),
        DELTA - shared.spent_delta,
    )
    assert shared.epsilon_bound(DELTA).epsilon == pytest.approx(expected.epsilon, rel=1e-6)


def test_spending_all_of_delta_is_an_error() -> None:
    for spent in (DELTA, 2 * DELTA):
        with pytest.raises(ValueError, match="the vocabulary's share of δ is too large"):
            epsilon(record(vocabulary=VocabularyRelease(5.0, spent, "a")))
    # Each fits into δ alone, but not both together.
    halves = [record(vocabulary=VocabularyRelease(sigma, 0.5 * DELTA, "a")) for sigma in (5.0, 6.0)]
    assert all(epsilon(half) < math.inf for half in halves)
    with pytest.raises(ValueError, match="the vocabulary's share of δ is too large"):
        epsilon(*halves)


def test_groups_of_examples_have_no_guarantee_with_a_private_vocabulary() -> None:
    private = record(vocabulary=VocabularyRelease(5.0, 1e-6, "a"))
    with pytest.raises(ValueError, match="for single examples, not for groups"):
        private.epsilon_bound(DELTA, group_size=2)
    with pytest.raises(ValueError, match="for single examples, not for groups"):
        compose([record(), private], group_size=2)


def test_a_group_of_examples_costs_more() -> None:
    """A group also needs more slots in a batch."""
    ran = record(noise_multiplier=4.0)
    values = [epsilon(ran, group_size=group_size) for group_size in (1, 2, 5)]
    assert values[0] < values[1] < values[2]
    assert values[0] == epsilon(ran)
    assert ran.truncation_delta(group_size=50) > ran.truncation_delta()
    event = poisson_event(sampling_probability=0.01, noise_multiplier=4.0, steps=500, group_size=5)
    expected = epsilon_bound(event, DELTA - ran.truncation_delta(group_size=5)).epsilon
    assert values[2] == pytest.approx(expected, rel=1e-9)


def test_runs_with_different_samplers_share_the_neighbours_of_all() -> None:
    """N is public and the same for both neighbours: an example is replaced by an empty one."""
    poisson = record()
    shuffled = record(sampler="shuffle", max_batch_size=1000, noise_multiplier=3.0)
    bins = record(sampler="balls_in_bins", noise_multiplier=2.0)
    assert compose([poisson, bins]).neighboring_relation == NeighboringRelation.REPLACE_SPECIAL
    assert compose([shuffled, shuffled]).neighboring_relation == NeighboringRelation.REPLACE_SPECIAL
    mixed = compose([poisson, shuffled, bins])
    assert mixed.neighboring_relation == NeighboringRelation.REPLACE_SPECIAL
    found = mixed.epsilon_bound(DELTA).epsilon
    assert max(map(epsilon, (poisson, shuffled, bins))) < found
    assert found <= sum(epsilon(ran, delta=DELTA / 3) for ran in (poisson, shuffled, bins))


def test_shuffled_batches_cost_a_plain_release_an_epoch() -> None:
    """500 steps of 1,000 out of 100,000 are five epochs: five Gaussian releases, or one at σ/√5."""
    ran = record(sampler="shuffle", max_batch_size=1000)
    plain = epsilon_bound(dp_accounting.GaussianDpEvent(1 / math.sqrt(5)), DELTA).epsilon
    assert ran.truncation_delta() == ran.tail_charge().delta < 1e-9
    assert epsilon(ran) == pytest.approx(plain, rel=1e-6)
    assert ran.epsilon_lower(DELTA) <= plain


@pytest.mark.parametrize(
    "ran",
    [
        record(),
        record(noise_multiplier=4.0),
        record(steps=20_000, noise_multiplier=2.0, max_batch_size=1400),
        record(max_batch_size=1180),
    ],
)
def test_what_poisson_samples_cost_is_known_within_two_percent(ran: MechanismRecord) -> None:
    lower, upper = ran.epsilon_lower(1e-4), ran.epsilon_bound(1e-4).epsilon
    assert lower is not None
    assert lower <= upper
    # If truncation uses up much of δ, the two bounds are for different δ.
    if ran.truncation_delta() < 1e-3 * 1e-4:
        assert lower >= 0.98 * upper


def test_the_lower_bound_of_groups_does_not_count_on_company() -> None:
    """An example that is alone in its group moves the sum by one clip norm, not by two.

    In groups of two on average, that happens one time in seven. The rest of the group is drawn independently at each
    step and does not depend on the example, so a step is a mixture of Gaussians."""
    ran = record(microbatch_size=2, sensitivity=1.0, noise_multiplier=2.0)
    q, groups = 0.01, 500
    alone = (1 - q / groups) ** (ran.examples - 1)
    step = dp_event.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0, 2.0), (1 - q, q * alone, q * (1 - alone)))
    truly = epsilon_bound(dp_accounting.SelfComposedDpEvent(step, ran.steps), DELTA).epsilon
    assert truly <= epsilon(ran)
    lower = ran.epsilon_lower(DELTA)
    assert lower is None or lower <= truly


def test_the_count_of_an_adaptive_clip_norm_is_one_more_noisy_coordinate() -> None:
    ran = record(clipping="adaptive", count_noise_multiplier=4.0, coordinates=3, noise_summands=1, noise_support=7.0)
    tails = NoiseTails(coordinates=4, support=7.0, summands=1)
    expected = tail_charge(
        ran.stated_sampler, steps=ran.steps, noise_multiplier=ran.effective_noise_multiplier, tails=tails
    )
    assert ran.tail_charge() == expected


def test_a_lost_share_is_taken_off_what_is_left_of_delta() -> None:
    whole = compose([record()])
    half = whole._replace(lost_share=0.5, spent_delta=0.0)
    assert half.epsilon_bound(2 * DELTA).epsilon == whole._replace(spent_delta=0.0).epsilon_bound(DELTA).epsilon
