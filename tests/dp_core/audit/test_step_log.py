"""The step log: checksums agree with the device's, and tell every other batch apart."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from dp_core.audit.step_log import StepLog, expected_rows, row_hashes
from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch
from dp_core.sampling import SampledBatch
from dp_core.training.physical_batches import PhysicalShape, lay_out
from dp_core.training.witness import also_seen, nothing_seen

RNG = np.random.default_rng(0)
INTEGERS = np.where(RNG.random((200, 3)) < 0.2, np.nan, RNG.normal(size=(200, 3))).astype(np.float32)
CATEGORICALS = RNG.integers(-1, 2**20, (200, 4)).astype(np.int32)
LABELS = RNG.integers(0, 3, 200).astype(np.float32)
HASHES = row_hashes(INTEGERS, CATEGORICALS, LABELS)
SHAPE = PhysicalShape(3, 40)


def sampled(size: int, microbatch_size: int = 1, seed: int = 1) -> SampledBatch:
    rng = np.random.default_rng(seed)
    indices = rng.choice(200, size, replace=False)
    groups = None if microbatch_size == 1 else np.sort(rng.integers(max(1, size // microbatch_size), size=size))
    return SampledBatch(indices, groups)


def on_device(batch: SampledBatch, microbatch_size: int = 1) -> tuple[int, int]:
    laid = lay_out(batch, SHAPE, make_microbatches(microbatch_size))
    seen = nothing_seen()
    for piece in range(laid.used):
        rows = laid.indices[piece]
        groups = None if laid.groups is None else laid.groups[piece]
        seen = jax.jit(also_seen)(
            seen, Batch(INTEGERS[rows], CATEGORICALS[rows], LABELS[rows], laid.mask[piece], groups)
        )
    return int(seen.rows), int(seen.checksum)


def expected(batch: SampledBatch, microbatch_size: int = 1, present: np.ndarray | None = None) -> tuple[int, int]:
    microbatches = make_microbatches(microbatch_size)
    there = np.ones(batch.size, bool) if present is None else present
    largest = microbatches.largest if microbatches else None
    return expected_rows(batch, HASHES, present=there, largest_group=largest)


@pytest.mark.parametrize("microbatch_size", [1, 2, 4])
@pytest.mark.parametrize("size", [0, 1, 39, 40, 41, 100])
def test_host_and_device_agree(size: int, microbatch_size: int) -> None:
    for seed in range(5):
        batch = sampled(size, microbatch_size, seed)
        assert on_device(batch, microbatch_size) == expected(batch, microbatch_size)


@pytest.mark.usefixtures("strict_types")
def test_members_beyond_the_largest_group_are_not_expected() -> None:
    batch = SampledBatch(np.arange(30), np.array([0] * 29 + [1]))
    assert on_device(batch, 2) == expected(batch, 2)
    assert expected(batch, 2)[0] < 30


def test_empty_slots_are_not_expected() -> None:
    batch = sampled(30)
    present = np.arange(30) % 3 > 0
    assert expected(batch, present=present) == expected(SampledBatch(batch.indices[present], None))


def test_the_order_of_rows_does_not_matter() -> None:
    batch = sampled(50)
    assert expected(batch) == expected(SampledBatch(batch.indices[::-1], None))


def test_every_value_matters() -> None:
    """The hash of a row changes with each of its values; a missing value differs from any number."""
    for column in range(3):
        other = INTEGERS.copy()
        other[:, column] = np.where(np.isnan(other[:, column]), 0.0, np.nan)
        assert np.all(row_hashes(other, CATEGORICALS, LABELS) != HASHES)
    for column in range(4):
        assert np.all(row_hashes(INTEGERS, CATEGORICALS ^ (np.arange(4) == column), LABELS) != HASHES)
    assert np.all(row_hashes(INTEGERS, CATEGORICALS, LABELS + 1) != HASHES)
    assert len(np.unique(HASHES)) == 200


def test_another_batch_of_the_same_size_has_another_checksum() -> None:
    found = {expected(sampled(60, seed=seed)) for seed in range(300)}
    assert len(found) == 300
    groups = sampled(60, 4)
    assert groups.groups is not None
    moved = SampledBatch(groups.indices, np.sort(np.append(groups.groups[1:], groups.groups[0] + 1)))
    assert expected(groups, 4)[1] != expected(moved, 4)[1]


def test_disagreements_are_counted_and_the_first_is_described() -> None:
    log = StepLog()
    log.add((0, 5, 9), (5, 9))
    assert log.defects(1) == []
    log.add((1, 4, 9), (5, 9))
    log.add((2, 5, 8), (5, 9))
    log.add((2, 5, 9), (5, 9))
    found = log.defects(5)
    assert found == [
        "5 steps are recorded, but the device reported 4",
        "1 of 4 steps ran out of turn (step 1: it computed with 4 rows where 5 were sampled)",
        "1 of 4 steps computed with another number of rows than were sampled "
        "(step 1: it computed with 4 rows where 5 were sampled)",
        "1 of 4 steps computed with other rows than were sampled "
        "(step 1: it computed with 4 rows where 5 were sampled)",
    ]
    assert StepLog(**log.to_json()) == log
