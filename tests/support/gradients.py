"""Clipped sums, compiled once for all tests, and comparisons of gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import numpy as np

from dp_core.clipping import oracle
from dp_core.clipping.microbatches import Microbatches, make_microbatches
from dp_core.clipping.one_pass import GradientSum, add_clipped_gradients, zero_sum
from dp_core.clipping.signals import Batch
from dp_core.training.losses import OBJECTIVES, binary_cross_entropy

TASKS = tuple(OBJECTIVES)
# Compiling dominates the time of these tests; without optimisations it takes a sixth as long.
QUICKLY = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
# The options that training compiles with, regardless of the flags of the test process.
AS_TRAINING = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}


@functools.cache
def clipped_sum(
    model: nn.Module, *, microbatch_size: int = 1, clipping: str = "fixed", as_training: bool = False
) -> Callable[..., GradientSum]:
    """(params, batch, l2_clip_norm, task, total) -> the sum, by ``one_pass.py``."""
    microbatches = make_microbatches(microbatch_size)
    return _callable(
        model,
        lambda *parts, size, **options: add_clipped_gradients(
            *parts, **options, clipping=clipping, microbatches=microbatches
        ),
        AS_TRAINING if as_training else QUICKLY,
    )


def oracle_sum(model: nn.Module, *, microbatch_size: int = 1, clipping: str = "fixed") -> Callable[..., GradientSum]:
    """(params, batch, l2_clip_norm, task, total) -> the sum, by ``oracle.py``."""
    return functools.partial(_oracle_sum(model, clipping), microbatch_size=microbatch_size)


@functools.cache
def _oracle_sum(model: nn.Module, clipping: str) -> Callable[..., GradientSum]:
    # The oracle uses the nominal size and the groups only, so one program serves all sizes.
    def add(*parts: Any, size: jax.Array, **options: Any) -> GradientSum:
        return oracle.add_clipped_gradients(*parts, **options, clipping=clipping, microbatches=Microbatches(size, 0))

    call = _callable(model, add, QUICKLY)

    def with_groups(params: Any, batch: Batch, *rest: Any, microbatch_size: int) -> GradientSum:
        alone = np.arange(len(np.asarray(batch.mask)), dtype=np.int32)
        groups = alone if batch.groups is None else batch.groups
        return call(params, batch._replace(groups=groups), *rest, microbatch_size=microbatch_size)

    return with_groups


def _callable(
    model: nn.Module, function: Callable[..., GradientSum], compiler_options: dict[str, Any]
) -> Callable[..., GradientSum]:
    """Compiles a sum. The task is traced, so that one program serves all losses."""
    losses = [objective.example_loss for objective in OBJECTIVES.values()]

    def add(
        total: GradientSum, params: Any, batch: Batch, l2_clip_norm: jax.Array, task: jax.Array, size: jax.Array
    ) -> GradientSum:
        def example_loss(logits: jax.Array, labels: jax.Array) -> jax.Array:
            return jax.lax.switch(task, losses, logits, labels)

        return function(total, model, params, batch, example_loss, l2_clip_norm=l2_clip_norm, size=size)

    program = jax.jit(add, compiler_options=compiler_options)

    def call(
        params: Any,
        batch: Batch,
        l2_clip_norm: float,
        task: str = "pctr",
        total: GradientSum | None = None,
        microbatch_size: int = 1,
    ) -> GradientSum:
        total = jax.tree.map(np.asarray, zero_sum(params)) if total is None else total
        numbers = np.float32(l2_clip_norm), np.int32(TASKS.index(task)), np.float32(microbatch_size)
        return program(total, params, batch, *numbers)

    return call


@functools.cache
def _example_gradients(model: nn.Module) -> Callable[..., Any]:
    def gradients(params: Any, batch: Batch) -> Any:
        return oracle.per_example_gradients(model, params, batch, binary_cross_entropy)

    return jax.jit(gradients, compiler_options=QUICKLY)


def example_gradients(model: nn.Module, params: Any, batch: Batch) -> np.ndarray:
    """The oracle's per-example gradients of the binary loss, as float64 rows."""
    leaves = jax.tree.leaves(_example_gradients(model)(params, batch))
    return np.concatenate([np.asarray(leaf, np.float64).reshape(len(leaf), -1) for leaf in leaves], axis=1)


def norm(gradients: Any) -> float:
    """The L2 norm over all parameters, in float64, because float32 squares can overflow."""
    return float(np.sqrt(sum(np.sum(np.asarray(leaf, np.float64) ** 2) for leaf in jax.tree.leaves(gradients))))


def errors_by_layer(actual: Any, expected: Any) -> dict[str, float]:
    """The distance of two gradients for every parameter, relative to the norm of the second."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    errors = {}
    for (path, left), right in zip(jax.tree_util.tree_leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        difference = np.asarray(left, np.float64) - np.asarray(right, np.float64)
        # Where the expected gradient is zero, the other must be zero too.
        errors[jax.tree_util.keystr(path)] = norm(difference) / (norm(right) + 1e-12)
    return errors


def assert_close_by_layer(actual: Any, expected: Any, relative: float = 1e-5) -> None:
    """Asserts that gradients agree to ``relative`` of each parameter's own gradient norm."""
    apart = {name: error for name, error in errors_by_layer(actual, expected).items() if not error <= relative}
    assert not apart
