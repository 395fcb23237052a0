"""Probe: measures what the compiled training step really does.

The step that trained a run is run again at the run's own parameters: on one example at a time without noise,
and then on no example with noise. With plain gradient descent the parameters move by exactly what the step
made of it, an example's contribution or the noise. Contributions are compared with the example's gradient
from ``jax.grad``, clipped by the oracle of the registered clip factor. The clip factor itself is compared with
its oracle and with the bound over norms that no example reaches. The scale of the noise is measured. A step that
does not clip, or adds too little noise, is caught no matter what the record says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dp_core.clipping.factors import clip_factor
from dp_core.clipping.signals import Batch
from dp_core.training.losses import OBJECTIVES
from dp_core.training.method import Method
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters, Steps, Trainer, TrainState, as_traced, make_trainer

# False-alarm rate of each of the two statistical tests: the noise's scale, and its correlation across steps.
FALSE_ALARM_RATE = 1e-6
# Tolerance on a contribution's norm and on its distance from the oracle's, in clip norms. Rounding stays far
# below it.
TOLERANCE = 1e-4

_NO_DECAY = 1e9
_SMALL = 1e-3
# Minimum number of noise coordinates to measure, and maximum number of steps to draw them in.
_NOISE_DRAWS, _MOST_NOISY_STEPS = 20_000, 64


class Probe(NamedTuple):
    """Measurements of a compiled step. Norms and deviations are in units of the clip norm.

    Attributes:
        l2_clip_norm: The run's clip norm.
        contribution_norms: Norms of the examples' contributions to the sum, at the run's clip norm.
        oracle_difference: Largest distance of a contribution from the oracle's.
        at_half: Norms of the contributions at half the median gradient norm, where most are clipped.
        noise_deviation: Standard deviation of the noise, over all coordinates of all noisy steps.
        noise_likeness: Correlation of the noise of two consecutive steps.
        coordinates: Number of coordinates of one step's noise.
        noisy_steps: Number of steps that the noise was measured in.
        factor_bound: Largest product of a norm and its clip factor, over norms from 0 to 1e30, in clip norms.
        factor_difference: Largest difference of that product from the oracle's.
    """

    l2_clip_norm: float
    contribution_norms: list[float]
    oracle_difference: float
    at_half: list[float]
    noise_deviation: float
    noise_likeness: float
    coordinates: int
    noisy_steps: int
    factor_bound: float = 0.0
    factor_difference: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Returns the measurements as JSON values; non-finite numbers become None."""

        def finite(value: Any) -> Any:
            if isinstance(value, list):
                return [finite(item) for item in value]
            return value if np.isfinite(value) else None

        return {name: finite(value) for name, value in self._asdict().items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Probe:
        """Reads what ``to_json`` returned; None becomes NaN."""

        def number(value: Any) -> Any:
            if isinstance(value, list):
                return [number(item) for item in value]
            return np.nan if value is None else value

        return cls(**{name: number(item) for name, item in value.items()})

    @property
    def noise_draws(self) -> int:
        """Number of normal draws that the noise was measured on."""
        return self.coordinates * self.noisy_steps

    def defects(self, stated_deviation: float) -> list[str]:
        """Returns what is wrong with the step as a Gaussian mechanism; an empty list if nothing is.

        A correct step is blamed with probability at most 2 · ``FALSE_ALARM_RATE``.

        Args:
            stated_deviation: The standard deviation that the noise should have, in clip norms: noise multiplier
                times sensitivity.
        """
        found = []
        for clip_norm, norms in (("C", self.contribution_norms), ("a smaller C", self.at_half)):
            largest = float(np.max(norms))
            if not largest <= 1 + TOLERANCE:
                found.append(
                    f"an example contributed {largest:.3g} clip norms to a sum at {clip_norm}; at most 1 is allowed"
                )
        if not self.factor_bound <= 1 + TOLERANCE:
            found.append(
                f"the clip factor lets a gradient contribute {self.factor_bound:.3g} clip norms; at most 1 is allowed"
            )
        if not self.factor_difference <= TOLERANCE:
            found.append(f"the clip factor differs from its oracle by {self.factor_difference:.3g} clip norms")
        if not self.oracle_difference <= TOLERANCE:
            found.append(f"a contribution differs from the oracle's by {self.oracle_difference:.3g} clip norms")
        # A sum of squares of independent normal draws follows a χ² distribution.
        ratio = self.noise_deviation / stated_deviation if stated_deviation > 0 else np.nan
        law, total = stats.chi2(self.noise_draws), self.noise_draws * ratio**2
        if not min(law.cdf(total), law.sf(total)) >= FALSE_ALARM_RATE / 2:
            found.append(
                f"the noise has a standard deviation of {self.noise_deviation:.4g} clip norms, measured over "
                f"{self.noise_draws:,} draws, but {stated_deviation:.4g} is stated"
            )
        likeness = float(stats.norm.isf(FALSE_ALARM_RATE / 2)) / self.coordinates**0.5
        if not abs(self.noise_likeness) <= likeness:
            found.append(f"the noise of two steps has a correlation of {self.noise_likeness:.3g}, but must have none")
        return found


class Compiled(NamedTuple):
    """Identifies a compiled program: a method's step in dispatches of a given shape.

    Attributes:
        method: The method that trained.
        shape: The physical batches of one step.
        steps: Number of steps in a dispatch.
    """

    method: Method
    shape: PhysicalShape
    steps: int

    @property
    def descent(self) -> Method:
        """The method with SGD as its optimiser, which moves the parameters by what it is given.

        For a run that used SGD, with or without momentum, this is the method itself and nothing is recompiled.
        Replacing another optimiser loses nothing: it sees the noisy sum only, so it is post-processing.
        """
        if self.method.optimizer == "sgd":
            return self.method
        return dataclasses.replace(self.method, optimizer="sgd", momentum=0.0)


def probe_step(
    compiled: Compiled, params: Any, hyper: Hyperparameters, key: jax.Array, examples: tuple[np.ndarray, ...]
) -> Probe:
    """Measures a compiled step.

    Args:
        compiled: The program to measure.
        params: The parameters to measure at, usually the run's last.
        hyper: The run's numbers; ``l2_clip_norm`` is the clip norm to measure at.
        key: A noise key that no step of the run has used.
        examples: (integers, categoricals, labels) of a few training examples, with one row each.

    Returns:
        The measurements.
    """
    params = jax.tree.map(np.asarray, params)
    clip_norm = float(hyper.l2_clip_norm)
    size = compiled.method.microbatch_size
    rows = [tuple(part[[row]] for part in examples) for row in range(len(examples[-1]))]
    gradients = [_flat(_gradient(compiled.method)(params, *row)) / size for row in rows]
    norms = np.array([np.linalg.norm(gradient) for gradient in gradients])
    half = 0.5 * float(np.median(norms)) or clip_norm

    found = {}
    for bound in (clip_norm, half):
        contributions = [_contribution(compiled, params, row, bound) for row in rows]
        factors = clip_factor(compiled.method.clipping).oracle(norms, bound)
        expected = [factor * gradient / bound for factor, gradient in zip(factors, gradients, strict=True)]
        differences = [np.linalg.norm(a - b) for a, b in zip(contributions, expected, strict=True)]
        found[bound] = [float(np.linalg.norm(c)) for c in contributions], float(np.max(differences))
    factor_bound, factor_difference = _factor_errors(compiled.method.clipping, [clip_norm, half])
    noise = _noise(compiled, params, hyper, key, rows[0])
    squares = np.mean(noise**2, axis=1)
    scale = float(np.sqrt(squares[0] * squares[1]))
    return Probe(
        l2_clip_norm=clip_norm,
        contribution_norms=found[clip_norm][0],
        oracle_difference=float(np.max([difference for _, difference in found.values()])),
        at_half=found[half][0],
        noise_deviation=float(np.sqrt(np.mean(squares))),
        noise_likeness=float(np.mean(noise[0] * noise[1])) / scale if scale > 0 else 1.0,
        coordinates=noise.shape[1],
        noisy_steps=noise.shape[0],
        factor_bound=factor_bound,
        factor_difference=factor_difference,
    )


def _factor_errors(clipping: str, clip_norms: Sequence[float]) -> tuple[float, float]:
    """Returns the largest contribution that a clip factor allows, and its largest difference from the oracle's.

    Both are in clip norms, over gradient norms that the few examples of a probe do not reach.
    """
    factor = clip_factor(clipping)
    norms = np.concatenate([[0.0], np.logspace(-30, 30, 241)]).astype(np.float32).astype(np.float64)
    errors = []
    for clip_norm in clip_norms:
        traced = np.asarray(factor.traced(jnp.asarray(norms, jnp.float32), jnp.float32(clip_norm)), np.float64)
        allowed, expected = (factors * norms / clip_norm for factors in (traced, factor.oracle(norms, clip_norm)))
        errors.append((np.max(allowed), np.max(np.abs(allowed - expected))))
    bounds, differences = zip(*errors, strict=True)
    return float(np.max(bounds)), float(np.max(differences))


def _contribution(compiled: Compiled, params: Any, row: tuple[np.ndarray, ...], clip_norm: float) -> np.ndarray:
    """Returns what the step adds to the sum for one example, in clip norms."""
    quiet = as_traced(
        Hyperparameters(
            learning_rate=1 / clip_norm,
            total_steps=_NO_DECAY,
            expected_batch_size=compiled.method.microbatch_size,
            l2_clip_norm=clip_norm,
        )
    )
    trainer = make_trainer(compiled.descent)
    _, after = _step(compiled, trainer, trainer.init(params, quiet), row, jax.random.key(0), quiet)
    return _flat(params) - _flat(after)


def _noise(
    compiled: Compiled, params: Any, hyper: Hyperparameters, key: jax.Array, row: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Returns the noise of several steps without examples, in clip norms; shape (steps, coordinates)."""
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(params))
    steps = min(max(-(-_NOISE_DRAWS // coordinates), 2), _MOST_NOISY_STEPS)
    # An adaptive clip norm follows a noisy count divided by the expected count. With the run's own expected count it
    # stays close to where it is measured; otherwise the expected count is 1, so that the sum is not divided.
    adaptive = clip_factor(compiled.method.clipping).adaptive
    expected = float(hyper.expected_batch_size) if adaptive else float(compiled.method.microbatch_size)
    expected_count = expected / compiled.method.microbatch_size
    # The rate is small, so that the parameters stay close too.
    rate = _SMALL * expected_count / (float(hyper.l2_clip_norm) * max(1.0, float(hyper.noise_multiplier)))
    noisy = as_traced(hyper._replace(learning_rate=rate, total_steps=_NO_DECAY, expected_batch_size=expected))
    trainer = make_trainer(compiled.descent)
    state, before, last, drawn = trainer.init(params, noisy), _flat(params), np.zeros(coordinates), []
    for _ in range(steps):
        # An adaptive clip norm changes from step to step, and the scale of the noise with it.
        clip_norm = float(state.l2_clip_norm)
        state, released = _step(compiled, trainer, state, row, key, noisy, present=False)
        after = _flat(released)
        # Momentum repeats part of the previous step.
        moved = before - after
        drawn.append(
            (moved - compiled.descent.momentum * last) * expected_count / float(noisy.learning_rate) / clip_norm
        )
        before, last = after, moved
    return np.stack(drawn)


def _step(
    compiled: Compiled,
    trainer: Trainer,
    state: TrainState,
    row: tuple[np.ndarray, ...],
    key: jax.Array,
    hyper: Hyperparameters,
    *,
    present: bool = True,
) -> tuple[TrainState, Any]:
    """Runs one real step on one example, or on none; returns the state and the released parameters."""
    placement = compiled.method.placement
    whole = (compiled.steps, *compiled.shape)

    def place(value: np.ndarray) -> Any:
        values = np.zeros((*whole, *value.shape[1:]), value.dtype)
        values[0, 0, 0] = value[0] if present else 0
        return placement.batches(values.shape, lambda index: values[index])

    groups = None
    if compiled.method.microbatch_size > 1:
        own = np.broadcast_to(np.arange(whole[-1], dtype=np.int32), whole)
        groups = placement.batches(whole, lambda index: own[index])
    integers, categoricals, labels = (place(value) for value in row)
    batches = Batch(integers, categoricals, labels, mask=place(np.ones(1, np.float32)), groups=groups)
    pieces = np.zeros(compiled.steps, np.int32)
    pieces[0] = 1
    steps = Steps(batches, placement.copied(pieces), placement.copied(np.asarray(1, np.int32)))
    state, _ = trainer.run(state, steps, key, hyper)
    return state, jax.tree.map(np.asarray, trainer.release(state))


@functools.lru_cache(maxsize=32)
def _gradient(method: Method) -> Any:
    """Returns a function for one example's gradient, by ``jax.grad`` alone."""
    example_loss = OBJECTIVES[method.task].example_loss

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = method.model.apply({"params": params}, integers, categoricals)
        return example_loss(logits, labels)[0]

    return jax.jit(jax.grad(loss))


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])
