"""LabelDP from the labels to the statement: what is trained on, what that is worth, and that lies are caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.noisy_labels
import tasks.train
from dp_core.label_record import LabelRecord
from dp_core.randomized_response import RandomizedResponse
from tasks.audit import judge
from tasks.cli import main
from tasks.encoded import Prepared, Split
from tasks.errors import UserError
from tasks.home import read_json, write_json
from tasks.noisy_labels import NoisyLabels, draw_labels
from tasks.releases import releases
from tasks.train import run_trial
from tasks.trial import Trial
from tests.records import record
from tests.trials import label_trial, make_prepared, make_trial, without_privacy

COUNTS: dict[str, Any] = {"task": "pconvs", "largest_count": 5}
KINDS = {"binary": {}, "k_ary": {"response": "k_ary", **COUNTS}, "bins": {"response": "bins", **COUNTS}}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("labels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


def run(trial: Trial, prepared: Prepared) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record and the evidence of a trial, trained unless it was."""
    if not trial.folder.exists():
        run_trial(trial, prepared)
    return read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json")


def parameters_of(trial: Trial) -> dict[str, np.ndarray]:
    with np.load(trial.folder / "parameters.npz") as file:
        return dict(file)


def draw_of(trial: Trial, prepared: Prepared) -> str:
    return run(trial, prepared)[0]["mechanism"]["draw"]


def findings_of(trial: Trial, prepared: Prepared) -> str:
    result, statement = judge(trial, *run(trial, prepared))
    assert result["verdict"] == "failed"
    assert "NOT SHOWN TO BE WITHIN" in statement
    return "; ".join(result["findings"])


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_passes_what_ran(prepared: Prepared, kind: str, debias: bool) -> None:
    """A correct run fails at most once in a million seeds; the seed is fixed."""
    trial = label_trial(prepared, **KINDS[kind], debias=debias)
    record, evidence = run(trial, prepared)
    ran = LabelRecord.from_json(record["mechanism"])
    assert (ran.kind, ran.debiased, ran.examples) == (kind, debias, 2400)
    assert np.sum(evidence["label_transitions"]) == 2400
    assert evidence["probe"] is None
    result, statement = judge(trial, record, evidence)
    assert (result["verdict"], result["findings"]) == ("passed", [])
    assert result["epsilon"] == ran.epsilon
    assert 2 * (1 - 1e-6) <= result["epsilon"] <= 2 * (1 + 1e-12)
    assert (ran.histogram_epsilon > 0) == (kind == "bins")
    assert record["test_loss"] is not None

    for words in (
        "**for labels alone**: within its budget of 2",
        "δ = 0",
        "**Features are public**",
        "the label of one training example",
        "replace one label by another",
        ran.draw,
        "fixed seed 0",
        "made right in the mean" if debias else "as they are",
        "once for the whole training",
    ):
        assert words in statement
    assert ("Histogram | 0.2 of ε" in statement) == (kind == "bins")
    assert "DP-SGD" not in statement


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_budget_without_end_is_the_baseline_to_the_last_bit(prepared: Prepared, kind: str, debias: bool) -> None:
    """All labels are kept, and bins are single counts: the same batches, labels and model as without privacy."""
    values = {**KINDS[kind], "largest_count": 60 if kind != "binary" else None}
    private = label_trial(prepared, **values, debias=debias, epsilon=1000.0)
    baseline = without_privacy(prepared, task=private.task)
    record, evidence = run(private, prepared)
    expected, _ = run(baseline, prepared)
    transitions = np.asarray(evidence["label_transitions"])
    assert np.array_equal(transitions, np.diag(np.diag(transitions)))
    for name, array in parameters_of(baseline).items():
        np.testing.assert_array_equal(parameters_of(private)[name], array)
    assert record["test_loss"] == expected["test_loss"]
    assert judge(private, record, evidence)[0]["verdict"] == "passed"


def test_a_seed_and_a_budget_have_one_draw(prepared: Prepared) -> None:
    """The learning rate and the number of epochs are other trainings on the same responses."""
    first = draw_of(label_trial(prepared), prepared)
    for change in ({"learning_rate": 0.05}, {"epochs": 3}, {"batch_size": 200}, {"debias": True}):
        assert draw_of(label_trial(prepared, **change), prepared) == first
    others = {draw_of(label_trial(prepared, **change), prepared) for change in ({"seed": 1}, {"epsilon": 3.0})}
    assert len({first, *others}) == 3


def test_every_epoch_has_the_same_labels(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the device is given, row by row: one label for each row in all the batches that it was in, and that label
    is the response. The labels are drawn once."""
    seen: dict[int, set[float]] = {}
    draws: list[NoisyLabels] = []
    truly_read, truly_draw = tasks.train.read_dispatches, tasks.train.draw_labels

    def watched(*arguments: Any) -> Any:
        for dispatch in truly_read(*arguments):
            labels, mask = (np.asarray(part) for part in (dispatch.steps.batches.labels, dispatch.steps.batches.mask))
            for number, rows in enumerate(dispatch.sampled):
                given = labels[number][mask[number] > 0]
                assert sorted(given) == sorted(draws[0].labels[rows])
                for row, label in zip(np.sort(rows), draws[0].labels[np.sort(rows)], strict=True):
                    seen.setdefault(int(row), set()).add(float(label))
            yield dispatch

    def counted(*arguments: Any) -> NoisyLabels:
        draws.append(truly_draw(*arguments))
        return draws[-1]

    monkeypatch.setattr(tasks.train, "read_dispatches", watched)
    monkeypatch.setattr(tasks.train, "draw_labels", counted)
    run_trial(label_trial(prepared, epochs=4, seed=31), prepared)
    assert len(draws) == 1
    assert len(seen) > 2000
    assert all(len(labels) == 1 for labels in seen.values())


def test_training_never_sees_a_true_label(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every true training label is made NaN, and then some other label, once the responses are drawn: nothing of
    the model changes."""
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
    monkeypatch.setattr(tasks.train, "draw_labels", spoilt)
    monkeypatch.setattr(NoisyLabels, "transitions", lambda self, true, trained_on: [[0, 0], [0, 0]])
    trial.folder.rename(trial.folder.with_name("true"))
    run_trial(trial, prepared)
    for name, array in parameters_of(trial).items():
        np.testing.assert_array_equal(array, expected[name])


@pytest.mark.parametrize("debias", [False, True])
def test_responses_that_tell_nothing_teach_nothing(prepared: Prepared, debias: bool) -> None:
    """At a tiny ε the responses are coins: the model cannot be better than guessing, where the true labels give an AUC
    loss below 0.35 (``test_train``)."""
    trial = label_trial(prepared, epsilon=1e-4, debias=debias, epochs=10, learning_rate=1e-3 if debias else 0.1)
    record, _ = run(trial, prepared)
    assert record["test_loss"] is None or record["test_loss"] > 0.42


def test_an_interrupted_run_goes_on_with_the_same_responses(prepared: Prepared) -> None:
    """Randomness is secret: other responses to the same labels would be a second release of them."""
    trial = label_trial(prepared, randomness="secret", seed=41)
    draws: list[NoisyLabels] = []
    truly = tasks.train.draw_labels

    def counted(*arguments: Any) -> NoisyLabels:
        draws.append(truly(*arguments))
        return draws[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks.train, "draw_labels", counted)
        run_trial(trial, prepared, stop_after=10)
        assert not trial.folder.exists()
        run_trial(trial, prepared, stop_after=30)
        run_trial(trial, prepared)
    assert len(draws) == 3
    for later in draws[1:]:
        np.testing.assert_array_equal(later.labels, draws[0].labels)
        assert later.record == draws[0].record
    record, evidence = run(trial, prepared)
    assert record["mechanism"]["draw"] == draws[0].record.draw
    result, statement = judge(trial, record, evidence)
    assert result["verdict"] == "passed"
    assert "operating system's entropy" in statement
    # What can repeat the draw is gone with the checkpoint, and another run draws anew.
    assert not list(trial.folder.parent.glob(f".unfinished/{trial.key}.*"))
    assert "entropy" not in (trial.folder / "record.json").read_text()
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


class TestPlantedBugs:
    """Each is in the code that trains; the record is what that code believes of itself."""

    def test_labels_are_kept_too_often(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        truly = RandomizedResponse.respond

        def less(self: RandomizedResponse, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            return truly(RandomizedResponse(self.values, 1.3 * self.epsilon), indices, rng)

        monkeypatch.setattr(RandomizedResponse, "respond", less)
        assert "labels were kept, where probability" in findings_of(label_trial(prepared, seed=51), prepared)

    @pytest.mark.parametrize("debias", [False, True])
    def test_labels_are_not_randomised(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, debias: bool) -> None:
        monkeypatch.setattr(RandomizedResponse, "respond", lambda self, indices, rng: np.asarray(indices))
        found = findings_of(label_trial(prepared, seed=52, debias=debias), prepared)
        assert "2,400 of 2,400 labels were kept" in found

    @pytest.mark.parametrize("debias", [False, True])
    def test_the_true_labels_are_trained_on(
        self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch, debias: bool
    ) -> None:
        """The responses are drawn as they should be, and left lying."""

        class KeepsLabels:
            @staticmethod
            def replace(split: Split, **changes: Any) -> Split:
                return split

        monkeypatch.setattr(tasks.train, "dataclasses", KeepsLabels)
        found = findings_of(label_trial(prepared, seed=53, debias=debias), prepared)
        assert "labels were kept" in found or "responses to 2,400 labels" in found

    def test_one_class_is_kept_and_the_other_flipped(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """As many are kept as should be, but not of each kind."""
        truly = RandomizedResponse.respond

        def sorted_out(self: RandomizedResponse, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            kept = int(np.sum(truly(self, indices, rng) == indices))
            responses, zeros_first = 1 - indices, np.argsort(indices, kind="stable")
            responses[zeros_first[:kept]] = indices[zeros_first[:kept]]
            return responses

        monkeypatch.setattr(RandomizedResponse, "respond", sorted_out)
        assert "labels in the bin from" in findings_of(label_trial(prepared, seed=54), prepared)

    def test_wrong_responses_are_the_nearest(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """Kept as often as stated, but the others are not chosen evenly: a neighbour tells of the label."""

        def near(self: RandomizedResponse, indices: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            kept = rng.random(indices.shape) < self.keep_probability
            return np.where(kept, indices, np.where(indices > 0, indices - 1, 1))

        monkeypatch.setattr(RandomizedResponse, "respond", near)
        found = findings_of(label_trial(prepared, seed=55, **KINDS["k_ary"]), prepared)
        assert "where an even choice gives" in found

    def test_the_histogram_is_not_paid_for(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """The responses get the whole budget beside it: what ran is over it."""
        truly = tasks.noisy_labels._bins

        def gratis(trial: Trial, epsilon: float, labels: np.ndarray, rng: np.random.Generator) -> Any:
            bins, spent = truly(trial, epsilon, labels, rng)
            whole.append(spent)
            return bins, 0.0

        def honest(**values: Any) -> LabelRecord:
            return LabelRecord(**{**values, "histogram_epsilon": whole[-1]})

        whole: list[float] = []
        monkeypatch.setattr(tasks.noisy_labels, "_bins", gratis)
        monkeypatch.setattr(tasks.noisy_labels, "LabelRecord", honest)
        assert "over the budget of 2" in findings_of(label_trial(prepared, seed=56, **KINDS["bins"]), prepared)


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"keep_probability": 0.95}, "over the budget"),
        ({"keep_probability": 1.0}, "over the budget"),
        ({"histogram_epsilon": 0.5}, "over the budget"),
        ({"keep_probability": 0.6}, "labels were kept, where probability 0.6"),
        ({"kind": "k_ary"}, "kind k_ary, debiased: False, which is not what was asked"),
        ({"debiased": True}, "kind binary, debiased: True, which is not what was asked"),
        ({"examples": 2399}, "2,400 responses to 2,399 labels"),
        ({"values": [0, 1, 2], "starts": [0, 1, 2], "keep_probability": 0.7}, "must be a table of 3 by 3"),
    ],
    ids=str,
)
def test_a_record_of_something_else_fails(prepared: Prepared, changes: dict[str, Any], finding: str) -> None:
    trial = label_trial(prepared)
    record, evidence = run(trial, prepared)
    result, statement = judge(trial, {**record, "mechanism": {**record["mechanism"], **changes}}, evidence)
    assert result["verdict"] == "failed"
    assert finding in "; ".join(result["findings"])
    assert finding in statement
    assert "NOT SHOWN TO BE WITHIN" in statement


def test_without_evidence_nothing_passes(prepared: Prepared) -> None:
    trial = label_trial(prepared)
    record, evidence = run(trial, prepared)
    assert judge(trial, record, {**evidence, "label_transitions": None})[0]["verdict"] == "failed"


def test_a_bad_label_is_the_users_to_mend(own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    path = next(prepared.path.glob("**/train/label_pcvr.npy"))
    labels = np.load(path)
    labels[17] = np.nan
    np.save(path, labels)
    with pytest.raises(UserError, match="labels must be whole numbers from 0"):
        run_trial(label_trial(prepared), prepared)


class TestReleases:
    def test_models_of_one_draw_cost_once_and_of_two_add_up(
        self, prepared: Prepared, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first, faster, debiased = (
            label_trial(prepared, **change) for change in ({}, {"learning_rate": 0.05}, {"debias": True})
        )
        other_seed, larger = label_trial(prepared, seed=1), label_trial(prepared, epsilon=3.0)
        for trial in (first, faster, debiased, other_seed, larger):
            run(trial, prepared)
        (one,) = releases([first.key])
        assert (one["epsilon"], one["delta"], one["protects"]) == (pytest.approx(2), 0.0, "labels")
        (same,) = releases([first.key, faster.key, debiased.key])
        assert same["epsilon"] == one["epsilon"]
        assert same["trials"] == [first.key, faster.key, debiased.key]
        (two,) = releases([first.key, faster.key, other_seed.key])
        assert two["epsilon"] == pytest.approx(4)
        (three,) = releases([first.key, other_seed.key, larger.key])
        assert three["epsilon"] == pytest.approx(7)
        assert main(["releases", first.key, other_seed.key]) == 0
        assert "publishing 2 models has ε = 4.0000 at δ = 0 for labels alone" in capsys.readouterr().out

    def test_budgets_that_kept_every_label_can_be_published_together(self, prepared: Prepared) -> None:
        trials = [label_trial(prepared, epsilon=epsilon) for epsilon in (25.0, 30.0)]
        for trial in trials:
            run(trial, prepared)
        (both,) = releases([trial.key for trial in trials])
        assert both["epsilon"] == pytest.approx(55, rel=1e-3)

    def test_examples_and_labels_have_no_common_epsilon(self, prepared: Prepared) -> None:
        labels, examples = label_trial(prepared), make_trial(prepared, seed=71)
        run(labels, prepared)
        stored = {"trial": examples.model_dump(mode="json"), "mechanism": record(examples=2400).to_json()}
        write_json(examples.folder / "record.json", stored)
        with pytest.raises(UserError, match=r"protect whole examples \(dp_sgd\) and others labels alone \(label_dp\)"):
            releases([labels.key, examples.key])
