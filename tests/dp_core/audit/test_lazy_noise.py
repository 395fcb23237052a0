"""The probe judges programs with lazy tables: correct ones pass, and every way of losing noise is found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dp_core.audit.lazy_noise import _shortest
from dp_core.training import lazy_updates
from dp_core.training.pending_noise import GapFactors
from dp_core.training.step import make_trainer
from tests.dp_core.audit.test_probe import probed

LAZY = {"lazy_tables": ("embedding_0", "embedding_1")}


@pytest.fixture(autouse=True)
def own_programs() -> Iterator[None]:
    """A program with a planted bug must not be taken for the correct one, nor the other way round."""
    make_trainer.cache_clear()
    yield
    make_trainer.cache_clear()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_shortest_noises_have_the_effects_of_the_draw(momentum: float, steps: int) -> None:
    """On the velocity √R·p, and on the weight √E·q − (K/√R)·p: the factors of ``pending_noise``, by its recurrence."""
    rates = np.linspace(0.3, 0.1, steps)
    weights = _shortest(momentum, rates)
    velocity, weight = np.zeros(weights.shape[1]), np.zeros(weights.shape[1])
    for rate, noise in zip(rates, weights, strict=True):
        velocity = momentum * velocity + noise
        weight = weight - rate * velocity
    root, shared, rest = 0.0, 0.0, 0.0
    for rate in rates:
        root, before = momentum**2 * root + 1, root
        rest += shared**2 / (root * before) if before else 0.0
        shared = momentum * shared + rate * root
    if momentum == 0:
        np.testing.assert_allclose(weight, [np.sqrt(np.sum(rates**2))])
        return
    np.testing.assert_allclose(velocity, [np.sqrt(root), 0.0], atol=1e-12)
    np.testing.assert_allclose(weight, [-shared / np.sqrt(root), np.sqrt(rest)], atol=1e-9)


@pytest.mark.lazy
@pytest.mark.parametrize(
    "changes",
    [{}, {"momentum": 0.0}, {"microbatch_size": 4, "sensitivity": 2.0}, {"shape": (1, 8), "steps": 1}],
    ids=str,
)
def test_a_correct_lazy_step_is_found_correct(changes: dict[str, Any]) -> None:
    probe = probed(**LAZY, **changes)
    assert probe.defects() == []
    assert max(comparison.excess for comparison in probe.comparisons) < 0.5
    assert [comparison.run for comparison in probe.comparisons] == ["sparse", "full", "noise", "whole"]
    assert len(probe.single_steps) == 2


def changed(**factors: Callable[[GapFactors], Any]) -> Callable[..., Any]:
    original = lazy_updates.gap_factors

    def planted(history: Any, slots: Any) -> GapFactors:
        found = original(history, slots)
        return found._replace(**{name: change(found) for name, change in factors.items()})

    return planted


def never_written(array: Any, rows: Any, values: Any) -> Any:
    """Rows are written, and the slots of their gaps are not: their noise is drawn again."""
    return array if jnp.issubdtype(array.dtype, jnp.integer) else ORIGINAL["_written"](array, rows, values)


def not_drawn(key: Any, rows: Any, weights: Any, velocity: Any, factors: Any, **options: Any) -> Any:
    return ORIGINAL["_caught_up"](key, rows, weights, velocity, factors, **{**options, "noisy": False})


def too_early(key: Any, rows: Any, weights: Any, velocity: Any, factors: Any, **options: Any) -> Any:
    """A batch reads its rows as they were left."""
    if rows.shape[0] == 2 * 16:  # the tokens of a batch, and not all rows of a table
        return weights, velocity
    return ORIGINAL["_caught_up"](key, rows, weights, velocity, factors, **options)


ORIGINAL = {name: getattr(lazy_updates, name) for name in ("_written", "_caught_up")}
BUGS: dict[str, tuple[str, Any]] = {
    "pending noise is not drawn": ("_caught_up", not_drawn),
    "pending noise is drawn twice": ("_written", never_written),
    "the noises of velocity and weight are independent": ("gap_factors", changed(shared=lambda gap: 0 * gap.shared)),
    "the small eigenvalue is left out": ("gap_factors", changed(weight=lambda gap: 0 * gap.weight)),
    "the noise is a fifth too small": ("gap_factors", changed(weight=lambda gap: 0.8 * gap.weight)),
    "the velocity does not decay in a gap": ("gap_factors", changed(decay=lambda gap: jnp.ones_like(gap.decay))),
    "the weight does not drift in a gap": ("gap_factors", changed(drift=lambda gap: 0 * gap.drift)),
    "a row is read before it caught up": ("_caught_up", too_early),
    "all tables have the same noise": ("normal_of_rows", None),
}


@pytest.mark.lazy
@pytest.mark.parametrize("bug", BUGS)
def test_planted_bugs_are_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, planted = BUGS[bug]
    if planted is None:
        original = lazy_updates.normal_of_rows
        planted = functools.partial(lambda _, rows, width: original(jax.random.key(7), rows, width))
    monkeypatch.setattr(lazy_updates, name, planted)
    assert probed(**LAZY).defects() != []
