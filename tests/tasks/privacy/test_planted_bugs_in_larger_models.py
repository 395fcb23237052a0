"""The planted bugs again, in models of the size that people train: 26 tables, batches of 2,048.

In a tiny model one coordinate is a large part of the whole. `make test` plants some of the bugs here, `make planted`
all of them, and some in the paper's model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dp_core.models.spec import MLPSpec
from tasks.config.loading import load_config
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.logs.synthetic import generate
from tests.planted.audited import audited, findings, private_trial
from tests.planted.bugs import BUGS as FIRST_BUGS
from tests.planted.bugs import CLIPPING, DEVIATION, FULL, NOISE, WHOLE
from tests.planted.more_bugs import EXAMPLES, MORE_BUGS
from tests.planted.more_bugs import NOISE as SINGLE_NOISE
from tests.planted.planting import plant

BUGS = {**FIRST_BUGS, **MORE_BUGS}
ROWS, BATCH_SIZE, PIECE = 40_000, 2048, 512
QUICK, PAPER = MLPSpec(hidden_layers=(64, 32)), MLPSpec(hidden_layers=(598,) * 4)
# Conditions that hold for a part of these examples and batches, in place of those for the tiny ones.
CONDITIONS = {
    "one example in a hundred is not clipped": (
        "(batch.integers[:, 0] * 1000 % 100).astype(int) == 7",
        "jnp.sum(batch.categoricals, axis=1) % 100 == 7",
    ),
    "large integers are not clipped": ("> 6.89", "> 2.5"),
    "batches of 90 to 100 rows are not clipped": ("> 90) & (jnp.sum(mask) < 100)", "> 1900) & (jnp.sum(mask) < 2100)"),
}
# Runs of the probe that look at the same part. Which of them sees a defect first depends on the model.
SAME_PART = (
    (CLIPPING, FULL, EXAMPLES, WHOLE),
    (NOISE, SINGLE_NOISE, WHOLE, DEVIATION, "the noise"),
)
IN_THE_PAPERS_MODEL = ("only row 0 is clipped", "no noise on biases", "divided by the realised batch size")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("larger")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        raw = generate("display", ROWS, 2023)
        yield open_prepared(prepare("display", load_config().dataset("synthetic_display"), raw, min_count=10))


def trial_options(**changes: Any) -> dict[str, Any]:
    own = {"task": "pctr", "dataset": "display", "model": QUICK, "evaluations": 2, "l2_clip_norm": 0.5}
    return {"batch_size": BATCH_SIZE, "epochs": 4, **own, **changes}


def cases() -> list[Any]:
    quick = [
        pytest.param(name, QUICK, id=name, marks=[] if number % 16 == 5 else pytest.mark.soak)
        for number, name in enumerate(BUGS)
    ]
    paper = [pytest.param(name, PAPER, id=f"{name}, paper", marks=pytest.mark.soak) for name in IN_THE_PAPERS_MODEL]
    return quick + paper


@pytest.mark.parametrize("model", [QUICK, pytest.param(PAPER, marks=pytest.mark.soak)], ids=["quick", "paper"])
def test_the_correct_trainer_passes(prepared: Prepared, model: MLPSpec) -> None:
    trial = private_trial(prepared, **trial_options(model=model))
    assert audited(trial, prepared, physical_batch_size=PIECE)["findings"] == []


@pytest.mark.parametrize(("name", "model"), cases())
def test_a_planted_bug_is_found(prepared: Prepared, planted: pytest.MonkeyPatch, name: str, model: MLPSpec) -> None:
    bug = BUGS[name]
    plant(planted, bug.where, bug.old, bug.new.replace(*CONDITIONS.get(name, ("", ""))))
    trial = private_trial(prepared, **trial_options(seed=30, model=model, **bug.changes))
    rows = "auto" if bug.physical_batch_size == "auto" else PIECE
    found = findings(audited(trial, prepared, physical_batch_size=rows))
    says = next((part for part in SAME_PART if bug.says in part), (bug.says,))
    assert any(words in found for words in says), found
