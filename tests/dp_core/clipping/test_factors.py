"""Every registered clip factor agrees with its oracle and bounds the norm; bad registrations are refused."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.clipping.factors import CLIP_FACTORS, ClipFactor, clip_factor, register_clip_factor

pytestmark = pytest.mark.usefixtures("strict_types")

# Zero, the smallest normal float32, and everything up to where float32 squares overflow long before.
NORMS = np.float32([0.0, np.finfo(np.float32).tiny, *np.logspace(-30, 35, 400), *np.linspace(0.001, 100, 400)])
CLIP_NORMS = (1e-4, 0.01, 0.5, 1.0, 30.0, 1e4)


def checked(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The traced and the oracle's factors of all norms at all clip norms, in float64."""
    factor = clip_factor(name)
    compiled = jax.jit(factor.traced)
    traced = [np.asarray(compiled(NORMS, np.float32(clip_norm)), np.float64) for clip_norm in CLIP_NORMS]
    exact = [factor.oracle(NORMS.astype(np.float64), float(np.float32(clip_norm))) for clip_norm in CLIP_NORMS]
    return np.stack(traced), np.stack(exact)


@pytest.mark.parametrize("name", CLIP_FACTORS)
def test_the_oracle_agrees_with_the_function_that_trains(name: str) -> None:
    traced, exact = checked(name)
    assert exact.dtype == np.float64
    assert np.all(np.isfinite(traced))
    # Factors below the smallest normal float32 are flushed to zero.
    np.testing.assert_allclose(traced, exact, rtol=1e-6, atol=1.2e-38)


@pytest.mark.parametrize("name", CLIP_FACTORS)
def test_no_scaled_gradient_is_longer_than_the_clip_norm(name: str) -> None:
    clip_norms = np.float32(CLIP_NORMS).astype(np.float64)[:, None]
    for factors, rounding in zip(checked(name), (1e-6, 1e-12), strict=True):
        assert np.all(factors >= 0)
        assert np.all(factors * NORMS.astype(np.float64) <= clip_norms * (1 + rounding))


@pytest.mark.parametrize("name", CLIP_FACTORS)
def test_the_oracle_runs_on_traced_arrays_too(name: str) -> None:
    """The naive ``vmap`` programs compile it."""
    norms = np.geomspace(1e-6, 1e6, 50)
    oracle = clip_factor(name).oracle
    compiled = jax.jit(oracle)(jnp.asarray(norms, jnp.float32), jnp.float32(2.0))
    np.testing.assert_allclose(compiled, oracle(norms, 2.0), rtol=1e-6)


@pytest.mark.parametrize("name", CLIP_FACTORS)
def test_the_oracle_is_not_the_function_that_trains(name: str) -> None:
    traced, oracle = clip_factor(name).traced, clip_factor(name).oracle
    assert oracle.__code__ is not traced.__code__
    assert oracle.__code__.co_code != traced.__code__.co_code


@pytest.mark.parametrize(
    ("name", "norm", "expected"),
    [
        ("fixed", 0.0, 1.0),
        ("fixed", 1.0, 1.0),
        ("fixed", 8.0, 0.25),
        ("adaptive", 8.0, 0.25),
        ("automatic", 0.0, 200.0),
        ("automatic", 1.99, 1.0),
        ("automatic", 3.99, 0.5),
    ],
)
def test_factors_at_a_clip_norm_of_two(name: str, norm: float, expected: float) -> None:
    factor = clip_factor(name)
    assert float(factor.oracle(np.float64(norm), 2.0)) == pytest.approx(expected, rel=1e-12)
    assert float(factor.traced(jnp.float32(norm), jnp.float32(2.0))) == pytest.approx(expected, rel=1e-6)


def test_only_the_adaptive_factor_adapts() -> None:
    assert [name for name, factor in CLIP_FACTORS.items() if factor.adaptive] == ["adaptive"]


def some(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {"traced": lambda norms, c: c / norms, "oracle": lambda norms, c: c * norms**-1}
    return {**values, "statement": "cut to norm C", **changes}


@pytest.mark.parametrize(
    ("name", "arguments", "error", "words"),
    [
        ("fixed", some(), ValueError, "'fixed' is registered already"),
        ("two words", some(), ValueError, "must be an identifier, got 'two words'"),
        ("toy", some(oracle=None), TypeError, "oracle must be a function"),
        ("toy", some(traced=1.0), TypeError, "traced must be a function"),
        ("toy", some(oracle=abs, traced=abs), ValueError, "must be written independently"),
        ("toy", some(statement=" "), ValueError, "statement must be one line"),
        ("toy", some(statement="a | b"), ValueError, "statement must be one line"),
    ],
)
def test_a_bad_registration_is_refused(
    name: str, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    before = dict(CLIP_FACTORS)
    with pytest.raises(error, match=words):
        register_clip_factor(name, **arguments)
    assert before == CLIP_FACTORS


def test_a_registration_without_an_oracle_is_refused() -> None:
    with pytest.raises(TypeError, match="oracle"):
        register_clip_factor("toy", traced=np.abs, statement="cut to norm C")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="oracle"):
        ClipFactor(traced=np.abs, statement="cut to norm C")  # type: ignore[call-arg]
    assert "toy" not in CLIP_FACTORS


def test_a_clip_norm_adapts_only_where_it_is_said() -> None:
    assert not ClipFactor(np.abs, np.fabs, "cut to norm C").adaptive
    assert [name for name, factor in CLIP_FACTORS.items() if factor.adaptive] == ["adaptive"]


def test_an_unknown_factor_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown clip factor 'fixd'; registered: fixed, automatic, adaptive"):
        clip_factor("fixd")


def test_names_are_listed_without_jax() -> None:
    program = (
        "import sys; from dp_core.clipping.factors import *; print(*CLIP_FACTORS, {'jax', 'numpy'} & {*sys.modules})"
    )
    listed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert listed.strip() == "fixed automatic adaptive set()"
