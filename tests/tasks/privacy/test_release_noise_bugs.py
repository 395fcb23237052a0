"""The audit fails runs whose vocabulary or label histogram was released with noise that is missing, wrong or stale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.training.noisy_labels
from dp_core.labels.bins import noisy_histogram
from dp_core.partition_selection import PartitionSelection, Selected
from tasks.data.prepared import Prepared
from tasks.privacy.verdict import judge
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.label_trials import KINDS, run_once
from tests.support.trials import evidence_of, label_trial, make_prepared, make_trial, record_of

Trained = tuple[Trial, dict[str, Any], dict[str, Any]]


def private_vocabulary(raw: Path) -> Prepared:
    return make_prepared(raw, vocabulary="private", vocabulary_epsilon=2.0)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """A trial on a dataset with a private vocabulary; its budget is generous, so only its evidence counts."""
    folder = tmp_path_factory.mktemp("vocabulary")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        prepared = private_vocabulary(folder / "raw")
        trial = make_trial(prepared, epsilon=50.0, noise_multiplier=1.0, target_delta=1 / 2400)
        run_trial(trial, prepared)
        yield trial, record_of(trial), evidence_of(trial)


class Broken:
    """Stands for a generator of standard normal draws."""

    def __init__(self, draw: Callable[[int], np.ndarray]) -> None:
        self.standard_normal = draw


VOCABULARIES: dict[str, tuple[Callable[[int], np.ndarray], str]] = {
    "none": (np.zeros, "has 0 times the stated standard deviation"),
    "half": (lambda size: np.random.default_rng().standard_normal(size) / 2, "times the stated standard deviation"),
    "uniform": (lambda size: np.random.default_rng().uniform(-(3**0.5), 3**0.5, size), "is not Gaussian"),
    "seeded": (lambda size: np.random.default_rng(0).standard_normal(size), "is not fresh"),
    "one for all": (lambda size: np.full(size, np.random.default_rng().standard_normal()), "is not Gaussian"),
}


def findings(trained: Trained, vocabulary: Any) -> list[str]:
    trial, record, evidence = trained
    result, _ = judge(trial, {**record, "vocabulary": vocabulary}, evidence)  # type: ignore[typeddict-item]
    return result["findings"]


def test_an_honest_vocabulary_passes(trained: Trained) -> None:
    """The noise is not seeded: a false alarm has a probability of about 10⁻⁵."""
    noise = trained[1]["vocabulary"]["noise"]
    assert set(noise) == {"drawn", "published", "probed"}
    assert all(part["draws"] > 0 for part in noise.values())
    assert "heads" not in noise["drawn"]
    assert findings(trained, trained[1]["vocabulary"]) == []


@pytest.mark.parametrize("bug", VOCABULARIES)
def test_a_vocabulary_with_wrong_noise_fails(
    trained: Trained, bug: str, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, words = VOCABULARIES[bug]
    truly = PartitionSelection.select

    def broken(self: PartitionSelection, counts: np.ndarray, rng: Any = None, *, at_least: float = 0) -> Selected:
        return truly(self, counts, Broken(draw), at_least=at_least)  # type: ignore[arg-type]

    monkeypatch.setattr(PartitionSelection, "select", broken)
    found = findings(trained, private_vocabulary(tmp_path / "raw").vocabulary)
    assert any(words in finding for finding in found), found


def test_exact_counts_that_are_published_fail(
    trained: Trained, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The selection is by noisy counts, but ids follow from the order of exact ones."""
    truly = PartitionSelection.select

    def leaking(self: PartitionSelection, counts: np.ndarray, rng: Any = None, *, at_least: float = 0) -> Selected:
        selected = truly(self, counts, rng, at_least=at_least)
        return selected._replace(noisy_counts=counts[selected.kept].astype(np.float64))

    monkeypatch.setattr(PartitionSelection, "select", leaking)
    found = findings(trained, private_vocabulary(tmp_path / "raw").vocabulary)
    assert any("the noise of the published counts has 0 times" in finding for finding in found), found


def test_a_vocabulary_that_was_not_measured_fails(trained: Trained) -> None:
    facts = {name: value for name, value in trained[1]["vocabulary"].items() if name != "noise"}
    assert findings(trained, facts) == ["the noise of the private vocabulary was not measured"]


def without_noise(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return np.bincount(np.minimum(counts, most).astype(np.int64), minlength=most + 1)


def halved(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return noisy_histogram(counts, most, epsilon=2 * epsilon, rng=rng)


def stale(counts: np.ndarray, most: int, *, epsilon: float, rng: np.random.Generator) -> np.ndarray:
    return noisy_histogram(counts, most, epsilon=epsilon, rng=np.random.default_rng(0))


@pytest.mark.parametrize(
    ("bug", "words"),
    [(without_noise, "is not what ε = 0.2 needs"), (halved, "is not what ε = 0.2 needs"), (stale, "is not fresh")],
)
def test_a_histogram_with_wrong_noise_fails(
    bug: Any, words: str, own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks.training.noisy_labels, "noisy_histogram", bug)
    prepared = make_prepared(tmp_path / "raw")
    trial = label_trial(prepared, **KINDS["bins"])
    result, _ = judge(trial, *run_once(trial, prepared))  # type: ignore[arg-type]
    assert any(words in finding for finding in result["findings"]), result["findings"]
