"""The audit would catch us: trainers that are broken on purpose fail it, and the correct one passes.

Each bug is planted in the code that trains. The record that the run leaves is what the code believes it
did, which is right by every number in it.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tasks.training.loop
import tasks.training.setup
from dp_core.accounting.mechanism import MechanismRecord
from dp_core.sampling import PoissonSampler, Sampler, ShuffledSampler, make_sampler
from dp_core.training.step import Hyperparameters, as_traced
from tasks.data.prepared import Prepared
from tasks.privacy.verdict import judge
from tasks.runtime.home import read_json
from tasks.training.loop import run_trial
from tests.planted.audited import audited, findings, private_trial
from tests.planted.bugs import BUGS as FIRST_BUGS
from tests.planted.bugs import STEP
from tests.planted.more_bugs import MORE_BUGS
from tests.planted.planting import plant
from tests.support.trials import make_prepared

BUGS = {**FIRST_BUGS, **MORE_BUGS}
CANARIES = 1000


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("planted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"seed": 1},
        {"seed": 2},
        {"canaries": CANARIES},
        {"sampler": "balls_in_bins"},
        {"sampler": "shuffle"},
        {"clipping": "automatic"},
        {"clipping": "adaptive", "clip_quantile": 0.5},
        {"microbatch_size": 4, "sensitivity": "proven"},
        {"task": "pconvs"},
    ],
)
def test_the_correct_trainer_passes(prepared: Prepared, changes: dict[str, Any]) -> None:
    """A false alarm has a probability of about 10⁻⁵, and 10⁻³ with canaries; the seeds are fixed."""
    result = audited(private_trial(prepared, **changes), prepared)
    assert result["findings"] == []
    assert (result["attack"] is not None) == ("canaries" in changes)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(prepared: Prepared, planted: pytest.MonkeyPatch, name: str) -> None:
    bug = BUGS[name]
    plant(planted, bug.where, bug.old, bug.new)
    trial = private_trial(prepared, seed=30, **bug.changes)
    assert bug.says in findings(audited(trial, prepared, physical_batch_size=bug.physical_batch_size))


def test_a_program_that_was_probed_is_probed_with_the_numbers_of_every_trial(
    prepared: Prepared, planted: pytest.MonkeyPatch
) -> None:
    """The bug shows at the second trial's clip norm alone. Both have one compiled program."""
    plant(
        planted,
        f"{STEP}:noisy_update",
        "jnp.where(hyper.noise_multiplier > 0, deviation",
        "jnp.where((hyper.noise_multiplier > 0) & (state.l2_clip_norm < 0.3), deviation",
    )
    assert audited(private_trial(prepared, seed=33), prepared)["findings"] == []
    found = findings(audited(private_trial(prepared, seed=33, l2_clip_norm=0.4), prepared))
    assert "the step without examples does not add the noise" in found


RESTORE = "tasks.training.checkpoint:_read"
RESUMED = "return jax.tree.unflatten(structure, stored), progress"


@pytest.mark.parametrize(
    ("where", "old", "new", "says"),
    [
        (RESTORE, RESUMED, f"progress.steps -= 5; {RESUMED}", "48 steps are recorded, but the model has taken 53"),
        (
            "tasks.training.setup:set_up",
            "saved, progress = checkpoint.restore(state)",
            "saved, progress = checkpoint.restore(state); state = placement.put(saved); progress = Progress()",
            "ran out of turn",
        ),
        (
            "tasks.training.setup:set_up",
            "saved, progress = checkpoint.restore(state)",
            "saved, _ = checkpoint.restore(state); progress = Progress(); "
            "state = placement.put(saved._replace(step=0 * saved.step))",
            "the run began at step 0 with a state that is not the initial one",
        ),
        (RESTORE, RESUMED, f"stored[1] = stored[1] + 0.01; {RESUMED}", "with a state that is not the saved one"),
        (
            "tasks.training.loop:_finish",
            "released = jax.tree.map(np.asarray, run.trainer.release(state))",
            "released = jax.tree.map(lambda leaf: np.asarray(leaf) * 1.001, run.trainer.release(state))",
            "the released parameters are not those of the last step",
        ),
    ],
)
def test_an_interruption_hides_nothing(
    prepared: Prepared, planted: pytest.MonkeyPatch, where: str, old: str, new: str, says: str
) -> None:
    """Interrupted at a checkpoint, and resumed with less, with other or with all of what was saved."""
    trial = private_trial(prepared, seed=31)
    shutil.rmtree(trial.folder, ignore_errors=True)
    run_trial(trial, prepared, stop_after=20)
    plant(planted, where, old, new)
    assert says in findings(audited(trial, prepared))


def test_an_interrupted_run_passes(prepared: Prepared) -> None:
    for randomness, sampler in (("seeded", "poisson"), ("secret", "poisson"), ("secret", "balls_in_bins")):
        trial = private_trial(prepared, seed=32, randomness=randomness, sampler=sampler)
        for stop in (7, 20, 21):
            run_trial(trial, prepared, stop_after=stop)
        assert audited(trial, prepared)["findings"] == []


def test_shuffled_batches_that_are_recorded_as_poisson(prepared: Prepared, planted: pytest.MonkeyPatch) -> None:
    @dataclasses.dataclass(frozen=True)
    class SaysPoisson(PoissonSampler):
        def indices(self, step: int, rng: np.random.Generator) -> np.ndarray:
            size = self.expected_batch_size
            return ShuffledSampler(self.examples, size, size, self.entropy).indices(step, rng)

    def lying(*arguments: Any, **options: Any) -> Sampler:
        return SaysPoisson(**dataclasses.asdict(make_sampler(*arguments, **options)))

    planted.setattr(tasks.training.setup, "make_sampler", lying)
    found = findings(audited(private_trial(prepared, seed=15), prepared))
    assert "sizes of the batches vary with a standard deviation of 0.00" in found
    assert "watched examples were in 2.00 ± 0.00 batches" in found


def test_a_run_without_noise_that_is_recorded_with_noise(prepared: Prepared, planted: pytest.MonkeyPatch) -> None:
    """A run with σ near 0 memorises the canaries but records σ = 1: guessing at the canaries shows more than the record
    allows. (The probe of the step would catch it too, and is left out here.)"""

    def silenced(hyper: Hyperparameters) -> Hyperparameters:
        return as_traced(hyper._replace(noise_multiplier=1e-6))

    truly = tasks.training.loop._mechanism_record

    def as_if(*arguments: Any) -> MechanismRecord:
        return dataclasses.replace(truly(*arguments), noise_multiplier=1.0)

    planted.setattr(tasks.training.setup, "as_traced", silenced)
    planted.setattr(tasks.training.loop, "_mechanism_record", as_if)
    trial = private_trial(prepared, seed=16, canaries=CANARIES, noise_multiplier=1.0)
    result = audited(trial, prepared)
    assert "guesses at canaries were correct" in findings(result)
    assert "of the program were" in findings(result)
    assert result["attack"]["correct"] > 0.85 * result["attack"]["guesses"]
    # At the trial's own δ, which is large for so few examples, the attack shows slightly less.
    assert result["attack"]["epsilon_lower"] > 0.5

    evidence = {**read_json(trial.folder / "evidence.json"), "probe": None, "replays": None}
    alone, _ = judge(trial, {**read_json(trial.folder / "record.json"), "test_loss": None}, evidence)
    assert len(alone["findings"]) == 1
    assert "guesses at canaries were correct" in alone["findings"][0]
