"""Groups of trials that share a program: each program is compiled once, and no trial is lost."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.training.setup
from dp_core.models.spec import DLRMSpec
from dp_core.training.method import Method
from dp_core.training.step import Trainer, make_trainer
from tasks.data.prepared import Prepared
from tasks.training.groups import _NOT_COMPILED, MOST_TRIALS_IN_A_GROUP, in_groups, program_of
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.trials import label_trial, make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """The trainers that trials get, starting from an empty cache."""
    make_trainer.cache_clear()
    trainers: list[Trainer] = []

    def noted(method: Method) -> Trainer:
        trainers.append(make_trainer(method))
        return trainers[-1]

    monkeypatch.setattr(tasks.training.setup, "make_trainer", noted)
    return trainers


def item(trial: Trial, number: int) -> dict[str, Any]:
    return {"number": number, "name": trial.label(), "trial": trial.model_dump(mode="json")}


def compiled(trainer: Trainer) -> int:
    """Returns how many programs were compiled for a trainer's steps and predictions."""
    return trainer.run._cache_size() + trainer.predict._cache_size()  # type: ignore[attr-defined]


def test_what_is_given_does_not_compile_another_program(prepared: Prepared, made: list[Trainer]) -> None:
    """Two private trials that differ in as many program arguments as can differ at once."""
    first = make_trial(prepared, clipping="adaptive", clip_quantile=0.5, microbatch_size=4, sensitivity="proven")
    changes = {
        "epsilon": 3.0,
        "accountant": "RDP",
        "noise_multiplier": 0.7,
        "l2_clip_norm": 3.0,
        "clip_quantile": 0.9,
        "sensitivity": "paper",
        "learning_rate": 0.03,
        "learning_rate_per": "clip_norm",
        "evaluations": 2,
        "seed": 4,
        "averaging_share": 0.25,
        "warmup": 0.1,
        "weight_decay": 0.01,
        "initial_bias": "label_rate",
        "initial_bias_epsilon": 0.5,
    }
    second = first.model_copy(update=changes)
    # A warm start is in test_warm_start.py.
    others = {"target_delta", "response", "debias", "largest_count", "start_from"}
    others |= {"recalibration", "recalibration_epsilon"}
    assert _NOT_COMPILED - set(changes) == others | {"sampled_like"}
    assert program_of(first) == program_of(second)
    for trial in (first, second):
        run_trial(trial, prepared)
    assert made[0] is made[1]
    assert compiled(made[0]) == 2, "one for the steps and one for predictions"


def test_labels_after_randomised_response_are_trained_on_by_the_baselines_program(
    prepared: Prepared, made: list[Trainer]
) -> None:
    counts: dict[str, Any] = {"task": "pconvs", "largest_count": 5, "learning_rate": 0.02}
    trials = [
        without_privacy(prepared, task="pconvs"),
        label_trial(prepared, **counts, response="k_ary", debias=True),
        label_trial(prepared, **counts, response="bins", epsilon=5.0, seed=3, randomness="secret"),
    ]
    assert len({program_of(trial) for trial in trials}) == 1
    for trial in trials:
        run_trial(trial, prepared)
    assert len(set(map(id, made))) == 1
    assert compiled(made[0]) == 2


def test_all_else_is_another_program(prepared: Prepared) -> None:
    """Every field of a trial is a program argument or changes the group: none is forgotten."""
    first = make_trial(prepared)
    others: dict[str, Any] = {
        "task": "pconvs",
        "dataset": "others",
        "data_fingerprint": "other",
        "sampler": "shuffle",
        "randomness": "secret",
        "clipping": "automatic",
        "microbatch_size": 4,
        "optimizer": "adam",
        "momentum": 0.5,
        "batch_size": 200,
        "epochs": 3,
        "model": DLRMSpec(hidden_layers=(8,)),
        "canaries": 10,
        "averaging": "tail",
        "bands": 2,
        "table_updates": "lazy",
    }
    assert set(others) | _NOT_COMPILED | {"mechanism"} == set(Trial.model_fields)
    programs = {program_of(first), *(program_of(first.model_copy(update={key: others[key]})) for key in others)}
    assert len(programs) == 1 + len(others)
    assert program_of(without_privacy(prepared)) != program_of(first)


@pytest.mark.parametrize("change", [{"clipping": "automatic"}, {"optimizer": "adam"}, {"batch_size": 200}], ids=str)
def test_another_program_is_really_compiled(prepared: Prepared, made: list[Trainer], change: dict[str, Any]) -> None:
    for trial in (make_trial(prepared), make_trial(prepared, **change)):
        run_trial(trial, prepared)
    total = sum(trainer.run._cache_size() for trainer in set(made))  # type: ignore[attr-defined]
    assert total == 2


@pytest.mark.parametrize("count", [1, 23, 24, 25, 48, 49, 100])
def test_groups_are_cut(prepared: Prepared, count: int) -> None:
    assert MOST_TRIALS_IN_A_GROUP == 24
    groups = in_groups(item(make_trial(prepared, seed=seed), seed + 1) for seed in range(count))
    sizes = [len(group["items"]) for group in groups]
    assert sizes == [24] * (count // 24) + ([count % 24] if count % 24 else [])
    assert len({group["name"] for group in groups}) == len(groups)
    assert ("part 1 of" in groups[0]["name"]) == (count > 24)


def test_nothing_is_lost_or_doubled_and_the_plans_order_is_kept(prepared: Prepared) -> None:
    """Two hundred random trials are grouped as a simple loop groups them."""
    rng = np.random.default_rng(2)
    makers = [make_trial, without_privacy, label_trial]
    trials = [
        makers[rng.integers(3)](prepared, batch_size=int(rng.choice([100, 200])), seed=number) for number in range(200)
    ]
    items = [item(trial, number) for number, trial in enumerate(trials, 1)]
    groups = in_groups(items)
    found = Counter(one["number"] for group in groups for one in group["items"])
    assert found == Counter(range(1, 201))
    for group in groups:
        assert len(group["items"]) <= MOST_TRIALS_IN_A_GROUP
        programs = [program_of(trials[one["number"] - 1]) for one in group["items"]]
        assert [key for key, _ in groupby(programs)] == list(dict.fromkeys(programs)), "each stands together"
        for program in set(programs):
            numbers = [one["number"] for one, own in zip(group["items"], programs, strict=True) if own == program]
            assert numbers == sorted(numbers)
    of_program = Counter(program_of(trial) for trial in trials)
    assert len(of_program) == 4
    assert len(groups) == sum(-(-number // 24) for number in of_program.values()), "they are too many to share"
    assert in_groups([]) == []


def test_small_programs_share_a_group(prepared: Prepared) -> None:
    """Seven programs of five trials: four fit into a group of 24."""
    trials = [make_trial(prepared, batch_size=100 + size, seed=seed) for size in range(7) for seed in range(5)]
    groups = in_groups(item(trial, number) for number, trial in enumerate(trials, 1))
    assert [[one["number"] for one in group["items"]] for group in groups] == [[*range(1, 21)], [*range(21, 36)]]
    assert [group["name"] for group in groups] == ["pCVR · DP-SGD · sgd · 20 trials", "pCVR · DP-SGD · sgd · 15 trials"]


def test_a_group_has_a_name_for_a_person(prepared: Prepared) -> None:
    trials = [
        make_trial(prepared, microbatch_size=4, sensitivity="proven", batch_size=2048),
        without_privacy(prepared),
        label_trial(prepared),
    ]
    names = [group["name"] for group in in_groups(item(trial, number) for number, trial in enumerate(trials, 1))]
    assert names == ["pCVR · sgd · 3 trials"]
    alone = [in_groups([item(trial, 1)])[0]["name"] for trial in trials]
    assert alone == [
        "pCVR · DP-SGD · sgd · batch 2,048 · microbatch 4 · 1 trial",
        "pCVR · without noise in training · sgd · batch 100 · 1 trial",
        "pCVR · without noise in training · sgd · batch 100 · 1 trial",
    ]
