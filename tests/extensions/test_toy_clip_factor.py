"""A clip factor that is registered from outside works everywhere: training, audit, configuration, statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.audit.probe import Compiled, probe_step
from dp_core.clipping.factors import CLIP_FACTORS, register_clip_factor
from dp_core.clipping.microbatches import make_microbatches
from dp_core.training.method import Method
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters, Steps, as_traced, make_trainer
from tasks.audit import judge
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.home import read_json
from tasks.training.loop import run_trial
from tests.support.gradients import assert_close_by_layer, clipped_sum, norm, oracle_sum
from tests.support.models import make_batch, make_model, make_parameters
from tests.support.trials import make_prepared, make_trial
from tests.support.yaml_files import DP_SGD, SMALL, edit, loader, mistakes

MODEL = make_model(hidden_layers=(8,))


def smooth(norms: jax.Array, l2_clip_norm: Any) -> jax.Array:
    """C·tanh(n/C)/n: close to 1 for short gradients, and C/n for long ones."""
    positive = jnp.maximum(norms, 1e-30)
    return l2_clip_norm * jnp.tanh(positive / l2_clip_norm) / positive


def smooth_oracle(norms: Any, l2_clip_norm: Any) -> Any:
    """By tanh x = (1 − e⁻²ˣ)/(1 + e⁻²ˣ)."""
    xp = norms.__array_namespace__()
    ratio = xp.where(norms > 0, norms / l2_clip_norm, 1e-9)
    return -xp.expm1(-2 * ratio) / (1 + xp.exp(-2 * ratio)) / ratio


@pytest.fixture
def toy() -> Iterator[str]:
    """The name of a factor that is registered during one test."""
    register_clip_factor("smooth", traced=smooth, oracle=smooth_oracle, statement="smoothly shortened below norm C")
    yield "smooth"
    del CLIP_FACTORS["smooth"]
    make_trainer.cache_clear()


@pytest.mark.usefixtures("strict_types")
@pytest.mark.parametrize("microbatch_size", [1, 4])
def test_its_clipped_sum_equals_the_oracles(toy: str, microbatch_size: int) -> None:
    batch = make_batch(MODEL, 40, microbatches=make_microbatches(microbatch_size))
    params = make_parameters(MODEL, batch)
    options = {"microbatch_size": microbatch_size, "clipping": toy}
    for clip_norm in (0.05, 1.0, 30.0):
        actual = clipped_sum(MODEL, **options)(params, batch, clip_norm)
        assert_close_by_layer(actual.gradients, oracle_sum(MODEL, **options)(params, batch, clip_norm).gradients)


@pytest.mark.usefixtures("strict_types")
def test_a_trained_step_is_the_oracles_sum(toy: str) -> None:
    """One step of plain gradient descent without noise moves the parameters by the mean clipped gradient."""
    batch = make_batch(MODEL, 16)
    params = make_parameters(MODEL, batch)
    hyper = as_traced(Hyperparameters(1.0, 1e9, 10, l2_clip_norm=0.5))
    trainer = make_trainer(Method(MODEL, "pctr", "sgd", 0.0, True, clipping=toy))
    steps = Steps(jax.tree.map(lambda leaf: leaf[None, None], batch), np.ones(1, np.int32), np.int32(1))
    state, _ = trainer.run(trainer.init(params, hyper), steps, jax.random.key(0), hyper)
    moved = jax.tree.map(lambda before, after: 10 * (before - after), params, trainer.release(state))
    expected = oracle_sum(MODEL, clipping=toy)(params, batch, 0.5).gradients
    assert norm(jax.tree.map(jnp.subtract, moved, expected)) <= 1e-5 * norm(expected)
    # It is another sum than that of a hard clip.
    hard = oracle_sum(MODEL, clipping="fixed")(params, batch, 0.5).gradients
    assert norm(jax.tree.map(jnp.subtract, hard, expected)) > 1e-2 * norm(expected)


def test_the_probe_passes_it_and_catches_a_wrong_one(toy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch(MODEL, 6)
    params = make_parameters(MODEL, batch)
    compiled = Compiled(Method(MODEL, "pctr", "sgd", 0.9, True, clipping=toy), PhysicalShape(1, 8), 1)
    hyper = Hyperparameters(0.1, 100, 64, l2_clip_norm=0.5, noise_multiplier=1.5)

    def defects() -> list[str]:
        return probe_step(compiled, params, hyper, jax.random.key(0), batch[:3], seed=0).defects()

    assert defects() == []
    monkeypatch.setitem(CLIP_FACTORS, toy, CLIP_FACTORS[toy]._replace(traced=CLIP_FACTORS["fixed"].traced))
    make_trainer.cache_clear()
    assert any("oracle" in defect for defect in defects())


def test_the_configuration_accepts_it_while_it_is_registered(tmp_path: Path, toy: str) -> None:
    text = edit(SMALL, "l2_clip_norm: [1, 4]", "l2_clip_norm: 1\n              clipping: [fixed, smooth]")
    grid = loader(tmp_path)(text).grids("sweep", "tiny").tasks["pctr"].dp_sgd
    assert grid is not None
    assert grid.clipping == ("fixed", "smooth")


def test_the_configuration_refuses_it_otherwise(tmp_path: Path) -> None:
    text = edit(SMALL, "l2_clip_norm: [1, 4]", "l2_clip_norm: 1\n              clipping: [fixed, smooth]")
    (only,) = mistakes(loader(tmp_path), text)
    assert f"{DP_SGD}.clipping" in only
    assert "no such name: 'smooth'; known: fixed, automatic, adaptive" in only


def test_a_trial_with_it_passes_the_audit_and_says_so(toy: str, own_home: Path, tmp_path: Path) -> None:
    prepared = make_prepared(tmp_path / "raw")
    noise = noise_multiplier_for(epsilon=4.0, delta=1 / 2400, examples=2400, batch_size=100, steps=48)
    trial = make_trial(prepared, epsilon=4.0, noise_multiplier=noise, clipping=toy)
    run_trial(trial, prepared)
    result, statement = judge(trial, read_json(trial.folder / "record.json"), read_json(trial.folder / "evidence.json"))
    assert (result["verdict"], result["findings"]) == ("passed", [])
    assert "per-example gradients smoothly shortened below norm C" in statement
    assert "smooth" in trial.label()
