"""The probe passes correct steps and names what is wrong with incorrect ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dp_core.audit.probe
from dp_core.audit.probe import Compiled, Probe, probe_step
from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.clipping.layers import initial_parameters
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature
from dp_core.training.method import Method
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters, make_trainer

MODEL = AdModel((CategoricalFeature(50, 4), CategoricalFeature(7, 2)), (16,))


def examples(count: int = 6) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    integers = rng.normal(size=(count, 3)).astype(np.float32)
    integers[0, 1] = np.nan  # a missing value
    categoricals = rng.integers(0, 7, (count, 2)).astype(np.int32)
    return integers, categoricals, rng.integers(0, 2, count).astype(np.float32)


def probed(key: int = 0, shape: tuple[int, int] = (2, 16), steps: int = 3, **changes: Any) -> Probe:
    hyper = {"l2_clip_norm": changes.pop("l2_clip_norm", 0.5), "noise_multiplier": 1.5, "clip_quantile": 0.5}
    hyper |= {name: changes.pop(name) for name in ("sensitivity", "count_noise_multiplier") if name in changes}
    method = Method(**{"model": MODEL, "task": "pctr", "optimizer": "sgd", "momentum": 0.9, "private": True, **changes})
    params = initial_parameters(MODEL, np.random.default_rng(1), *(part[:1] for part in examples()[:2]))
    compiled = Compiled(method, PhysicalShape(*shape), steps)
    return probe_step(compiled, params, Hyperparameters(0.1, 100, 64, **hyper), jax.random.key(key), examples())


@pytest.mark.parametrize(
    ("changes", "deviation"),
    [
        ({}, 1.5),
        ({"momentum": 0.0}, 1.5),
        ({"optimizer": "yogi"}, 1.5),
        ({"clipping": "automatic"}, 1.5),
        ({"clipping": "adaptive", "count_noise_multiplier": 5.0}, 1.5),
        ({"microbatch_size": 4, "sensitivity": 2.0}, 3.0),
        ({"task": "pconvs"}, 1.5),
        ({"l2_clip_norm": 1e-3}, 1.5),
        ({"l2_clip_norm": 100.0}, 1.5),
        ({"shape": (1, 8), "steps": 1}, 1.5),
    ],
    ids=str,
)
def test_a_correct_step_is_found_correct(changes: dict[str, Any], deviation: float) -> None:
    probe = probed(**changes)
    assert probe.defects(deviation) == []
    assert probe.noise_deviation == pytest.approx(deviation, rel=0.05)
    # At half the median gradient norm, at least half of the gradients are clipped.
    assert sum(norm == pytest.approx(1, abs=0.02) for norm in probe.at_half) >= 3
    assert probe.noise_draws >= 10_000
    assert Probe.from_json(probe.to_json()) == probe


@pytest.mark.parametrize("key", range(8))
def test_an_adaptive_clip_norm_does_not_drift_while_noise_is_measured(key: int) -> None:
    """A small model takes many noisy steps. With an undivided count the clip norm walked over orders of magnitude."""
    small = AdModel((CategoricalFeature(7, 1),), (2,))
    method = Method(small, "pctr", "sgd", 0.9, private=True, clipping="adaptive")
    integers, categoricals, labels = examples()
    inputs = integers, categoricals[:, :1], labels
    params = initial_parameters(small, np.random.default_rng(1), inputs[0][:1], inputs[1][:1])
    hyper = Hyperparameters(0.1, 100, 512, l2_clip_norm=1.0, noise_multiplier=1.5, count_noise_multiplier=6.6)
    probe = probe_step(Compiled(method, PhysicalShape(1, 8), 1), params, hyper, jax.random.key(key), inputs)
    assert probe.noisy_steps == 64
    assert probe.defects(1.5) == []


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Patches that reach the compiled trainers of one test only."""
    make_trainer.cache_clear()
    yield monkeypatch
    make_trainer.cache_clear()


def by_square(norms: jax.Array, l2_clip_norm: jax.Array) -> jax.Array:
    return l2_clip_norm / jnp.maximum(norms**2, l2_clip_norm)


WRONG_FACTORS: dict[str, Callable[[Any], Any]] = {
    "longer": lambda right: lambda norms, clip_norm: 1.001 * right(norms, clip_norm),
    "shorter": lambda right: lambda norms, clip_norm: 0.99 * right(norms, clip_norm),
    "of the square": lambda right: by_square,
}


@pytest.mark.parametrize("name", CLIP_FACTORS)
def test_every_clip_factor_is_covered(name: str, planted: pytest.MonkeyPatch) -> None:
    """The right factor passes, and a step that was compiled with a wrong one is caught."""
    changes = {"clipping": name, "count_noise_multiplier": 5.0, "shape": (1, 8), "steps": 1}
    assert probed(**changes).defects(1.5) == []
    registered = CLIP_FACTORS[name]
    for how, wrong in WRONG_FACTORS.items():
        planted.setitem(CLIP_FACTORS, name, registered._replace(traced=wrong(registered.traced)))
        make_trainer.cache_clear()
        assert any("oracle" in defect for defect in probed(**changes).defects(1.5)), how


def leaky(norms: jax.Array, l2_clip_norm: jax.Array) -> jax.Array:
    """Clips, but for gradients that are longer than any of the examples'."""
    return jnp.where(norms > 1e4 * l2_clip_norm, 1.0, jnp.minimum(1.0, l2_clip_norm / jnp.maximum(norms, 1e-30)))


def test_a_factor_that_lets_very_long_gradients_through_is_found(planted: pytest.MonkeyPatch) -> None:
    """Whether or not its oracle agrees."""
    planted.setitem(CLIP_FACTORS, "fixed", CLIP_FACTORS["fixed"]._replace(traced=leaky))
    defects = "; ".join(probed().defects(1.5))
    assert "the clip factor lets a gradient contribute" in defects
    assert "the clip factor differs from its oracle" in defects
    planted.setitem(CLIP_FACTORS, "fixed", CLIP_FACTORS["fixed"]._replace(oracle=lambda n, c: np.asarray(leaky(n, c))))
    make_trainer.cache_clear()
    [defect] = [defect for defect in probed().defects(1.5) if "clip factor" in defect]
    assert "the clip factor lets a gradient contribute" in defect


def test_other_noise_than_stated_is_found() -> None:
    probe = probed()
    for wrong in (0.75, 1.4, 1.6, 3.0, 0.0):
        assert any("but" in defect and "is stated" in defect for defect in probe.defects(wrong))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"contribution_norms": [0.2, 1.001]}, "contributed 1 clip norms to a sum at C"),
        ({"at_half": [2.5]}, "contributed 2.5 clip norms to a sum at a smaller C"),
        ({"oracle_difference": 0.01}, "differs from the oracle's by 0.01"),
        ({"noise_likeness": 1.0}, "correlation of 1"),
        ({"noise_deviation": float("nan")}, "standard deviation of nan"),
        ({"contribution_norms": [0.2, float("nan")]}, "contributed nan"),
    ],
)
def test_each_defect_is_named(wrong: dict[str, Any], words: str) -> None:
    broken = Probe.from_json(probed()._replace(**wrong).to_json())
    assert any(words in defect for defect in broken.defects(1.5))


def test_a_correct_step_is_blamed_as_rarely_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tests with a false-alarm rate of 5 % each: 200 probes give at most 20 false alarms on average, and
    more than 36 with probability 10⁻³. The keys are fixed."""
    monkeypatch.setattr(dp_core.audit.probe, "FALSE_ALARM_RATE", 0.05)
    monkeypatch.setattr(dp_core.audit.probe, "_NOISE_DRAWS", 1000)
    alarms = sum(bool(probed(key, shape=(1, 8), steps=1).defects(1.5)) for key in range(200))
    assert 4 <= alarms <= 36
