"""Checkpoints: damaged ones are refused by name, the one before is used, and secret ones are their owner's alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks.config.loading import Hardware
from tasks.privacy.verdict import judge
from tasks.runtime.errors import Stopped, UserError
from tasks.training.checkpoint import Progress, checkpoint_of
from tasks.training.loop import run_trial
from tasks.training.setup import set_up
from tests.support.trials import evidence_of, make_prepared, make_trial, parameters_of, record_of, without_privacy

STATE = {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.int32(7)}
FRESH = {"kernel": np.zeros((2, 3), np.float32), "step": np.int32(0)}


def saved(home: Path) -> list[str]:
    return sorted(path.name for path in (home / "trials").glob(".unfinished/*"))


def save(*steps: int, secret: bool = True) -> None:
    checkpoint = checkpoint_of("key", secret=secret)
    for step in steps:
        checkpoint.save({**STATE, "step": np.int32(step)}, Progress(steps=step))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_the_two_newest_are_kept(own_home: Path) -> None:
    save(100, 200, 300)
    assert saved(own_home) == ["key.200", "key.300"]
    state, progress = checkpoint_of("key").restore(FRESH)
    assert (progress.steps, int(state["step"])) == (300, 300)
    np.testing.assert_array_equal(state["kernel"], STATE["kernel"])
    checkpoint_of("key").discard()
    assert saved(own_home) == []


@pytest.mark.parametrize("name", ["state.npz", "progress.json", "manifest.json"])
@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink])
def test_the_one_before_a_damaged_one_is_used(
    own_home: Path, name: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    save(100, 200)
    newest = own_home / "trials" / ".unfinished" / "key.200"
    damage(newest / name)
    _, progress = checkpoint_of("key").restore(FRESH)
    assert progress.steps == 100
    [line] = capsys.readouterr().out.splitlines()
    assert f"the checkpoint {newest} is not used: " in line
    assert name.partition(".")[0] in line
    save(200)  # under the name of the damaged one
    assert checkpoint_of("key").restore(FRESH)[1].steps == 200


def test_without_a_whole_one_training_starts_from_the_beginning(
    own_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(100, 200)
    for path in (own_home / "trials" / ".unfinished").glob("*/state.npz"):
        empty(path)
    state, progress = checkpoint_of("key").restore(FRESH)
    assert state is FRESH
    assert (progress.steps, progress.attempts) == (0, [])
    *refused, last = capsys.readouterr().out.splitlines()
    assert len(refused) == 2
    assert last.endswith("no checkpoint of key is whole: its training starts from the beginning")
    assert saved(own_home) == []


def test_a_state_of_another_shape_is_not_used(own_home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(100)
    assert checkpoint_of("key").restore({**FRESH, "kernel": np.zeros((2, 4))})[1].steps == 0
    assert "its arrays have other shapes than the model's" in capsys.readouterr().out
    save(100)
    assert checkpoint_of("key").restore({**FRESH, "more": np.zeros(1)})[1].steps == 0
    assert "another version wrote it" in capsys.readouterr().out


@pytest.mark.parametrize(("secret", "modes"), [(True, (0o700, 0o600)), (False, (0o755, 0o644))])
def test_a_secret_save_is_its_owners_alone(own_home: Path, modes: tuple[int, int], *, secret: bool) -> None:
    save(100, secret=secret)
    folder = own_home / "trials" / ".unfinished" / "key.100"
    found = {path.name: path.stat().st_mode & 0o777 for path in [folder, *folder.iterdir()]}
    assert found.pop(folder.name) == modes[0]
    assert len(found) == 3
    assert secret is (set(found.values()) == {0o600})


def test_a_run_whose_newest_checkpoint_is_damaged_ends_as_if_it_were_whole(
    own_home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The audit's marks are right too: every attempt began with a state that was saved."""
    prepared = make_prepared(tmp_path / "raw")
    trial = make_trial(prepared)
    run_trial(trial, prepared)
    whole = parameters_of(trial)
    trial.folder.rename(tmp_path / "kept")
    run_trial(trial, prepared, stop_after=10)
    run_trial(trial, prepared, stop_after=20)
    flip(own_home / "trials" / ".unfinished" / f"{trial.key}.20" / "state.npz")
    run_trial(trial, prepared)
    assert "resuming at step 10 of" in capsys.readouterr().out
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, whole[name])
    evidence = evidence_of(trial)
    assert [mark["step"] for mark in evidence["attempts"]] == [0, 10]
    result, _ = judge(trial, record_of(trial), evidence)  # type: ignore[arg-type]
    assert result["findings"] == []
    assert saved(own_home) == []


def test_a_run_that_cannot_resume_leaves_no_checkpoint(own_home: Path, tmp_path: Path) -> None:
    from tests.tasks.training.test_loop import with_a_bad_row

    prepared = make_prepared(tmp_path / "raw")
    with_a_bad_row(prepared, "integers", np.inf)
    with pytest.raises(UserError, match="was refused"):
        run_trial(make_trial(prepared, randomness="secret"), prepared, checkpoint_seconds=0.0)
    assert saved(own_home) == []
    run_trial(without_privacy(prepared), prepared, stop_after=5)
    assert saved(own_home) != []


def test_the_record_says_what_ran_in_vain(own_home: Path, tmp_path: Path) -> None:
    """Two attempts are killed: one before its first checkpoint, one after it."""
    prepared = make_prepared(tmp_path / "raw")
    for randomness, drawn_again in (("seeded", []), ("secret", ["noise", "batches"])):
        trial = make_trial(prepared, randomness=randomness)
        with pytest.raises(Stopped):
            run_trial(trial, prepared, should_stop=after(3))
        run_trial(trial, prepared, stop_after=10)
        with pytest.raises(Stopped):
            run_trial(trial, prepared, should_stop=after(2))
        run_trial(trial, prepared)
        found = record_of(trial)["interruptions"]
        assert [one["resumed_at"] for one in found] == [0, 10, 10]
        assert found[0]["reached"] > 0
        assert found[1]["reached"] == 10
        assert 10 < found[2]["reached"] <= 48
        assert [one["drawn_again"] for one in found] == [drawn_again] * 3
        assert saved(own_home) == []


def after(calls: int) -> Callable[[], bool]:
    """Returns a question whose answer is yes from that call on."""
    counted = itertools.count(1)
    return lambda: next(counted) > calls


@pytest.mark.parametrize(
    ("error", "kept"),
    [(KeyError("a bug"), False), (Stopped(""), True), (ConnectionResetError(), True), (MemoryError(), True)],
    ids=lambda value: type(value).__name__,
)
def test_a_secret_state_is_destroyed_when_its_run_has_failed_for_good(
    own_home: Path, tmp_path: Path, error: Exception, *, kept: bool
) -> None:
    """It is kept where the same command goes on from it."""
    prepared = make_prepared(tmp_path / "raw")
    trial = make_trial(prepared, randomness="secret")

    def fail(progress: Progress) -> None:
        if progress.steps > 10:
            raise error

    with pytest.raises(type(error)):
        run_trial(trial, prepared, checkpoint_seconds=0.0, watch=fail)
    assert (saved(own_home) != []) is kept
    modes = {path.stat().st_mode & 0o077 for path in (own_home / "trials" / ".unfinished").rglob("*")}
    assert modes <= {0}


SECRET = {"randomness": "secret"}


@pytest.mark.parametrize(
    ("changes", "batches_again"),
    [
        ({**SECRET, "canaries": 8}, False),
        ({**SECRET, "sampler": "shuffle"}, True),
        ({**SECRET, "bands": 4}, True),
        ({**SECRET, "initial_bias": "label_rate", "initial_bias_epsilon": 0.1}, False),
        ({"canaries": 8}, True),
    ],
    ids=["poisson", "shuffle", "bands", "initial bias", "seeded"],
)
def test_what_a_resumed_run_uses_twice(
    own_home: Path, tmp_path: Path, changes: dict[str, Any], *, batches_again: bool
) -> None:
    """Of a secret run: draws that must last for the whole run, as ``docs/privacy.md`` says. Never its noise."""
    prepared = make_prepared(tmp_path / "raw")
    trial = make_trial(prepared, **changes)
    [first, second] = [set_up(trial, prepared, Hardware(), checkpoint_seconds=0.0) for _ in range(2)]
    drawn = [run.randomness.drawn().noise for run, _, _ in (first, second)]
    assert (drawn[0] == drawn[1]) is (trial.randomness == "seeded")
    # The second attempt begins as if it had found a checkpoint of the first.
    run, state, progress = first
    progress.steps = 1
    run.checkpoint.save(run.placement.whole(state), progress)
    again, _, resumed = set_up(trial, prepared, Hardware(), checkpoint_seconds=0.0)
    assert resumed.steps == 1
    assert (again.sampler.entropy == run.sampler.entropy) is batches_again
    assert again.randomness.drawn().noise != run.randomness.drawn().noise or trial.randomness == "seeded"
    assert resumed.included_canaries == progress.included_canaries
    assert resumed.label_sum == progress.label_sum
    again.checkpoint.discard()
