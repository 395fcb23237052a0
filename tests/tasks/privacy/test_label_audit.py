"""The audit of LabelDP passes honest trials and catches planted bugs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tasks.training.noisy_labels
import tasks.training.setup
from dp_core.labels.randomized_response import RandomizedResponse
from dp_core.labels.record import LabelRecord
from tasks.data.prepared import Prepared, Split
from tasks.privacy.verdict import judge
from tasks.training.trial import Trial
from tests.support.label_trials import KINDS, run_once
from tests.support.trials import label_trial, make_prepared


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("labels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


def findings_of(trial: Trial, prepared: Prepared) -> str:
    result, statement = judge(trial, *run_once(trial, prepared))
    assert result["verdict"] == "failed"
    assert "NOT SHOWN TO BE WITHIN" in statement
    assert "| Guarantee | **none**: the audit failed" in statement
    return "; ".join(result["findings"])


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_audit_passes_what_ran(prepared: Prepared, kind: str, debias: bool) -> None:
    """A correct run fails at most once in a million seeds; the seed is fixed."""
    trial = label_trial(prepared, **KINDS[kind], debias=debias)
    record, evidence = run_once(trial, prepared)
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
        "**for labels only**: within its budget of 2",
        "δ = 0",
        "**Features are public**",
        "the label of one training example",
        "one label is replaced by another",
        ran.draw,
        "fixed seed 0",
        "unbiased labels computed from the responses" if debias else "the responses as they are",
        "once for the whole training",
    ):
        assert words in statement
    assert ("Histogram | 0.2 of ε" in statement) == (kind == "bins")
    assert "DP-SGD" not in statement


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

        monkeypatch.setattr(tasks.training.setup, "dataclasses", KeepsLabels)
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
        assert "where a uniform choice gives" in found

    def test_the_histogram_is_not_paid_for(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        """The responses get the whole budget beside it: what ran is over it."""
        truly = tasks.training.noisy_labels._bins

        def gratis(trial: Trial, epsilon: float, labels: np.ndarray, rng: np.random.Generator) -> Any:
            bins, spent, measured = truly(trial, epsilon, labels, rng)
            whole.append(spent)
            return bins, 0.0, measured

        def honest(**values: Any) -> LabelRecord:
            return LabelRecord(**{**values, "histogram_epsilon": whole[-1]})

        whole: list[float] = []
        monkeypatch.setattr(tasks.training.noisy_labels, "_bins", gratis)
        monkeypatch.setattr(tasks.training.noisy_labels, "LabelRecord", honest)
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
        ({"values": [0, 1, 2], "starts": [0, 1, 2], "keep_probability": 0.7}, "must have shape (3, 3)"),
    ],
    ids=str,
)
def test_a_record_of_something_else_fails(prepared: Prepared, changes: dict[str, Any], finding: str) -> None:
    trial = label_trial(prepared)
    record, evidence = run_once(trial, prepared)
    result, statement = judge(trial, {**record, "mechanism": {**record["mechanism"], **changes}}, evidence)
    assert result["verdict"] == "failed"
    assert finding in "; ".join(result["findings"])
    assert finding in statement
    assert "NOT SHOWN TO BE WITHIN" in statement
    assert "| Guarantee | **none**: the audit failed" in statement


def test_without_evidence_nothing_passes(prepared: Prepared) -> None:
    trial = label_trial(prepared)
    record, evidence = run_once(trial, prepared)
    assert judge(trial, record, {**evidence, "label_transitions": None})[0]["verdict"] == "failed"
