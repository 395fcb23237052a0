"""Canaries have slots in the training data, filled or empty, and tokens that no example has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dp_core.audit.one_run import audit_scores
from dp_core.audit.sampling_counts import SamplingCounts
from tasks.data.prepared import Prepared
from tasks.runtime.errors import UserError
from tasks.training.canaries import Appended, canary_tokens, make_canaries, with_canaries
from tasks.training.checkpoint import Progress
from tasks.training.loop import run_trial
from tasks.training.randomness import Randomness
from tests.support.trials import evidence_of, make_prepared, make_trial, record_of


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def test_rows_of_a_file_and_more() -> None:
    rows = Appended(np.arange(10).reshape(5, 2), np.arange(100, 104).reshape(2, 2))
    assert (len(rows), rows.shape) == (7, (7, 2))
    np.testing.assert_array_equal(rows[np.array([6, 0, 5])], [[102, 103], [0, 1], [100, 101]])
    np.testing.assert_array_equal(rows[np.array([[4], [5]])], [[[8, 9]], [[100, 101]]])
    assert rows[np.array([], int)].shape == (0, 2)


def test_a_canary_has_a_token_of_its_own_and_copies_nobody(prepared: Prepared) -> None:
    data = prepared.split("train", "pcvr")
    tokens = canary_tokens(prepared, 20)
    assert tokens is not None
    assert tokens.first == prepared.categorical_columns[0].vocabulary_size
    canaries = make_canaries(tokens, data)
    assert len(set(canaries.categoricals[:, 0])) == 20
    assert canaries.categoricals.min() > np.asarray(data.categoricals).max()
    assert np.isnan(canaries.integers).all()

    included = np.arange(20) % 2 == 0
    rows = with_canaries(data, canaries, included)
    assert len(rows) == 2420
    np.testing.assert_array_equal(rows.present(np.array([0, 2399, 2400, 2401, 2402])), [True, True, True, False, True])


@pytest.mark.parametrize("entropy", [(5, 0), (11, 22, 33, 44)], ids=["seeded", "secret"])
def test_coins_have_nothing_to_do_with_the_batches(entropy: tuple[int, ...]) -> None:
    """The coins share no stream with a sampler, with the entropy of a seed and with that of a secret run."""
    coins = Randomness(jax.random.key(0), entropy).coins(64)
    keys = [*((step,) for step in range(200)), *((epoch, 0) for epoch in range(200))]
    streams = [np.random.default_rng(np.random.SeedSequence(entropy, spawn_key=key)) for key in keys]
    assert not any(np.array_equal(stream.random(64) < 0.5, coins) for stream in streams)


def test_no_canaries_and_no_place_for_them(prepared: Prepared) -> None:
    assert canary_tokens(prepared, 0) is None
    bare = Prepared(**{**vars(prepared), "categorical_columns": ()})
    with pytest.raises(UserError, match="need a categorical column"):
        canary_tokens(bare, 5)


def test_rows_of_absent_canaries_move_by_noise_alone(prepared: Prepared) -> None:
    """Without noise, rows of excluded canaries do not move, and the audit guesses nearly every coin."""
    trial = make_trial(prepared, canaries=200, noise_multiplier=0.0, epochs=8, momentum=0.0)
    run_trial(trial, prepared)
    evidence = evidence_of(trial)["canaries"]
    included = np.array(evidence["included"])
    distance = np.array(evidence["attacks"]["distance"])
    assert 60 < included.sum() < 140
    assert np.all(distance[~included] == 0)
    assert np.mean(distance[included] > 0) > 0.95
    assert audit_scores([distance], included, delta=1e-9, confidence=0.95).epsilon_lower > 2.5


@pytest.mark.parametrize("sampler", ["poisson", "balls_in_bins", "shuffle"])
@pytest.mark.parametrize("randomness", ["seeded", "secret"])
def test_an_interrupted_run_keeps_its_coins_and_its_epoch(
    prepared: Prepared, sampler: Any, randomness: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New coins would put a canary both in and out. A new order would let examples take part twice in an epoch."""
    trial = make_trial(prepared, canaries=50, sampler=sampler, randomness=randomness, epochs=3)
    saved: list[Progress] = []
    restore = tasks_checkpoint_restore(monkeypatch, saved)
    run_trial(trial, prepared, stop_after=35)
    run_trial(trial, prepared)
    assert restore
    evidence = evidence_of(trial)
    assert evidence["canaries"]["included"] == saved[-1].included_canaries
    counts = SamplingCounts.from_json(evidence["sampling"])
    assert counts.steps == record_of(trial)["steps"]
    assert counts.misplaced == 0
    if sampler != "poisson":
        assert np.bincount(counts.participations()[1]).max() <= 3


def tasks_checkpoint_restore(monkeypatch: pytest.MonkeyPatch, saved: list[Progress]) -> bool:
    """Collects the progress that each run starts from."""
    from tasks.training.checkpoint import Checkpoint

    truly = Checkpoint.restore

    def noting(self: Checkpoint, fresh: Any) -> tuple[Any, Progress]:
        state, progress = truly(self, fresh)
        saved.append(progress)
        return state, progress

    monkeypatch.setattr(Checkpoint, "restore", noting)
    return True
