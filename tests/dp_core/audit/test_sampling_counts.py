"""Counts of batches agree with counting everything, fit into a bounded memory, and survive an interruption."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from dp_core.audit import sampling_counts
from dp_core.audit.sampling_counts import SamplingCounts, block_edges, class_sizes
from dp_core.sampling import PoissonSampler
from tests.support.broken_samplers import counted


def watched_examples(examples: int) -> np.ndarray:
    """Returns the watched examples: those that a batch of their own shows."""
    counts = SamplingCounts(examples)
    return np.array([example for example in range(examples) if len(counts._watched_in(np.array([example])))])


@pytest.mark.parametrize("examples", [1, 3, 31, 33, 4096, 4097, 4100, 12_289])
def test_counts_against_counting_everything(examples: int) -> None:
    rng = np.random.default_rng(examples)
    batches = [rng.choice(examples, rng.binomial(examples, 0.3), replace=False) for _ in range(7)]
    counts = counted(batches.__getitem__, 7, examples)
    table = np.zeros((7, examples), bool)
    for step, batch in enumerate(batches):
        table[step, batch] = True
    assert counts.sizes == table.sum(axis=1).tolist()
    edges = block_edges(examples)
    of_blocks = [table[:, first:last].sum() for first, last in itertools.pairwise(edges)]
    np.testing.assert_array_equal(counts.blocks, of_blocks)
    number = len(class_sizes(examples))
    np.testing.assert_array_equal(counts.classes, [table[:, k :: sampling_counts.CLASSES].sum() for k in range(number)])
    np.testing.assert_array_equal(
        class_sizes(examples), [len(range(k, examples, sampling_counts.CLASSES)) for k in range(number)]
    )
    together = table[:, 1:] & table[:, :-1]
    assert counts.neighbours.tolist() == [together[:, ::2].sum(), together[:, 1::2].sum()]
    assert (counts.repeated, counts.outside, counts.misplaced) == (0, 0, 0)

    watched = watched_examples(examples)
    assert {0, examples - 1} <= set(watched.tolist())
    assert min(examples, 4096) <= len(watched) == len(counts.watched_numbers()) <= 2 * 4096
    steps, of = counts.participations()
    found = np.zeros((7, len(watched)), bool)
    found[steps, of] = True
    np.testing.assert_array_equal(found, table[:, watched])


def test_what_must_not_happen_is_counted() -> None:
    counts = SamplingCounts(10)
    counts.add(0, np.array([3, 1, 3, 3, -1, 10, 11]))
    counts.add(0, np.array([2]))
    assert (counts.repeated, counts.outside, counts.misplaced) == (2, 3, 1)
    assert (counts.sizes, int(counts.blocks.sum())) == ([7, 1], 5)


def test_fingerprints_are_those_of_sets() -> None:
    counts = SamplingCounts(1000)
    batch = np.array([5, 900, 17, 300])
    for step, other in enumerate([batch, batch[::-1], (batch + 150) % 1000, np.array([5, 900, 17, 301])]):
        counts.add(step, other)
    first, reordered, shifted, changed = counts.fingerprints
    assert first == reordered == shifted != changed


@pytest.mark.parametrize("examples", [50, 10_000])
def test_an_interrupted_run_has_the_counts_of_one_that_was_not(examples: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the middle of a run in which it watches fewer and fewer examples."""
    monkeypatch.setattr(sampling_counts, "MOST_PARTICIPATIONS", 3000)
    monkeypatch.setattr(sampling_counts, "MOST_BLOCK_ROWS", 16)
    sampler = PoissonSampler(examples, examples // 5, examples, (1,))
    whole = counted(lambda step: sampler.batch(step).indices, 100, examples)
    resumed = SamplingCounts(examples)
    for step in range(100):
        resumed.add(step, sampler.batch(step).indices)
        if step % 7 == 0:
            resumed = SamplingCounts.from_json(json.loads(json.dumps(resumed.to_json())))
    assert resumed.to_json() == whole.to_json()
    assert (whole.run_stride > 1) == (examples > 50)
    assert (whole.block_stride, len(whole.block_rows)) == (8, 13)
    assert len(whole.participations()[0]) <= 3000
    # Fewer are watched, but those from the start to the end.
    steps, of = whole.participations()
    np.testing.assert_allclose(np.bincount(of).mean(), 20, rtol=0.2)
    assert len(np.unique(steps)) == 100


def test_no_steps() -> None:
    stored = SamplingCounts(100).to_json()
    assert SamplingCounts.from_json(stored).to_json() == stored
    assert SamplingCounts.from_json(stored).steps == 0
