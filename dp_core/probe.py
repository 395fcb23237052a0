"""What the training step really does, measured on the step itself.

The compiled step of a run is given, at the run's own parameters, one example at a time without noise,
and then no example with noise. With plain gradient descent as its optimiser the parameters move by
just what the step made of that: an example's contribution, or the noise. The first is compared with
the oracle's, slow and obvious; of the second the scale is measured. A step that does not clip, or
that noises too little, shows here whatever the record says.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dp_core import oracle
from dp_core.clipping import zero_sum
from dp_core.losses import OBJECTIVES
from dp_core.microbatches import make_microbatches
from dp_core.placement import Placement
from dp_core.signals import Batch
from dp_core.training import Hyperparameters, Method, Steps, Trainer, TrainState, as_traced, make_trainer

# Of the measured scale of the noise, and of the likeness of two steps' noise, for a correct step.
FALSE_ALARM_RATE = 1e-6
# Of a contribution's norm and of its distance from the oracle's, in clip norms: rounding stays far below.
TOLERANCE = 1e-4

_ROWS = 8
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


def probe_step(
    method: Method, params: Any, hyper: Hyperparameters, key: jax.Array, examples: tuple[np.ndarray, ...]
) -> Probe:
    """Measures the step of ``method`` at ``params`` with a run's numbers.

    ``hyper.l2_clip_norm`` is the one to probe with; ``examples`` are (integers, categoricals, labels) of a few.
    """
    trainer = make_trainer(method._replace(optimizer="sgd", momentum=0.0))
    params = jax.tree.map(np.asarray, params)
    clip_norm = float(hyper.l2_clip_norm)
    batches = [_one_row(method, *(part[[row]] for part in examples)) for row in range(len(examples[-1]))]

    norms, differences, lengths = _contributions(method, trainer, params, batches, clip_norm)
    half = 0.5 * float(np.median(lengths)) if np.median(lengths) > 0 else clip_norm
    at_half, half_differences, _ = _contributions(method, trainer, params, batches, half)

    noise = _noise(method, trainer, params, hyper, key, nothing=_one_row(method, *examples, present=False))
    squares = np.mean(noise**2, axis=1)
    scale = float(np.sqrt(squares[0] * squares[1]))
    return Probe(
        l2_clip_norm=clip_norm,
        contribution_norms=norms,
        oracle_difference=float(np.max([*differences, *half_differences])),
        at_half=at_half,
        noise_deviation=float(np.sqrt(np.mean(squares))),
        noise_likeness=float(np.mean(noise[0] * noise[1])) / scale if scale > 0 else 1.0,
        coordinates=noise.shape[1],
        noisy_steps=noise.shape[0],
    )


def _noise(
    method: Method, trainer: Trainer, params: Any, hyper: Hyperparameters, key: jax.Array, nothing: Batch
) -> np.ndarray:
    """The noise of several steps without examples, a row each, in clip norms."""
    coordinates = sum(leaf.size for leaf in jax.tree.leaves(params))
    steps = min(max(-(-_NOISE_DRAWS // coordinates), 2), _MOST_NOISY_STEPS)
    # So that the parameters move by a small part of the noise, in units of the first step's clip norm.
    noisy = as_traced(
        hyper._replace(
            learning_rate=_SMALL / (float(hyper.l2_clip_norm) * max(1.0, float(hyper.noise_multiplier))),
            total_steps=_NO_DECAY,
            expected_batch_size=method.microbatch_size,
        )
    )
    state, before, rows = trainer.init(params, noisy), _flat(params), []
    for _ in range(steps):
        # An adaptive clip norm moves, and the noise with it.
        clip_norm = float(state.l2_clip_norm)
        state, after = _step(method.placement, trainer, state, nothing, key, noisy)
        rows.append((before - _flat(after)) / float(noisy.learning_rate) / clip_norm)
        before = _flat(after)
    return np.stack(rows)


def _contributions(
    method: Method, trainer: Trainer, params: Any, batches: Sequence[Batch], clip_norm: float
) -> tuple[list[float], list[float], list[float]]:
    """For each example the norm of what the step adds for it and its distance from the oracle's, in
    clip norms, and the length of its gradient before clipping."""
    quiet = as_traced(
        Hyperparameters(
            learning_rate=1 / clip_norm,
            total_steps=_NO_DECAY,
            expected_batch_size=method.microbatch_size,
            l2_clip_norm=clip_norm,
        )
    )
    norms, differences, lengths = [], [], []
    for batch in batches:
        _, after = _step(method.placement, trainer, trainer.init(params, quiet), batch, jax.random.key(0), quiet)
        contribution = _flat(params) - _flat(after)
        expected, length = _oracle(method)(params, batch, jnp.float32(clip_norm))
        norms.append(float(np.linalg.norm(contribution)))
        differences.append(float(np.linalg.norm(contribution - _flat(expected) / clip_norm)))
        lengths.append(float(length))
    return norms, differences, lengths


def _step(
    placement: Placement, trainer: Trainer, state: TrainState, batch: Batch, key: jax.Array, hyper: Hyperparameters
) -> tuple[TrainState, Any]:
    """One real step, and the parameters after it."""

    def place(leaf: np.ndarray) -> jax.Array:
        one_step = leaf[None, None]
        return placement.batches(one_step.shape, lambda index: one_step[index])

    one, active = np.ones(1, np.int32), np.asarray(1, np.int32)
    steps = Steps(jax.tree.map(place, batch), placement.copied(one), placement.copied(active))
    state, _ = trainer.run(state, steps, key, hyper)
    return state, jax.tree.map(np.asarray, trainer.release(state))


def _one_row(
    method: Method, integers: np.ndarray, categoricals: np.ndarray, labels: np.ndarray, *, present: bool = True
) -> Batch:
    """A physical batch with one example, or with none."""
    rows = _ROWS * method.placement.devices
    mask = np.zeros(rows, np.float32)
    mask[0] = float(present)

    def padded(values: np.ndarray) -> np.ndarray:
        blank = np.zeros((rows, *values.shape[1:]), values.dtype)
        blank[0] = values[0] if present else 0
        return blank

    groups = np.arange(rows, dtype=np.int32) if method.microbatch_size > 1 else None
    return Batch(padded(integers), padded(categoricals), padded(labels), mask, groups)


@functools.lru_cache(maxsize=32)
def _oracle(method: Method) -> Any:
    example_loss = OBJECTIVES[method.task].example_loss

    def clipped(params: Any, batch: Batch, l2_clip_norm: jax.Array) -> tuple[Any, jax.Array]:
        row = jax.tree.map(lambda leaf: leaf[:1], batch)
        microbatches = make_microbatches(method.microbatch_size)
        total = oracle.add_clipped_gradients(
            zero_sum(params),
            method.model,
            params,
            row,
            example_loss,
            l2_clip_norm=l2_clip_norm,
            clipping=method.clipping,
            microbatches=microbatches,
        )
        gradients = oracle.per_example_gradients(method.model, params, row, example_loss)
        return total.gradients, oracle.global_norms(gradients)[0] / method.microbatch_size

    return jax.jit(clipped)


def _flat(params: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(params)])
