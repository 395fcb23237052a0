"""The audit sees bugs in averages, decay, warm-up, private Adam and initial biases, and passes what is right."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tasks.data.prepared import Prepared
from tests.planted.audited import audited, findings, private_trial
from tests.planted.planting import plant
from tests.planted.recipe_bugs import CORRECTED, EXPONENTIAL, RATE, RECIPE_BUGS, SCALED, TAIL
from tests.support.trials import make_prepared


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.mark.parametrize(
    "changes",
    [
        {**TAIL, "warmup": 0.3, "weight_decay": 0.5},
        {**EXPONENTIAL, **CORRECTED, "task": "pconvs"},
        RATE,
        {**RATE, "task": "pconvs", "randomness": "secret"},
        {**SCALED, **TAIL, "clipping": "adaptive", "clip_quantile": 0.5},
    ],
    ids=str,
)
def test_the_correct_trainer_passes(prepared: Prepared, changes: dict[str, Any]) -> None:
    assert audited(private_trial(prepared, **changes), prepared)["findings"] == []


@pytest.mark.parametrize("name", RECIPE_BUGS)
def test_a_planted_bug_is_found(prepared: Prepared, planted: pytest.MonkeyPatch, name: str) -> None:
    bug = RECIPE_BUGS[name]
    plant(planted, bug.where, bug.old, bug.new)
    assert bug.says in findings(audited(private_trial(prepared, seed=30, **bug.changes), prepared))
