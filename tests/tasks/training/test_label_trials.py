"""LabelDP trials: what they train on, and that one draw of responses lasts for the whole run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.training.noisy_labels
import tasks.training.setup
from tasks.data.prepared import Prepared, Split
from tasks.integrity.manifest import write_manifest
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.training.loop import run_trial
from tasks.training.noisy_labels import NoisyLabels, draw_labels
from tasks.training.trial import Trial
from tests.support.label_trials import KINDS, draw_of, run_once
from tests.support.trials import label_trial, make_prepared, parameters_of, share_randomness, without_privacy


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("labels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_without_end_is_the_baseline_to_the_last_bit(
    prepared: Prepared, kind: str, debias: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All labels are kept and every bin is one count, so batches, labels and model are those of the baseline."""
    share_randomness(monkeypatch)
    values = {**KINDS[kind], "largest_count": 60 if kind != "binary" else None}
    private = label_trial(prepared, **values, debias=debias, epsilon=1000.0, seed=17)
    baseline = without_privacy(prepared, task=private.task, seed=17)
    record, evidence = run_once(private, prepared)
    expected, _ = run_once(baseline, prepared)
    transitions = np.asarray(evidence["label_transitions"])
    assert np.array_equal(transitions, np.diag(np.diag(transitions)))
    for name, array in parameters_of(baseline).items():
        np.testing.assert_array_equal(parameters_of(private)[name], array)
    assert record["test_loss"] == expected["test_loss"]
    assert judge(private, record, evidence)[0]["verdict"] == "passed"


def test_a_seed_and_a_budget_have_one_draw(prepared: Prepared) -> None:
    """Trials that differ only in how they train share their responses."""
    first = draw_of(label_trial(prepared), prepared)
    for change in ({"learning_rate": 0.05}, {"epochs": 3}, {"batch_size": 200}, {"debias": True}):
        assert draw_of(label_trial(prepared, **change), prepared) == first
    others = {draw_of(label_trial(prepared, **change), prepared) for change in ({"seed": 1}, {"epsilon": 3.0})}
    assert len({first, *others}) == 3


def test_every_epoch_has_the_same_labels(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at what the device gets: a row has the same label in every batch, and that label is its response. The
    labels are drawn once."""
    seen: dict[int, set[float]] = {}
    draws: list[NoisyLabels] = []
    truly_read, truly_draw = tasks.training.setup.read_dispatches, tasks.training.setup.draw_labels

    def watched(*arguments: Any) -> Any:
        for dispatch in truly_read(*arguments):
            labels, mask = (np.asarray(part) for part in (dispatch.steps.batches.labels, dispatch.steps.batches.mask))
            for number, rows in enumerate(batch.indices for batch in dispatch.sampled):
                given = labels[number][mask[number] > 0]
                assert sorted(given) == sorted(draws[0].labels[rows])
                for row, label in zip(np.sort(rows), draws[0].labels[np.sort(rows)], strict=True):
                    seen.setdefault(int(row), set()).add(float(label))
            yield dispatch

    def counted(*arguments: Any) -> NoisyLabels:
        draws.append(truly_draw(*arguments))
        return draws[-1]

    monkeypatch.setattr(tasks.training.setup, "read_dispatches", watched)
    monkeypatch.setattr(tasks.training.setup, "draw_labels", counted)
    run_trial(label_trial(prepared, epochs=4, seed=31), prepared)
    assert len(draws) == 1
    assert len(seen) > 2000
    assert all(len(labels) == 1 for labels in seen.values())


def test_training_never_sees_a_true_label(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Overwriting every true training label with NaN after the responses are drawn does not change the model."""
    trial = label_trial(prepared, seed=32)
    run_trial(trial, prepared)
    expected = parameters_of(trial)

    truly_open = Prepared.split

    def writable(self: Prepared, name: str, task: str) -> Split:
        split = truly_open(self, name, task)
        return dataclasses.replace(split, labels=np.array(split.labels)) if name == "train" else split

    def spoilt(given: Trial, labels: np.ndarray, entropy: Any) -> NoisyLabels:
        noisy = draw_labels(given, labels, entropy)
        labels.flags.writeable = True
        labels[:] = np.nan
        return noisy

    monkeypatch.setattr(Prepared, "split", writable)
    monkeypatch.setattr(tasks.training.setup, "draw_labels", spoilt)
    monkeypatch.setattr(NoisyLabels, "transitions", lambda self, true, trained_on: [[0, 0], [0, 0]])
    trial.folder.rename(trial.folder.with_name("true"))
    run_trial(trial, prepared)
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("debias", [False, True])
def test_responses_that_tell_nothing_teach_nothing(prepared: Prepared, debias: bool) -> None:
    """At a tiny ε the responses are fair coins, so the model only guesses. With true labels its AUC loss is below 0.35
    (``test_loop``)."""
    trial = label_trial(prepared, epsilon=1e-4, debias=debias, epochs=10, learning_rate=1e-3 if debias else 0.1)
    record, _ = run_once(trial, prepared)
    assert record["test_loss"] is None or record["test_loss"] > 0.42


def test_an_interrupted_run_goes_on_with_the_same_responses(prepared: Prepared) -> None:
    """Even if randomness is secret: new responses to the same labels would be a second release of them."""
    trial = label_trial(prepared, randomness="secret", seed=41)
    draws: list[NoisyLabels] = []
    truly = tasks.training.setup.draw_labels

    def counted(*arguments: Any) -> NoisyLabels:
        draws.append(truly(*arguments))
        return draws[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.training.setup, "draw_labels", counted)
        run_trial(trial, prepared, stop_after=10)
        assert not trial.folder.exists()
        run_trial(trial, prepared, stop_after=30)
        run_trial(trial, prepared)
    assert len(draws) == 3
    for later in draws[1:]:
        np.testing.assert_array_equal(later.labels, draws[0].labels)
        assert later.record == draws[0].record
    record, evidence = run_once(trial, prepared)
    assert record["mechanism"]["draw"] == draws[0].record.draw
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert "operating system's entropy" in statement
    # What can repeat the draw is gone with the checkpoint, and another run draws anew.
    assert not list(trial.folder.parent.glob(f".unfinished/{trial.key}.*"))
    assert "sampling_entropy" not in (trial.folder / "record.json").read_text()
    trial.folder.rename(trial.folder.with_name("first"))
    assert draw_of(trial, prepared) != draws[0].record.draw


def test_a_seeded_run_that_was_interrupted_repeats(prepared: Prepared) -> None:
    trial = label_trial(prepared, seed=42, debias=True)
    run_trial(trial, prepared)
    whole = parameters_of(trial)
    trial.folder.rename(trial.folder.with_name("whole"))
    run_trial(trial, prepared, stop_after=20)
    run_trial(trial, prepared)
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, whole[name])


def test_a_bad_label_is_the_users_to_mend(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    path = next(prepared.path.glob("**/train/label_pcvr.npy"))
    labels = np.load(path)
    labels[17] = np.nan
    np.save(path, labels)
    write_manifest(prepared.path)  # as if it had been prepared so
    with pytest.raises(UserError, match="labels must be non-negative integers"):
        run_trial(label_trial(prepared), prepared)
