"""Warm start: training from the parameters that another trial released, and what the audit sees of it."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.models.digest import parameters_digest
from dp_core.models.spec import DCNv2Spec, MLPSpec
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.privacy.cached_accounting import epsilon_of
from tasks.privacy.guarantees import no_guarantee
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tasks.training.finished import AUDIT, PARAMETERS, FinishedTrial, flat_parameters
from tasks.training.groups import program_of
from tasks.training.loop import run_trial
from tasks.training.night_trials import planned_records
from tasks.training.randomness import Randomness
from tasks.training.setup import set_up
from tasks.training.trial import Trial
from tasks.training.warm_start import start_of, starting_parameters
from tests.planted.planting import plant
from tests.support.trials import (
    evidence_of,
    label_trial,
    make_prepared,
    make_trial,
    parameters_of,
    renew_manifest,
    without_privacy,
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    """One home for the module, so that trials to start from are trained once."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(home))
        yield make_prepared(home / "raw", vocabulary="hash", vocabulary_buckets=32)


def secret(prepared: Prepared, **changes: Any) -> Trial:
    return make_trial(prepared, **{"randomness": "secret", "noise_multiplier": 2.0, "epochs": 1, **changes})


def audited(trial: Trial) -> FinishedTrial:
    """Judges a finished trial as the audit step does, and writes the verdict."""
    finished = FinishedTrial.open(trial)
    assert finished.evidence is not None
    finished.write_audit(
        *judge(trial, finished.record, finished.evidence, name=finished.public_name, start=start_of(trial))
    )
    return finished


def champion(prepared: Prepared, seed: int = 0) -> Trial:
    """A secret trial that passed its audit, trained once."""
    trial = secret(prepared, seed=seed)
    if not trial.folder.exists():
        run_trial(trial, prepared)
        assert no_guarantee(audited(trial)) is None
    return trial


# Keys, programs and noise of trials on made-up data, from before there was a warm start.
@pytest.mark.parametrize(
    ("make", "changes", "key", "program", "noise_key"),
    [
        (make_trial, {}, "f9700c9f7af6ec08", "a99a6bf444d50270", [4095918486, 169279203]),
        (make_trial, {"randomness": "secret"}, "baa4bb5f575a0061", "5f16b716a89c7c36", None),
        (without_privacy, {}, "365a2a9b58f88d7a", "e3a4389455fc392a", [759992651, 1749553917]),
        (label_trial, {}, "de182f2288335926", "e3a4389455fc392a", [2006658249, 3829597792]),
        (
            make_trial,
            {"canaries": 5, "sampler": "shuffle"},
            "6a1aee0314f69aba",
            "a52a84bcec23939d",
            [4131066787, 3614303782],
        ),
    ],
)
def test_a_trial_without_a_warm_start_is_what_it_was(
    make: Any, changes: dict[str, Any], key: str, program: str, noise_key: list[int] | None
) -> None:
    trial = make(SimpleNamespace(fingerprint="0123", splits={"train": {"rows": 2400}}), **changes)
    assert (trial.key, program_of(trial)) == (key, program)
    assert "start_from" not in {**trial.flat_settings(), **trial.model_dump(), **trial.model_dump(mode="json")}
    assert Trial.model_validate(trial.model_dump(mode="json")) == trial
    if noise_key is not None:
        assert np.asarray(jax.random.key_data(Randomness.for_trial(trial).noise_key)).tolist() == noise_key
    warm = trial.model_copy(update={"start_from": "0123456789abcdef"})
    assert (warm.key != key, program_of(warm), warm.flat_settings()["start_from"]) == (True, program, warm.start_from)
    assert Trial.model_validate(warm.model_dump(mode="json")) == warm
    assert "warm start" in warm.label()


def test_training_begins_with_the_released_parameters(prepared: Prepared) -> None:
    start = champion(prepared)
    warm = secret(prepared, start_from=start.key, seed=5)
    run, state, _ = set_up(warm, prepared, Hardware(), checkpoint_seconds=60)
    fresh, _, _ = set_up(secret(prepared, seed=5), prepared, Hardware(), checkpoint_seconds=60)
    released = parameters_of(start)
    for params in (run.initial_params, run.trainer.release(state)):
        for name, array in flat_parameters(jax.tree.map(np.asarray, params)).items():
            assert np.array_equal(array, released[name])
    assert parameters_digest(flat_parameters(fresh.initial_params)) != parameters_digest(released)
    # The optimiser has no memory of the other training.
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(state.update_state))
    assert int(state.step) == 0


def test_a_warm_started_trial_passes_the_audit(prepared: Prepared) -> None:
    start = champion(prepared)
    warm = secret(prepared, start_from=start.key)
    trainer = set_up(secret(prepared, seed=5), prepared, Hardware(), checkpoint_seconds=60)[0].trainer
    programs = trainer.run._cache_size()  # type: ignore[attr-defined]
    # Interrupted once: the checkpoint does not hold the initial parameters.
    run_trial(warm, prepared, stop_after=5)
    run_trial(warm, prepared)
    assert trainer.run._cache_size() == programs == 1, "it runs the same compiled program"  # type: ignore[attr-defined]
    finished = audited(warm)
    assert finished.audit["verdict"] == "passed", finished.audit["findings"]
    assert no_guarantee(finished) is None
    statement = finished.statement.read_text()
    assert (
        f"`{FinishedTrial.open(start).public_name}`. That costs the examples of this training nothing more" in statement
    )
    assert "the guarantees of the two models compose" in statement
    both = FinishedTrial.open(start).audit["epsilon"] + finished.audit["epsilon"]
    assert f"an example that all of them saw has at most ε = {both:.4f} at δ = {2 * warm.target_delta:.3g}" in statement
    assert start.key not in statement, "the key is a hash of the log"
    assert "Initial parameters" not in FinishedTrial.open(start).statement.read_text()
    assert "initial_parameters" not in evidence_of(start)
    # It can be started from in turn.
    assert starting_parameters(secret(prepared, start_from=warm.key), prepared, _tree(warm))


def _tree(trial: Trial) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, array in parameters_of(trial).items():
        layer, _, parameter = name.partition("/")
        tree.setdefault(layer, {})[parameter] = array
    return tree


def test_a_plan_costs_what_the_training_costs(prepared: Prepared) -> None:
    """The record that is planned for a secret training is the one that it writes, but for rounding of the noise."""
    trial = champion(prepared)
    (planned,), ran = planned_records([trial], prepared), FinishedTrial.open(trial).mechanism
    assert isinstance(ran, MechanismRecord)
    rounded = {"noise_multiplier": ran.noise_multiplier, "noise_support": ran.noise_support}
    assert dataclasses.replace(planned, **rounded) == ran
    spent, reserved = (epsilon_of(one, trial.target_delta).epsilon for one in (ran, planned))
    assert spent <= reserved <= 1.01 * spent
    assert planned.truncation_delta() >= ran.truncation_delta()


def test_the_audit_sees_a_start_from_another_model(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the parameters silently come from another trial, with a guarantee of its own."""
    start, other = champion(prepared), champion(prepared, seed=1)
    warm = secret(prepared, start_from=start.key, seed=2)
    plant(
        monkeypatch,
        "tasks.training.warm_start:starting_parameters",
        "found = finished.read_parameters()",
        f"found = FinishedTrial.open({other.key!r}).read_parameters()",
    )
    run_trial(warm, prepared)
    finished = audited(warm)
    assert finished.audit["findings"] == [
        "the initial parameters are not those of the model that the training says it started from"
    ]
    reason = no_guarantee(finished)
    assert reason is not None
    assert reason.kind == "failed"
    # The model that it really started from would be fine.
    evidence = evidence_of(warm)
    assert evidence["initial_parameters"] == parameters_digest(parameters_of(other))
    shutil.rmtree(warm.folder)


def test_the_audit_looks_at_the_start_again(prepared: Prepared) -> None:
    start = champion(prepared)
    warm = secret(prepared, start_from=start.key)
    if not warm.folder.exists():
        run_trial(warm, prepared)
    finished = FinishedTrial.open(warm)
    assert finished.evidence is not None

    def found(**changes: Any) -> list[str]:
        return judge(warm, finished.record, finished.evidence, **changes)[0]["findings"]  # type: ignore[arg-type]

    seen = start_of(warm)
    assert seen is not None
    assert found(start=seen) == []
    assert found() == ["the model that the training started from was not looked at"]
    assert found(start=seen._replace(refused="it diverged")) == [
        "the training must not start from the model that it names: it diverged"
    ]
    without = {key: value for key, value in evidence_of(warm).items() if key != "initial_parameters"}
    assert judge(warm, finished.record, without, start=seen)[0]["verdict"] == "failed"  # type: ignore[arg-type]
    gone = start_of(warm.model_copy(update={"start_from": "0123456789abcdef"}))
    assert gone is not None
    assert "no trained trial has the key" in str(gone.refused)
    assert start_of(start) is None


@pytest.mark.parametrize(
    ("changes", "audit", "said"),
    [
        ({"randomness": "seeded"}, {"verdict": "passed"}, r"has none \(seeded\): its noise came from a seed"),
        ({}, None, r"has none \(not audited\): it was not audited"),
        ({}, {"verdict": "failed"}, r"has none \(failed\): its audit failed"),
        ({"epsilon": None, "mechanism": "non_private"}, {"verdict": "passed"}, r"has none \(not private\)"),
        ({"mechanism": "label_dp"}, {"verdict": "passed"}, "it protects labels only"),
        ({"canaries": 3}, {"verdict": "passed"}, "it was trained with canaries"),
        ({"task": "pconvs"}, {"verdict": "passed"}, "it was trained for pconvs on dataset 'tiny_clicks'"),
        ({"dataset": "mine"}, {"verdict": "passed"}, "for pcvr on dataset 'mine'"),
    ],
)
def test_only_guaranteed_models_are_started_from(
    prepared: Prepared, changes: dict[str, Any], audit: dict[str, Any] | None, said: str
) -> None:
    """Training refuses before the first step; the audit would too."""
    start = _stored(prepared, changes, audit)
    warm = secret(prepared, start_from=start.key)
    with pytest.raises(UserError, match=f"cannot start from trial {start.key}.*{said}"):
        run_trial(warm, prepared)
    looked = start_of(warm)
    assert looked is not None
    assert looked.refused is not None
    shutil.rmtree(start.folder)


def _stored(prepared: Prepared, changes: dict[str, Any], audit: dict[str, Any] | None, **record: Any) -> Trial:
    """A trial of another description with the files of the champion."""
    source = champion(prepared)
    start = secret(prepared, seed=77).model_copy(update=changes)
    shutil.copytree(source.folder, start.folder)
    (start.folder / AUDIT).unlink()
    kept = json.loads((source.folder / "record.json").read_text())
    write_json(start.folder / "record.json", {**kept, "trial": start.model_dump(mode="json"), **record})
    renew_manifest(start.folder)
    if audit is not None:
        FinishedTrial.open(start).write_audit(audit, "")
    return start


def test_a_run_that_diverged_released_nothing_to_start_from(prepared: Prepared) -> None:
    start = _stored(prepared, {}, {"verdict": "diverged"}, test_loss=None)
    (start.folder / PARAMETERS).unlink()
    renew_manifest(start.folder)
    with pytest.raises(UserError, match=r"has none \(diverged\)"):
        run_trial(secret(prepared, start_from=start.key), prepared)
    shutil.rmtree(start.folder)


def test_only_dp_sgd_can_be_warm_started(prepared: Prepared) -> None:
    for trial in (without_privacy(prepared), label_trial(prepared)):
        with pytest.raises(UserError, match="only a training with DP-SGD"):
            run_trial(trial.model_copy(update={"start_from": champion(prepared).key}), prepared)
    with pytest.raises(UserError, match="no trained trial has the key"):
        run_trial(secret(prepared, start_from="0123456789abcdef"), prepared)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": MLPSpec(hidden_layers=(8, 4))},
            r"its model is mlp with hidden layers \[8\], and this one's is mlp .* \[8, 4\]",
        ),
        ({"model": DCNv2Spec(hidden_layers=(8,))}, r"its model is mlp .*, and this one's is dcn_v2"),
    ],
)
def test_another_model_does_not_fit(prepared: Prepared, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=f"its parameters do not fit: {said}"):
        run_trial(secret(prepared, start_from=champion(prepared).key, **changes), prepared)


def test_other_data_does_not_fit(prepared: Prepared, tmp_path: Path) -> None:
    start = champion(prepared)
    larger = make_prepared(tmp_path / "larger", vocabulary="hash", vocabulary_buckets=40)
    with pytest.raises(UserError, match=r"the vocabulary of column 'color' has 33 ids in it and 41 in the data"):
        run_trial(secret(larger, start_from=start.key), larger)
    counted = make_prepared(tmp_path / "counted")
    with pytest.raises(UserError, match="its vocabulary is of kind hash, and that of the data is of kind threshold"):
        run_trial(secret(counted, start_from=start.key), counted)
    # Of the same shape, but with ids that another window gave.
    then = _stored(
        prepared, {"data_fingerprint": "another window"}, {"verdict": "passed"}, vocabulary=counted.vocabulary
    )
    with pytest.raises(UserError, match="tokens had other ids: use `vocabulary: hash` or `keep_vocabulary: true`"):
        run_trial(secret(counted, start_from=then.key), counted)
    shutil.rmtree(then.folder)


def test_digests_tell_arrays_apart() -> None:
    arrays = {"a/kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "b/bias": np.zeros(2, np.float32)}
    digest = parameters_digest(arrays)
    assert parameters_digest(dict(reversed(arrays.items()))) == digest
    others = [
        {**arrays, "b/bias": np.zeros(2, np.float64)},
        {**arrays, "b/bias": np.array([0, 1e-30], np.float32)},
        {**arrays, "a/kernel": arrays["a/kernel"].reshape(3, 2)},
        {"a/kernel": arrays["a/kernel"], "c/bias": arrays["b/bias"]},
    ]
    assert len({digest, *map(parameters_digest, others)}) == 5
