"""The trainings of a night: within the budget together, audited alone, and planned at what they will cost."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dp_core.accounting.mechanism import MechanismRecord, compose
from dp_core.partition_selection import VOCABULARY_SHARE_OF_DELTA, PartitionSelection
from tasks.config.loading import Config, load_config
from tasks.config.nightly import Nightly
from tasks.config.pipeline import PrivateGrid
from tasks.data.prepared import Prepared
from tasks.privacy.cached_accounting import epsilon_of
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.night_trials import night_trials, planned_records
from tasks.training.trial import Trial
from tests.support.trials import make_prepared


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One home for the module: the accounting's answers are shared."""
    monkeypatch.setenv("DP_ADS_HOME", str(home))


@pytest.fixture
def prepared(home: Path) -> Prepared:
    return tiny(home)


@functools.cache
def tiny(home: Path) -> Prepared:
    return make_prepared(home / "raw", vocabulary="hash", vocabulary_buckets=32)


def configured(epsilon: float = 2.0, delta: float | None = None, **changes: Any) -> Config:
    """The repo's configuration with an entry ``tiny`` of the tiny dataset; ``changes`` are keys of its grid."""
    grid = {"optimizer": "sgd", "learning_rate": 0.1, "batch_size": 100, "epochs": 1, "l2_clip_norm": 1.0, **changes}
    entry = Nightly(
        dataset="tiny_clicks",
        task="pcvr",
        profile="smoke",
        schedule="0 3 * * *",
        window_days=1,
        epsilon=epsilon,
        delta=delta,
        dp_sgd=PrivateGrid.model_validate(grid),
        total={"epsilon": 100, "delta": 1e-6},
    )
    return load_config().model_copy(update={"nightly": {"tiny": entry}})


def window(prepared: Prepared, rows: int, vocabulary_epsilon: float | None) -> Prepared:
    """Returns prepared data that says to have that many training rows, and a private vocabulary. It has no arrays."""
    facts: dict[str, Any] = {"kind": "hash", "buckets": 32}
    if vocabulary_epsilon is not None:
        delta = VOCABULARY_SHARE_OF_DELTA / rows
        chosen = PartitionSelection.calibrated(epsilon=vocabulary_epsilon, delta=delta, columns=3)
        facts = {"kind": "private", "epsilon": vocabulary_epsilon, "draw": "one", **chosen._asdict()}
    splits: Any = {**prepared.splits, "train": {**prepared.splits["train"], "rows": rows}}
    return dataclasses.replace(prepared, splits=splits, vocabulary=facts)


def check_budget(
    prepared: Prepared, rates: int, rows: int, batch: int, epsilon: float, vocabulary: float | None, sampler: str
) -> None:
    """All trainings together are within the night's budget and use nearly all of it, and each is within its own."""
    data = window(prepared, rows, vocabulary)
    config = configured(
        epsilon, learning_rate=[0.1 * k for k in range(1, rates + 1)], batch_size=batch, epochs=2, sampler=sampler
    )
    trials = night_trials(config, "tiny", data)
    records = planned_records(trials, data)
    assert len(records) == len({trial.key for trial in trials}) == rates
    # One draw of a vocabulary, which all trainings share and which counts once.
    (released,) = {record.vocabulary for record in records}
    assert (released is None) == (vocabulary is None)
    together = compose(records).epsilon_bound(1 / rows)
    assert 0.99 * epsilon <= together.epsilon <= epsilon
    for trial, record in zip(trials, records, strict=True):
        alone = epsilon_of(record, trial.target_delta).epsilon
        assert trial.epsilon is not None
        assert alone <= trial.epsilon <= epsilon
        assert rates == 1 or trial.epsilon <= 1.02 * alone


@pytest.mark.parametrize(
    ("rates", "rows", "batch", "epsilon", "vocabulary", "sampler"),
    [
        (1, 3_000, 64, 8.0, 0.4, "poisson"),
        (3, 80_000, 2048, 1.0, None, "poisson"),
        (6, 3_000, 2048, 0.5, 0.1, "shuffle"),
    ],
)
def test_all_trainings_of_a_night_are_within_its_budget(
    prepared: Prepared, rates: int, rows: int, batch: int, epsilon: float, vocabulary: float | None, sampler: str
) -> None:
    check_budget(prepared, rates, rows, batch, epsilon, vocabulary, sampler)


@pytest.mark.nights
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rates=st.integers(1, 40),
    rows=st.sampled_from([3_000, 80_000]),
    batch=st.sampled_from([256, 2048]),
    epsilon=st.sampled_from([0.5, 1.0, 8.0, 30.0]),
    vocabulary=st.sampled_from([None, 0.1, 0.4]),
    sampler=st.sampled_from(["poisson", "poisson", "poisson", "shuffle", "balls_in_bins"]),
)
def test_any_night_is_within_its_budget(prepared: Prepared, **night: Any) -> None:
    check_budget(prepared, **night)


@pytest.mark.nights
@pytest.mark.parametrize("clipping", ["fixed", "adaptive"])
def test_planned_records_cost_what_trainings_cost(prepared: Prepared, clipping: str) -> None:
    """A training of two passes its own audit. Its plan costs at least as much, and at most 1 % more.

    ``make test`` has the same of one training, in test_warm_start.py, which trains one anyway.
    """
    trial, other = night_trials(configured(learning_rate=[0.1, 0.2], clipping=clipping), "tiny", prepared)
    run_trial(trial, prepared)
    finished = FinishedTrial.open(trial)
    assert finished.evidence is not None
    result, statement = judge(trial, finished.record, finished.evidence)
    assert result["verdict"] == "passed", result["findings"]
    assert result["epsilon"] is not None
    assert result["epsilon"] <= (trial.epsilon or 0) < 2.0
    assert "**none**" not in statement
    ran, planned = finished.mechanism, planned_records([trial, other], prepared)
    assert isinstance(ran, MechanismRecord)
    assert dataclasses.replace(planned[0], **_rounded(ran)) == ran
    assert planned[0].truncation_delta() >= ran.truncation_delta()
    delta = trial.target_delta
    assert (
        epsilon_of(ran, delta).epsilon <= epsilon_of(planned[0], delta).epsilon <= 1.01 * epsilon_of(ran, delta).epsilon
    )
    # The other one has the same mechanism.
    spent, reserved = epsilon_of([ran, ran], delta).epsilon, epsilon_of(planned, delta).epsilon
    assert spent <= reserved <= min(2.0, 1.01 * spent)


def _rounded(record: MechanismRecord) -> dict[str, Any]:
    """What a plan may have slightly smaller than the record: noise, and how far it reaches."""
    names = ("noise_multiplier", "count_noise_multiplier", "noise_support")
    return {name: getattr(record, name) for name in names}


def test_a_night_is_secret_and_starts_where_it_is_told(prepared: Prepared) -> None:
    config = configured(learning_rate=[0.1, 0.2], l2_clip_norm=[1, 3])
    trials = night_trials(config, "tiny", prepared, start_from="0123456789abcdef")
    assert len(trials) == 4
    assert {(trial.learning_rate, trial.l2_clip_norm) for trial in trials} == {(0.1, 1), (0.1, 3), (0.2, 1), (0.2, 3)}
    for trial in trials:
        assert (trial.randomness, trial.canaries, trial.seed, trial.mechanism) == ("secret", 0, 0, "dp_sgd")
        assert (trial.start_from, trial.task, trial.dataset) == ("0123456789abcdef", "pcvr", "tiny_clicks")
        assert trial.model.layers == config.profile("smoke").hidden_layers
        assert Trial.model_validate(trial.model_dump(mode="json")) == trial
    assert night_trials(config, "tiny", prepared) == [t.model_copy(update={"start_from": None}) for t in trials]


def test_delta_is_at_most_one_over_n(prepared: Prepared) -> None:
    (trial,) = night_trials(configured(delta=0.1), "tiny", prepared)
    assert (trial.target_delta, trial.epsilon) == (1 / prepared.splits["train"]["rows"], 2.0)
    (less,) = night_trials(configured(delta=1e-5), "tiny", prepared)
    assert less.target_delta == 1e-5
    assert (less.noise_multiplier or 0) > (trial.noise_multiplier or 0)


def test_a_night_that_cannot_be_is_refused(prepared: Prepared) -> None:
    with pytest.raises(
        UserError, match=r"nightly\.tiny\.dp_sgd\.batch_size: a batch of 9,999 is larger than the 2,400"
    ):
        night_trials(configured(batch_size=9999), "tiny", prepared)
    with pytest.raises(UserError, match=r"nightly\.tiny\.epsilon: the private vocabulary's 2 leaves nothing"):
        night_trials(configured(), "tiny", window(prepared, 3000, 2.0))
    with pytest.raises(UserError, match=r"nightly\.tiny\.delta: the private vocabulary uses up"):
        night_trials(configured(delta=1e-9), "tiny", window(prepared, 3000, 0.5))
    with pytest.raises(UserError, match="has 101 combinations of settings"):
        night_trials(configured(learning_rate=[0.01 * k for k in range(1, 102)]), "tiny", prepared)
    with pytest.raises(UserError, match="nightly"):
        night_trials(configured(), "mine", prepared)
