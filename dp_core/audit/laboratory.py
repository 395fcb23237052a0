"""The probe's laboratory: runs the compiled program and the step oracle on the same batches, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dp_core.audit.noise_checks import NoiseTest, correlation_test, noise_tests
from dp_core.audit.probe_batches import Examples, empty, full, probe_examples, sparse, to_steps
from dp_core.audit.step_oracle import (
    Fill,
    OracleState,
    OracleStep,
    clipped_weights,
    excess,
    gradient_rounding,
    optimizer_oracle,
    per_example_gradients,
    take_step,
)
from dp_core.clipping.factors import clip_factor
from dp_core.training.method import Method
from dp_core.training.noise import add_gaussian, standard_normal
from dp_core.training.physical_batches import PhysicalShape
from dp_core.training.step import Hyperparameters, TrainState, as_traced, make_trainer

# How far the parameters move in a run, in L2 norm with examples and per coordinate without.
_MOVE, _MOVE_BY_NOISE = 0.05, 0.01
# Minimum number of noise draws to test, and the most steps to draw them in.
_NOISE_DRAWS, _MOST_NOISY_STEPS, _COUNT_DRAWS = 250_000, 4096, 4096
# The same for a program that was measured before.
_FEW_NOISE_DRAWS, _FEW_NOISY_STEPS = 80_000, 3


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


class Comparison(NamedTuple):
    """A run of the probe against the oracle.

    Attributes:
        run: "sparse", "full", "noise" or "whole".
        excess: Largest deviation of a coordinate of the parameters or the optimiser's state, divided by what rounding
            explains. Above 1 the program is not the oracle.
        parameter: The parameter that it is in.
        scale: The program's movement as a multiple of the oracle's, by least squares.
        residual: What is left of the movement after scaling, relative to it.
        clip_norm: The clip norm after the run, as a multiple of the oracle's.
        steps: Number of steps.
        examples: Number of rows with examples, over all steps.
    """

    run: str
    excess: float
    parameter: str
    scale: float
    residual: float
    clip_norm: float
    steps: int
    examples: int


class Laboratory:
    """Runs the compiled program and the oracle on the same batches."""

    def __init__(
        self, compiled: Compiled, params: Any, hyper: Hyperparameters, key: jax.Array, *, thorough: bool = True
    ) -> None:
        self.thorough = thorough
        self.compiled, self.method, self.key = compiled, compiled.method, key
        self.hyper, self.params = hyper, params
        self.trainer = make_trainer(compiled.method)
        self.padded = jax.tree.map(np.asarray, self.method.placement.pad_tables(params))
        self.optimizer = optimizer_oracle(self.method, self.padded)
        paths = jax.tree_util.tree_flatten_with_path(self.padded)[0]
        self.names = ["/".join(part.key for part in path) for path, _ in paths]
        self.ends = np.cumsum([leaf.size for _, leaf in paths])
        self.zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), self.padded)
        self.last_median = 0.0
        self._noise: dict[int, np.ndarray] = {}

    def compare(
        self, data: tuple[np.ndarray, ...], rng: np.random.Generator, *, stretch: float = 30.0
    ) -> list[Comparison]:
        """Returns the comparisons, on examples and rows chosen by ``rng``: all four, or only those with noise."""
        examples = probe_examples(data, self.method.task, rng, stretch=stretch)
        gradients = per_example_gradients(self.method, self.params, examples)
        norms = np.linalg.norm(gradients, axis=1)
        # The step refuses examples whose gradients may overflow when they are squared in float32.
        usable = np.flatnonzero(np.isfinite(norms) & (norms < 1e8))
        examples = Examples(*(part[usable] for part in examples))
        norms = norms[usable]
        clip_norm, clippable = float(self.hyper.l2_clip_norm), norms[norms > 1e-15]
        # Subnormal gradients cannot be clipped in float32, and need not be.
        self.last_median = float(np.median(clippable)) if len(clippable) else 0.0
        half = 0.5 * self.last_median or clip_norm
        shape, size = self.compiled.shape, self.method.microbatch_size
        most = min(2 if self.thorough else 1, self.compiled.steps)
        # At the very end of the schedule float32 knows the rate to a few digits only.
        late = int(0.9 * float(self.hyper.total_steps))
        quiet = self.hyper._replace(noise_multiplier=0.0, count_noise_multiplier=0.0)
        count = len(norms)
        noisy_steps = self.compiled.steps if self.thorough else min(_FEW_NOISY_STEPS, self.compiled.steps)
        comparisons = []
        if self.thorough:
            few = [sparse(shape, size, count, rng) for _ in range(most)]
            comparisons = [
                self._run("sparse", examples, few, quiet, half, late // 2),
                self._run("full", examples, [full(shape, size, count, rng)], quiet, min(clip_norm, half), late // 3),
            ]
        return [
            *comparisons,
            self._run("noise", examples, [empty(shape, size)] * noisy_steps, self.hyper, clip_norm, 0),
            self._run(
                "whole",
                examples,
                [full(shape, size, count, rng, share=share) for share in (1.0, 0.5)][:most],
                self.hyper,
                clip_norm,
                late,
            ),
        ]

    def _run(
        self, name: str, examples: Examples, fills: Sequence[Fill], hyper: Hyperparameters, clip_norm: float, step: int
    ) -> Comparison:
        """Runs one dispatch and the oracle's steps, and compares their ends."""
        hyper = self._with_rate(hyper._replace(l2_clip_norm=clip_norm), examples, fills, step)
        traced = as_traced(hyper)
        state = self.trainer.init(self.params, traced)
        state = state._replace(step=self.method.placement.copied(np.asarray(step, np.int32)))
        steps = to_steps(self.compiled.method, self.compiled.shape, self.compiled.steps, examples, fills)
        after, _ = self.trainer.run(state, steps, self.key, traced)
        oracle = self._start(clip_norm, step)
        positions = [oracle.params[1]]
        for fill in fills:
            oracle = take_step(self.optimizer, oracle, self._oracle_step(oracle, examples, fill, traced))
            positions.append(oracle.params[1])
        return self._compared(name, self.method.placement.whole(after), positions, oracle, fills)

    def _with_rate(
        self, hyper: Hyperparameters, examples: Examples, fills: Sequence[Fill], step: int
    ) -> Hyperparameters:
        """Returns the numbers with a rate that moves the parameters visibly and not far."""
        count = float(hyper.expected_batch_size) / self.method.microbatch_size
        one = self._oracle_step(self._start(float(hyper.l2_clip_norm), step), examples, fills[0], hyper)
        mean = (one.clipped_sum + one.noise) / count
        moments = np.full((len(self.optimizer.initial), self.ends[-1]), 0.0)
        moments += np.array(self.optimizer.initial).reshape(-1, 1)
        _, direction = self.optimizer.update(moments, mean, _flat(self.padded), 1)
        by_noise = not any(np.any(fill.examples >= 0) for fill in fills)
        size = np.sqrt(np.mean(direction**2)) if by_noise else _length(direction)
        wanted = (_MOVE_BY_NOISE if by_noise else _MOVE) / max(float(size), 1e-30)
        decay = 0.5 * (1 + np.cos(np.pi * step / float(hyper.total_steps)))
        return hyper._replace(learning_rate=min(wanted / max(decay, 1e-12), 1e30))

    def _start(self, clip_norm: float, step: int) -> OracleState:
        flat, initial = _flat(self.padded), np.array(self.optimizer.initial).reshape(-1, 1)
        moments = np.tile(initial, (1, len(flat)))
        return OracleState(np.stack([flat] * 3), np.stack([moments] * 3), float(np.float32(clip_norm)), step)

    def _oracle_step(self, state: OracleState, examples: Examples, fill: Fill, hyper: Hyperparameters) -> OracleStep:
        method = self.method
        expected_count = float(hyper.expected_batch_size) / method.microbatch_size
        clipped_sum = rounding = np.zeros(self.ends[-1])
        too_long = 0
        if np.any(fill.examples >= 0):
            params = self._tree(state.params[1].astype(np.float32))
            trimmed = method.placement.trim_tables(params, method.model.vocabulary_sizes)
            gradients = self._padded_gradients(trimmed, examples)
            weights, too_long = clipped_weights(
                fill,
                gradients,
                l2_clip_norm=state.l2_clip_norm,
                clipping=method.clipping,
                microbatch_size=method.microbatch_size,
            )
            clipped_sum = weights @ gradients
            rounding = np.abs(weights) @ gradient_rounding(gradients)
        noise_multiplier, clip_norm = float(hyper.noise_multiplier), state.l2_clip_norm
        noise = np.zeros(self.ends[-1])
        if noise_multiplier > 0:
            noise = noise_multiplier * float(hyper.sensitivity) * clip_norm * self.noise(state.step)
        if clip_factor(method.clipping).adaptive:
            clip_norm = self.next_clip_norm(clip_norm, too_long, state.step, hyper)
        decay = 0.5 * (1 + np.cos(np.pi * state.step / float(hyper.total_steps)))
        rate = float(hyper.learning_rate) * decay
        return OracleStep(clipped_sum, rounding, noise, expected_count, rate, clip_norm)

    def next_clip_norm(self, clip_norm: float, too_long: int, step: int, hyper: Hyperparameters) -> float:
        """Returns the adaptive clip norm of the next step: C · exp(-0.2 · (share within C - quantile))."""
        noisy_count = too_long + float(hyper.count_noise_multiplier) * self._count_noise(step)
        within = 1 - noisy_count * self.method.microbatch_size / float(hyper.expected_batch_size)
        return clip_norm * float(np.exp(-0.2 * (within - float(hyper.clip_quantile))))

    def _padded_gradients(self, params: Any, examples: Examples) -> np.ndarray:
        gradients = per_example_gradients(self.method, params, examples)
        if gradients.shape[1] == self.ends[-1]:
            return gradients
        leaves, structure = jax.tree.flatten(params)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        rows = []
        for gradient in gradients:
            parts = [part.reshape(leaf.shape) for part, leaf in zip(np.split(gradient, ends), leaves, strict=True)]
            rows.append(_flat(self.method.placement.pad_tables(jax.tree.unflatten(structure, parts))))
        return np.stack(rows)

    def noise(self, step: int) -> np.ndarray:
        """Returns the noise of a step in standard deviations, as drawn from the step's key outside of the program."""
        if step not in self._noise:
            self._noise[step] = np.asarray(_draw(self.key, self.zeros, np.int32(step)), np.float64)
        return self._noise[step]

    def noise_by_name(self) -> dict[str, np.ndarray]:
        """Returns the noise of several steps by the name of the parameter, each of shape (steps, coordinates)."""
        wanted = _NOISE_DRAWS if self.thorough else _FEW_NOISE_DRAWS
        steps = int(np.clip(-(-wanted // self.ends[-1]), _FEW_NOISY_STEPS, _MOST_NOISY_STEPS))
        drawn = np.stack([self.noise(step) for step in range(steps)])
        return dict(zip(self.names, np.split(drawn, self.ends[:-1], axis=1), strict=True))

    def other_key_test(self) -> NoiseTest:
        """Tests that another key, with one bit flipped, makes other noise."""
        words = jax.random.key_data(self.key)
        other = jax.random.wrap_key_data(words.at[-1].set(words[-1] ^ 1), impl=jax.random.key_impl(self.key))
        return correlation_test(
            ["a step", "that step with another key"],
            [self.noise(0), np.asarray(_draw(other, self.zeros, np.int32(0)), np.float64)],
        )

    def _count_noise(self, step: int) -> float:
        return float(_draw_count(self.key, np.int32(step)))

    def count_noise_tests(self) -> list[NoiseTest]:
        """Tests the noise on the count of an adaptive clip norm, as drawn for many steps."""
        draws = np.array([self._count_noise(step) for step in range(_COUNT_DRAWS)])
        return [test._replace(what=f"on the count {test.what}") for test in noise_tests({"the count": draws[None, :]})]

    def _tree(self, flat: np.ndarray) -> Any:
        leaves, structure = jax.tree.flatten(self.padded)
        parts = np.split(flat, self.ends[:-1])
        return jax.tree.unflatten(
            structure, [part.reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True)]
        )

    def flat_start(self) -> np.ndarray:
        """Returns the parameters that runs start from, flat and in 64 bits."""
        return _flat(self.padded)

    @staticmethod
    def flat32(tree: Any) -> np.ndarray:
        """Returns all arrays of a tree as one."""
        return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(tree)])

    def moments(self, after: TrainState) -> np.ndarray:
        """Returns the optimiser's moments, of shape (moments, coordinates); NaN if they are not the stated ones."""
        stated = len(self.optimizer.initial)
        arrays = [np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(after.update_state) if leaf.ndim]
        if sum(map(len, arrays)) != stated * self.ends[-1]:
            return np.full((stated, self.ends[-1]), np.nan)
        return np.concatenate(arrays).reshape(stated, -1) if arrays else np.zeros((0, self.ends[-1]))

    def _compared(
        self, name: str, after: TrainState, positions: list[np.ndarray], oracle: OracleState, fills: Sequence[Fill]
    ) -> Comparison:
        found = _flat(after.params)
        moved, moved_here = positions[-1] - positions[0], found - positions[0]
        ratios = excess(found, oracle.params, np.sum(np.abs(np.diff(positions, axis=0)), axis=0))
        for number, values in enumerate(self.moments(after)):
            expected = oracle.moments[:, number]
            ratios = np.maximum(ratios, excess(values, expected, np.abs(expected[1])))
        worst = int(np.argmax(ratios))
        length = _length(moved)
        scale = float(np.sum(moved_here * moved)) / length**2 if length > 0 else 1.0
        rest = _length(moved_here - scale * moved)
        return Comparison(
            run=name,
            excess=float(ratios[worst]),
            parameter=self.names[int(np.searchsorted(self.ends, worst, side="right"))],
            scale=scale,
            residual=rest / length if length > 0 else 0.0,
            clip_norm=float(after.l2_clip_norm) / oracle.l2_clip_norm,
            steps=len(fills),
            examples=int(sum(np.sum(fill.examples >= 0) for fill in fills)),
        )


@jax.jit
def _draw_count(key: jax.Array, step: ArrayLike) -> jax.Array:
    """Returns the noise on a step's count: from the run's key, folded with the step and with 1."""
    return standard_normal(jax.random.fold_in(jax.random.fold_in(key, step), 1))


@jax.jit
def _draw(key: jax.Array, zeros: Any, step: ArrayLike) -> jax.Array:
    """Returns the flat noise of a step at standard deviation 1: from the run's key, folded with the step and with 0."""
    step_key = jax.random.fold_in(jax.random.fold_in(key, step), 0)
    noise = add_gaussian(step_key, zeros, jnp.float32(1.0))
    return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(noise)])


def _length(values: np.ndarray) -> float:
    # Not by BLAS, whose threads compete with training on other threads.
    return float(np.sqrt(np.sum(values**2)))


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
