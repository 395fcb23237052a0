"""The probe passes correct steps and names what is wrong with incorrect ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dp_core.audit.laboratory import Compiled
from dp_core.audit.probe import Probe, probe_step
from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.clipping.layers import initial_parameters
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature
from dp_core.training.method import Method
from dp_core.training.optimizers import OPTIMIZERS
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters, make_trainer

MODEL = AdModel((CategoricalFeature(50, 4), CategoricalFeature(7, 2)), (16,))


def examples(count: int = 20) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(0)
    integers = rng.normal(size=(count, 3)).astype(np.float32)
    integers[0, 1] = np.nan  # a missing value
    categoricals = rng.integers(0, 7, (count, 2)).astype(np.int32)
    return integers, categoricals, rng.integers(0, 2, count).astype(np.float32)


def probed(
    key: int = 0, shape: tuple[int, int] = (2, 16), steps: int = 3, grow: float = 1.0, seed: int = 0, **changes: Any
) -> Probe:
    """Probes a step of a small model, with its initial parameters multiplied by ``grow``."""
    hyper = {"l2_clip_norm": changes.pop("l2_clip_norm", 0.5), "noise_multiplier": 1.5, "clip_quantile": 0.5}
    hyper |= {name: changes.pop(name) for name in Hyperparameters._fields if name in changes}
    method = Method(**{"model": MODEL, "task": "pctr", "optimizer": "sgd", "momentum": 0.9, "private": True, **changes})
    params = initial_parameters(MODEL, np.random.default_rng(1), *(part[:1] for part in examples()[:2]))
    params = jax.tree.map(lambda leaf: np.float32(grow) * leaf, params)
    compiled = Compiled(method, PhysicalShape(*shape), steps)
    numbers = Hyperparameters(0.1, 100, 64, **hyper)
    return probe_step(compiled, params, numbers, jax.random.key(key), examples(), seed=seed)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"momentum": 0.0},
        *({"optimizer": name} for name in OPTIMIZERS if name != "sgd"),
        {"clipping": "automatic"},
        {"clipping": "adaptive", "count_noise_multiplier": 5.0},
        {"microbatch_size": 4, "sensitivity": 2.0},
        {"microbatch_size": 4, "sensitivity": 2.0, "clipping": "adaptive", "count_noise_multiplier": 5.0},
        {"task": "pconvs"},
        {"l2_clip_norm": 1e-3},
        {"l2_clip_norm": 100.0},
        {"averaging": "tail", "averaging_share": 0.6, "weight_decay": 0.3},
        {"averaging": "exponential", "averaging_share": 0.02, "warmup": 0.45, "optimizer": "adam"},
        {"shape": (1, 8), "steps": 1},
        {"shape": (3, 8), "steps": 2},
    ],
    ids=str,
)
def test_a_correct_step_is_found_correct(changes: dict[str, Any]) -> None:
    probe = probed(**changes)
    assert probe.defects() == []
    # Rounding uses a small part of what it is allowed.
    assert max(comparison.excess for comparison in probe.comparisons) < 0.5
    assert [comparison.run for comparison in probe.comparisons] == ["sparse", "full", "noise", "whole"]
    assert [comparison.examples > 0 for comparison in probe.comparisons] == [True, True, False, True]
    assert probe.noise_draws >= 50_000
    assert Probe.from_json(probe.to_json()) == probe


@pytest.mark.parametrize("grow", [0.0, 1e-6, 10.0, 100.0, 1000.0])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_saturated_and_nearly_diverged_models_are_no_reason_for_alarm(grow: float, optimizer: str) -> None:
    """At large parameters predictions saturate: some gradients are subnormal numbers, others are enormous."""
    for seed in range(3):
        assert probed(grow=grow, optimizer=optimizer, seed=seed).defects() == []


def test_an_optimiser_without_an_oracle_is_compared_with_itself(planted: pytest.MonkeyPatch) -> None:
    planted.setitem(OPTIMIZERS, "lion", lambda momentum: optax.lion(1.0))
    assert probed(optimizer="lion").defects() == []


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
    assert probed(**changes).defects() == []
    registered = CLIP_FACTORS[name]
    for how, wrong in WRONG_FACTORS.items():
        planted.setitem(CLIP_FACTORS, name, registered._replace(traced=wrong(registered.traced)))
        make_trainer.cache_clear()
        assert any("oracle" in defect for defect in probed(**changes).defects()), how


def leaky(norms: jax.Array, l2_clip_norm: jax.Array) -> jax.Array:
    """Clips, but for gradients that are longer than any of the examples'."""
    return jnp.where(norms > 1e4 * l2_clip_norm, 1.0, jnp.minimum(1.0, l2_clip_norm / jnp.maximum(norms, 1e-30)))


def test_a_factor_that_lets_very_long_gradients_through_is_found(planted: pytest.MonkeyPatch) -> None:
    """Whether or not its oracle agrees."""
    planted.setitem(CLIP_FACTORS, "fixed", CLIP_FACTORS["fixed"]._replace(traced=leaky))
    defects = "; ".join(probed().defects())
    assert "the clip factor lets a gradient contribute" in defects
    assert "the clip factor differs from its oracle" in defects
    planted.setitem(CLIP_FACTORS, "fixed", CLIP_FACTORS["fixed"]._replace(oracle=lambda n, c: np.asarray(leaky(n, c))))
    make_trainer.cache_clear()
    [defect] = [defect for defect in probed().defects() if "clip factor" in defect]
    assert "the clip factor lets a gradient contribute" in defect


@pytest.mark.parametrize(
    ("run", "wrong", "words"),
    [
        ("sparse", {"excess": 2.0}, "on a few examples without noise is not the oracle's"),
        ("full", {"excess": float("nan")}, "on a full batch without noise is not the oracle's"),
        ("noise", {"excess": 90.0, "scale": 0.5, "residual": 0.001}, "it moved 0.5 times as far"),
        ("whole", {"excess": float("inf")}, "with examples and noise is not the oracle's"),
        ("full", {"clip_norm": 1.1}, "the clip norm after the full batches is 1.1 times"),
    ],
)
def test_each_defect_is_named(run: str, wrong: dict[str, Any], words: str) -> None:
    probe = probed()
    broken = [one._replace(**wrong) if one.run == run else one for one in probe.comparisons]
    [defect] = Probe.from_json(probe._replace(comparisons=broken).to_json()).defects()
    assert words in defect
