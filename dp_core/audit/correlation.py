"""The oracle of correlated noise: C⁻¹z written again in NumPy and 64 bits, from any point of a run.

A step's noise is (z_t − c₁·z̃_{t−1} − …)/c₀ (``dp_core.training.correlated``). To see every coefficient in one step, the
probe puts a history of its own into the state and lets the program take a step from there. The program begins with no
history, and each step must leave the one that the next expects: so all steps of a training are covered.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from dp_core.audit.probe_batches import lazy_velocities, of_optimizer
from dp_core.training.averaging import Averaged
from dp_core.training.correlated import CorrelatedState, is_covered
from dp_core.training.lazy_updates import LazyState
from dp_core.training.method import Method
from dp_core.training.step import TrainState

# Rounding of a noise in float32, relative to itself and in standard deviations for each band.
_RELATIVE, _PER_BAND = 1e-5, 1e-6


class Past(NamedTuple):
    """The noises before a step.

    Attributes:
        column: The first column of C.
        covered: Which coordinates have correlated noise, of shape (coordinates,).
        recent: The noises of the covered coordinates, the newest first; as many as C has bands but one.
    """

    column: tuple[float, ...]
    covered: np.ndarray
    recent: tuple[np.ndarray, ...]

    def next(self, fresh: np.ndarray) -> tuple[np.ndarray, Past]:
        """Returns the noise of the step whose own draws are ``fresh``, and the past of the step after it."""
        if not self.recent:
            return fresh, self
        noise = np.array(fresh, np.float64)
        own = noise[self.covered]
        for coefficient, earlier in zip(self.column[1:], self.recent, strict=True):
            own -= coefficient * earlier
        own /= self.column[0]
        noise[self.covered] = own
        return noise, self._replace(recent=(own, *self.recent[:-1]))

    @property
    def rounding(self) -> float:
        """What rounding can do to a noise, in standard deviations of the fresh one."""
        return _PER_BAND * (len(self.recent) ** 0.5) / self.column[0] if self.recent else 0.0

    def ring(self, count: int) -> np.ndarray:
        """Returns the ring that a state with so many noises must have: noise number n is in row n mod (bands − 1)."""
        rows = [(count - age) % len(self.recent) for age in range(1, len(self.recent) + 1)]
        ring = np.zeros((len(self.recent), int(self.covered.sum())), np.float32)
        ring[rows] = self.recent
        return ring

    def put(self, method: Method, state: TrainState) -> TrainState:
        """Returns the state with this past, as it would be at its step."""
        if not self.recent:
            return state
        count = int(state.step)
        held = of_optimizer(state.update_state)._replace(
            drawn=method.placement.copied(np.asarray(count, np.int32)), ring=method.placement.copied(self.ring(count))
        )
        outer = state.update_state
        return state._replace(update_state=outer._replace(inner=held) if isinstance(outer, Averaged) else held)

    def excess(self, state: TrainState) -> np.ndarray:
        """Returns how far the history of each coordinate in a state is from this one, over what rounding explains."""
        found = np.zeros(len(self.covered))
        if not self.recent:
            return found
        held, count = of_optimizer(state.update_state), int(state.step)
        if not isinstance(held, CorrelatedState) or int(held.drawn) != count:
            return np.full(len(self.covered), np.inf)
        expected = self.ring(count)
        allowed = _RELATIVE * np.abs(expected) + 2 * self.rounding
        found[self.covered] = np.max(np.abs(np.asarray(held.ring) - expected) / allowed, axis=0)
        return found


def covered_coordinates(params: Any) -> np.ndarray:
    """Returns which coordinates of the flat parameters have correlated noise."""
    leaves = sorted(flatten_dict(params).items())
    return np.concatenate([np.full(leaf.size, is_covered(path[-1], leaf.size)) for path, leaf in leaves])


def no_past(method: Method, covered: np.ndarray) -> Past:
    """Returns the past of the first step: no noise at all."""
    nothing = np.zeros(int(covered.sum()), np.float32) if method.bands > 1 else np.zeros(0, np.float32)
    return Past(method.noise_coefficients, covered, (nothing,) * (method.bands - 1))


def some_past(method: Method, covered: np.ndarray, rng: np.random.Generator) -> Past:
    """Returns a past with noises that no program has made."""
    size = int(covered.sum())
    recent = tuple(rng.standard_normal(size, np.float32) for _ in range(method.bands - 1))
    return Past(method.noise_coefficients, covered, recent)


def rule_state(state: TrainState) -> Any:
    """Returns the optimiser's state, without the average of iterates and the history of the noise."""
    held = of_optimizer(state.update_state)
    return held.rest if isinstance(held, CorrelatedState) else held


def moments_of(state: TrainState) -> list[np.ndarray]:
    """Returns the arrays of the optimiser's state, flat and in 64 bits."""
    held = rule_state(state)
    leaves = lazy_velocities(held) if isinstance(held, LazyState) else jax.tree.leaves(held)
    return [np.asarray(leaf, np.float64).ravel() for leaf in leaves if leaf.ndim]
