"""What the training step really does, measured on the compiled step itself.

The step that trained a run is given, at the run's own parameters, one example at a time without noise,
and then no example with noise. With gradient descent, started afresh, the parameters move by just what
the step made of that: an example's contribution, or the noise. The first is compared with the example's
gradient as JAX gives it, clipped by hand; of the second the scale is measured. A step that does not
clip, or that noises too little, shows here whatever the record says.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import stats

from dp_core.clipping import AUTOMATIC_STABILITY
from dp_core.losses import OBJECTIVES
from dp_core.physical_batches import PhysicalShape
from dp_core.signals import Batch
from dp_core.training import Hyperparameters, Method, Steps, Trainer, TrainState, as_traced, make_trainer

# Of the measured scale of the noise, and of the likeness of two steps' noise, for a correct step.
FALSE_ALARM_RATE = 1e-6
# Of a contribution's norm and of its distance from the oracle's, in clip norms: rounding stays far below.
TOLERANCE = 1e-4

_NO_DECAY = 1e9
_SMALL = 1e-3
# Of the noise at least so many numbers are measured, in so many steps at most.
_NOISE_DRAWS, _MOST_NOISY_STEPS = 20_000, 64


class Probe(NamedTuple):
    """What was measured, in clip norms.

    ``at_half`` are the contributions with a clip norm of half the typical gradient's, so that there
    is something to clip. ``noise_deviation`` (standard) is over ``coordinates`` numbers of each of
    ``noisy_steps``, ``noise_likeness`` (the correlation of two steps' noise) over those of two.
    """

    l2_clip_norm: float
    contribution_norms: list[float]
    oracle_difference: float
    at_half: list[float]
    noise_deviation: float
    noise_likeness: float
    coordinates: int
    noisy_steps: int

    def to_json(self) -> dict[str, Any]:
        """JSON has no NaN: what is not finite becomes None."""

        def finite(value: Any) -> Any:
            if isinstance(value, list):
                return [finite(item) for item in value]
            return value if np.isfinite(value) else None

        return {name: finite(value) for name, value in self._asdict().items()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Probe:
        def number(value: Any) -> Any:
            if isinstance(value, list):
                return [number(item) for item in value]
            return np.nan if value is None else value

        return cls(**{name: number(item) for name, item in value.items()})

    @property
    def noise_draws(self) -> int:
        return self.coordinates * self.noisy_steps

    def defects(self, stated_deviation: float) -> list[str]:
        """Why the step is not a mechanism with noise of that standard deviation, in clip norms, if it is not."""
        found = []
        for clip_norm, norms in (("C", self.contribution_norms), ("a smaller C", self.at_half)):
            largest = float(np.max(norms))
            if not largest <= 1 + TOLERANCE:
                found.append(
                    f"an example contributed {largest:.3g} clip norms to a sum at {clip_norm}, where 1 is most"
                )
        if not self.oracle_difference <= TOLERANCE:
            found.append(f"a contribution differs from the oracle's by {self.oracle_difference:.3g} clip norms")
        # The sum of squares of so many normal numbers.
        ratio = self.noise_deviation / stated_deviation if stated_deviation > 0 else np.nan
        law, total = stats.chi2(self.noise_draws), self.noise_draws * ratio**2
        if not min(law.cdf(total), law.sf(total)) >= FALSE_ALARM_RATE / 2:
            found.append(
                f"the noise has a standard deviation of {self.noise_deviation:.4g} clip norms, measured over "
                f"{self.noise_draws:,} draws, where {stated_deviation:.4g} is stated"
            )
        likeness = float(stats.norm.isf(FALSE_ALARM_RATE / 2)) / self.coordinates**0.5
        if not abs(self.noise_likeness) <= likeness:
            found.append(f"the noise of two steps has a correlation of {self.noise_likeness:.3g}, where none is stated")
        return found


class Compiled(NamedTuple):
    """A method's step, as it is compiled for dispatches of so many steps of batches in that shape."""

    method: Method
    shape: PhysicalShape
    steps: int

    @property
    def descent(self) -> Method:
        """The same with gradient descent, which moves the parameters by what it is given.

        That is the method itself where it descends, with or without momentum, so that nothing is
        compiled anew. What another optimiser does with a noisy sum is no matter of privacy.
        """
        return self.method if self.method.optimizer == "sgd" else self.method._replace(optimizer="sgd", momentum=0.0)


def probe_step(
    compiled: Compiled, params: Any, hyper: Hyperparameters, key: jax.Array, examples: tuple[np.ndarray, ...]
) -> Probe:
    """Measures the step at ``params`` with a run's numbers.

    ``hyper.l2_clip_norm`` is the one to probe with; ``examples`` are (integers, categoricals, labels) of a few.
    """
    params = jax.tree.map(np.asarray, params)
    clip_norm = float(hyper.l2_clip_norm)
    size = compiled.method.microbatch_size
    rows = [tuple(part[[row]] for part in examples) for row in range(len(examples[-1]))]
    gradients = [_flat(_gradient(compiled.method)(params, *row)) / size for row in rows]
    half = 0.5 * float(np.median([np.linalg.norm(gradient) for gradient in gradients])) or clip_norm

    found = {}
    for bound in (clip_norm, half):
        contributions = [_contribution(compiled, params, row, bound) for row in rows]
        expected = [_clip_factor(compiled.method, gradient, bound) * gradient / bound for gradient in gradients]
        differences = [np.linalg.norm(a - b) for a, b in zip(contributions, expected, strict=True)]
        found[bound] = [float(np.linalg.norm(c)) for c in contributions], float(np.max(differences))
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
    )


def _contribution(compiled: Compiled, params: Any, row: tuple[np.ndarray, ...], clip_norm: float) -> np.ndarray:
    """What the step adds to the sum for one example, in clip norms."""
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
    """The noise of several steps without examples, a row each, in clip norms."""
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(params))
    steps = min(max(-(-_NOISE_DRAWS // coordinates), 2), _MOST_NOISY_STEPS)
    # So that the parameters move by a small part of the noise, in units of the first step's clip norm.
    noisy = as_traced(
        hyper._replace(
            learning_rate=_SMALL / (float(hyper.l2_clip_norm) * max(1.0, float(hyper.noise_multiplier))),
            total_steps=_NO_DECAY,
            expected_batch_size=compiled.method.microbatch_size,
        )
    )
    trainer = make_trainer(compiled.descent)
    state, before, last, drawn = trainer.init(params, noisy), _flat(params), np.zeros(coordinates), []
    for _ in range(steps):
        # An adaptive clip norm moves, and the noise with it.
        clip_norm = float(state.l2_clip_norm)
        state, released = _step(compiled, trainer, state, row, key, noisy, present=False)
        after = _flat(released)
        # Momentum repeats a part of the step before.
        moved = before - after
        drawn.append((moved - compiled.descent.momentum * last) / float(noisy.learning_rate) / clip_norm)
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
    """One real step on one example, or on none, and the parameters after it."""
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
    """One example's gradient, by JAX alone."""
    example_loss = OBJECTIVES[method.task].example_loss

    def loss(params: Any, integers: jax.Array, categoricals: jax.Array, labels: jax.Array) -> jax.Array:
        logits: Any = method.model.apply({"params": params}, integers, categoricals)
        return example_loss(logits, labels)[0]

    return jax.jit(jax.grad(loss))


def _clip_factor(method: Method, gradient: np.ndarray, clip_norm: float) -> float:
    norm = float(np.linalg.norm(gradient))
    if method.clipping == "automatic":
        return clip_norm / (norm + AUTOMATIC_STABILITY)
    return min(1.0, clip_norm / norm) if norm > 0 else 1.0


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])
