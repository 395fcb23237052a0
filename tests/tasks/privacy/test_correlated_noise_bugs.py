"""Correlated noise under the audit: the correct trainer passes, and bugs of noise, parts and accounting are found."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.privacy.verdict import judge
from tasks.runtime.home import read_json
from tasks.training.loop import run_trial
from tests.planted.audited import audited, findings, private_trial
from tests.planted.bugs import NOISE
from tests.planted.planting import plant
from tests.support.trials import make_prepared

BANDS = 4
RULE, SETUP = "dp_core.training.correlated:with_correlated_noise", "tasks.training.setup"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("correlated")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.mark.parametrize(
    "changes",
    [
        {"bands": 24, "optimizer": "adam", "learning_rate": 0.01},
        {"clipping": "adaptive", "clip_quantile": 0.5, "canaries": 200},
        {"microbatch_size": 4, "sensitivity": "proven", "randomness": "secret"},
    ],
)
def test_the_correct_trainer_passes(prepared: Prepared, changes: dict[str, Any]) -> None:
    """A false alarm has a probability of about 10⁻⁵, and 10⁻³ with canaries; the seeds are fixed but for one."""
    result = audited(private_trial(prepared, **{"bands": BANDS, **changes}), prepared)
    assert result["findings"] == []
    assert 0.99 * 2.0 < result["epsilon"] <= 2.0


def test_a_partial_training_of_fewer_steps_than_bands(prepared: Prepared) -> None:
    """The short trainings of ``search: halving`` keep the noise and the bands of the whole one."""
    whole = private_trial(prepared, bands=BANDS)
    result = audited(whole.model_copy(update={"epochs": whole.batch_size * (BANDS - 1) / 2400}), prepared)
    assert result["findings"] == []
    assert result["epsilon"] < 2.0


BUGS: dict[str, tuple[str, str, str, str]] = {
    "a history that is shifted by one": (
        RULE,
        "jnp.mod(state.drawn - 1 - jnp.arange",
        "jnp.mod(state.drawn - jnp.arange",
        NOISE,
    ),
    "coefficients with the other sign": (RULE, "(fresh - past) / first", "(fresh + past) / first", NOISE),
    "history of the fresh draws": (RULE, ".set(noise)", ".set(fresh)", NOISE),
    "columns that overlap": (
        f"{SETUP}:_method",
        "toeplitz_coefficients(min(trial.bands, steps), steps)",
        "toeplitz_coefficients(2 * trial.bands, steps)",
        "its contributions overlap",
    ),
    "correlated noise for independent batches": (
        f"{SETUP}:set_up",
        "bands=trial.bands,",
        "bands=1,",
        "its contributions overlap",
    ),
    "more parts than bands in the accounting": (
        f"{SETUP}:set_up",
        "bands=trial.bands,",
        "bands=2 * trial.bands,",
        "bands is 4 in the trial, but 8 is recorded",
    ),
    "accounted for as another number of bands": (
        "tasks.training.loop:_mechanism_record",
        "bands=sampler.parts if",
        "bands=2 if",
        "bands is 4 in the program that ran, but 2 is recorded",
    ),
    "the parts in another order": (
        "dp_core.cyclic_sampling:CyclicPoissonSampler.indices",
        "number = step % self.parts",
        "number = (step // 2) % self.parts",
        "more than one of the 4 parts",
    ),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(prepared: Prepared, planted: pytest.MonkeyPatch, name: str) -> None:
    where, old, new, says = BUGS[name]
    plant(planted, where, old, new)
    result = audited(private_trial(prepared, seed=30, bands=BANDS), prepared)
    assert result["verdict"] == "failed"
    assert says in "; ".join(result["findings"])


def test_an_interrupted_run_ends_with_the_same_model(prepared: Prepared) -> None:
    """The history is in the checkpoint, so a run that is resumed adds the noise that an uninterrupted one adds."""
    trial = private_trial(prepared, seed=31, bands=BANDS)
    once = audited(trial, prepared)
    released = read_json(trial.folder / "evidence.json")["released"]
    shutil.rmtree(trial.folder)
    run_trial(trial, prepared, hardware=Hardware(), stop_after=17)
    run_trial(trial, prepared, hardware=Hardware())
    evidence = read_json(trial.folder / "evidence.json")
    assert len(evidence["attempts"]) == 2
    assert evidence["released"] == released
    result, statement = judge(trial, read_json(trial.folder / "record.json"), evidence)
    assert (result["findings"], result["epsilon"]) == ([], once["epsilon"])
    assert "correlated over 4 steps" in statement


def test_a_history_that_the_checkpoint_forgets_is_found(prepared: Prepared, planted: pytest.MonkeyPatch) -> None:
    plant(
        planted,
        f"{SETUP}:set_up",
        "state = placement.put(saved)",
        "state = placement.put(saved._replace(update_state=saved.update_state._replace("
        "ring=0 * saved.update_state.ring)))",
    )
    trial = private_trial(prepared, seed=32, bands=BANDS)
    run_trial(trial, prepared, hardware=Hardware(), stop_after=17)
    run_trial(trial, prepared, hardware=Hardware())
    result, _ = judge(trial, read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json"))
    assert "with a state that is not the saved one" in findings(result)
