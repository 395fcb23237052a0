"""Correct trainers pass the audit: over samplers, optimisers, models, clippings, pieces and states of the model.

`make test` runs a part of the trials, `make false-alarms` all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from dp_core.models.spec import DCNv2Spec, DLRMSpec, MLPSpec
from dp_core.training.optimizers import OPTIMIZERS, SCALES
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.privacy.verdict import judge
from tasks.training.loop import run_trial
from tests.support.trials import evidence_of, make_prepared, make_trial, record_of

MODELS = {
    "mlp": MLPSpec(hidden_layers=(8,)),
    "deep": MLPSpec(hidden_layers=(32, 16, 8)),
    "dcn_v2": DCNv2Spec(hidden_layers=(8,), cross_layers=2),
    "dlrm": DLRMSpec(hidden_layers=(8,), interaction_dimension=4),
}
CLIPPINGS: dict[str, dict[str, Any]] = {
    "fixed": {},
    "automatic": {"clipping": "automatic"},
    "adaptive": {"clipping": "adaptive", "clip_quantile": 0.5},
    "groups": {"microbatch_size": 4, "sensitivity": "proven"},
}
# Learning rates and clip norms at which the model hardly moves, learns, saturates, and nearly diverges.
STATES: dict[str, dict[str, Any]] = {
    "still": {"learning_rate": 1e-5, "l2_clip_norm": 1e-3},
    "learning": {"learning_rate": 0.1, "l2_clip_norm": 1.0},
    "saturated": {"learning_rate": 3.0, "l2_clip_norm": 30.0, "epochs": 12, "noise_multiplier": 0.3},
    "nearly diverged": {"learning_rate": 100.0, "l2_clip_norm": 30.0, "noise_multiplier": 0.3},
}
SAMPLERS = ("poisson", "balls_in_bins", "shuffle")


class Case(NamedTuple):
    name: str
    changes: dict[str, Any]
    rows: int | None


def cases() -> list[Case]:
    """Every optimiser with every model, clipping and state; samplers, tasks, pieces and randomness take turns."""
    found = []
    product = itertools.product(OPTIMIZERS, MODELS, CLIPPINGS, STATES)
    for number, (optimizer, model, clipping, state) in enumerate(product):
        # Two thirds of them: each triple of the four settings is there.
        if (number + number // 4 + number // 16) % 3 == 0:
            continue
        if optimizer in SCALES and clipping == "groups":
            # Refused: gradients are scaled one by one.
            continue
        sampler, task = SAMPLERS[number % 3], ("pcvr", "pconvs")[number % 2]
        changes = {**CLIPPINGS[clipping], **STATES[state], "optimizer": optimizer, "model": MODELS[model]}
        changes |= {"sampler": sampler, "task": task, "seed": number, "epsilon": 1e4}
        changes |= {"randomness": "secret"} if number % 4 == 0 else {}
        # Adaptive optimisers scale gradients themselves.
        changes["learning_rate"] *= 1.0 if optimizer == "sgd" else 0.1
        rows = 48 if number % 5 == 0 else None
        name = f"{optimizer}, {model}, {clipping}, {state}, {sampler}, {task}{', pieces' if rows else ''}"
        found.append(Case(name, changes, rows))
    return found


CASES = cases()
SOME = [case if number % 19 == 7 else pytest.param(case, marks=pytest.mark.soak) for number, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("alarms")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_a_correct_trainer_passes(prepared: Prepared, case: Case) -> None:
    trial = make_trial(prepared, **case.changes)
    run_trial(trial, prepared, hardware=Hardware(physical_batch_size=case.rows or "auto"))
    result, _ = judge(trial, record_of(trial), evidence_of(trial))
    assert result["findings"] == []
    assert result["verdict"] in ("passed", "diverged")


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 200
    assert len({case.name for case in CASES}) == len(CASES)
