"""The probe's laboratory: runs the compiled program and the step oracle on the same batches, and compares them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from dp_core.audit.correlation import Past, covered_coordinates, moments_of, no_past, some_past
from dp_core.audit.lazy_noise import StepNoise, draw_count
from dp_core.audit.noise_checks import NoiseTest, correlation_test, noise_tests
from dp_core.audit.probe_batches import (
    Examples,
    empty,
    first_moments,
    first_updates,
    full,
    nearly_full,
    probe_examples,
    sparse,
    to_dispatches,
    with_moments,
)
from dp_core.audit.step_oracle import (
    Comparison,
    Compiled,
    Fill,
    OracleState,
    OracleStep,
    clipped_weights,
    excess,
    gradient_rounding,
    iterate_weight,
    mean_gradient,
    optimizer_oracle,
    per_example_gradients,
    rate_share,
    take_step,
)
from dp_core.clipping.factors import clip_factor
from dp_core.training.step import Hyperparameters, TrainState, as_traced, make_trainer

# How far the parameters move in a run, in L2 norm with examples and per coordinate without.
_MOVE, _MOVE_BY_NOISE = 0.05, 0.01
# Minimum number of noise draws to test, and the most steps to draw them in.
_NOISE_DRAWS, _MOST_NOISY_STEPS, _COUNT_DRAWS = 250_000, 4096, 4096
# The same for a program that was measured before.
_FEW_NOISE_DRAWS, _FEW_NOISY_STEPS = 80_000, 3


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
        # The kernels of dense layers, which decay.
        self.kernels = np.concatenate([np.full(leaf.size, float(path[-1].key == "kernel")) for path, leaf in paths])
        self.last_median = 0.0
        self._noises = StepNoise(self.method, self.padded, key)
        covered = covered_coordinates(self.padded)
        self._no_past = no_past(self.method, covered)
        self._some_past = some_past(self.method, covered, np.random.default_rng(0))

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
        # Rows of lazy tables are read again after a gap, and at once.
        shares = (0.5, 0.0, 0.0, 1.0, 0.5, 0.0) if self.method.lazy_tables else (1.0, 0.5)[:most]
        noisy_steps = max(noisy_steps, _FEW_NOISY_STEPS) if self.method.lazy_tables else noisy_steps
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
                [full(shape, size, count, rng, share=share) if share else empty(shape, size) for share in shares],
                self.hyper,
                clip_norm,
                late,
            ),
        ]

    def _run(
        self, name: str, examples: Examples, fills: Sequence[Fill], hyper: Hyperparameters, clip_norm: float, step: int
    ) -> Comparison:
        """Runs dispatches and the oracle's steps, and compares their ends."""
        hyper = self._with_rate(hyper._replace(l2_clip_norm=clip_norm), examples, fills, step)
        traced, oracle = as_traced(hyper), self.start_state(clip_norm, step)
        past = self.past(step)
        state = past.put(self.method, self.start_at(traced, oracle))
        if self.method.lazy_tables:
            room_after = min(3, len(fills)) if name == "whole" else None
            state = nearly_full(self.method.placement, state, room_after)
            self._noises.set_run(traced, step, (examples, fills), room_after)
        for steps in to_dispatches(self.compiled, examples, fills):
            state, _ = self.trainer.run(state, steps, self.key, traced)
        after = self.settled(state, traced)
        states = [oracle]
        for fill in fills:
            one, past = self._oracle_step(oracle, examples, fill, traced, past)
            oracle = take_step(self.optimizer, oracle, one)
            states.append(oracle)
        self._noises.forget_run()
        return self._compared(name, after, states, fills, past)

    def past(self, step: int) -> Past:
        """Returns the noises before a step of the probe: none before the first, and made-up ones before any other."""
        return self._some_past if step else self._no_past

    def _with_rate(
        self, hyper: Hyperparameters, examples: Examples, fills: Sequence[Fill], step: int
    ) -> Hyperparameters:
        """Returns the numbers with a rate that moves the parameters visibly and not far."""
        start = self.start_state(float(hyper.l2_clip_norm), step)
        one, _ = self._oracle_step(start, examples, fills[0], hyper, self.past(step))
        _, direction = self.optimizer.update(
            start.moments[1], mean_gradient(one), _flat(self.padded), start.updates + 1, one.noise_deviation
        )
        direction = direction - one.weight_decay * _flat(self.padded)
        by_noise = not any(np.any(fill.examples >= 0) for fill in fills)
        size = np.sqrt(np.mean(direction**2)) if by_noise else _length(direction)
        wanted = (_MOVE_BY_NOISE if by_noise else _MOVE) / max(float(size), 1e-30)
        return hyper._replace(learning_rate=min(wanted / max(rate_share(hyper, step), 1e-12), 1e30))

    def start_state(self, clip_norm: float, step: int) -> OracleState:
        """Returns the oracle's state before a run."""
        three = np.stack([_flat(self.padded)] * 3)
        moments = np.stack([first_moments(self.optimizer, self.ends[-1])] * 3)
        return OracleState(three, three, moments, float(np.float32(clip_norm)), step, first_updates(self.optimizer))

    def start_at(self, hyper: Hyperparameters, oracle: OracleState) -> TrainState:
        """Returns the program's state at the oracle's step, updates and moments."""
        placement = self.method.placement
        state = self.trainer.init(self.params, hyper)
        state = state._replace(step=placement.copied(np.asarray(oracle.step, np.int32)))
        if self.optimizer.scales is None:
            return state
        return with_moments(placement, state, oracle.updates, [self._tree(one) for one in oracle.moments[1]])

    def _oracle_step(
        self, state: OracleState, examples: Examples, fill: Fill, hyper: Hyperparameters, past: Past
    ) -> tuple[OracleStep, Past]:
        """Returns the numbers of a step, and the noises before the next."""
        method = self.method
        expected_count = float(hyper.expected_batch_size) / method.microbatch_size
        clipped_sum = rounding = np.zeros(self.ends[-1])
        scales = np.ones(self.ends[-1])
        if self.optimizer.scales is not None:
            scales = state.moments[1, self.optimizer.scales]
        too_long = 0
        if np.any(fill.examples >= 0):
            params = self._tree(state.params[1].astype(np.float32))
            trimmed = method.placement.trim_tables(params, method.model.vocabulary_sizes)
            gradients = self._padded_gradients(trimmed, examples)
            weights, too_long = clipped_weights(
                fill,
                scales * gradients,
                l2_clip_norm=state.l2_clip_norm,
                clipping=method.clipping,
                microbatch_size=method.microbatch_size,
            )
            clipped_sum = weights @ gradients
            rounding = np.abs(weights) @ gradient_rounding(gradients)
        noise_multiplier, clip_norm = float(hyper.noise_multiplier), state.l2_clip_norm
        noise = np.zeros(self.ends[-1])
        if noise_multiplier > 0 or self.method.bands > 1:
            drawn, past = past.next(self.noise(state.step))
            noise = noise_multiplier * float(hyper.sensitivity) * clip_norm * drawn if noise_multiplier > 0 else noise
            rounding = rounding + noise_multiplier * float(hyper.sensitivity) * clip_norm * past.rounding
        if clip_factor(method.clipping).adaptive:
            clip_norm = self.next_clip_norm(clip_norm, too_long, state.step, hyper)
        numbers = OracleStep(
            clipped_sum,
            rounding,
            noise,
            noise_multiplier * float(hyper.sensitivity) * state.l2_clip_norm / expected_count,
            scales,
            expected_count,
            float(hyper.learning_rate) * rate_share(hyper, state.step),
            clip_norm,
            float(hyper.weight_decay) * self.kernels,
            iterate_weight(method, hyper, state.step),
        )
        return numbers, past

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
        return self._noises.of(step)

    def settled(self, state: TrainState, hyper: Hyperparameters) -> TrainState:
        return self.trainer.settle(state, self.key, hyper)[0]

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
            [self.noise(0), self._noises.drawn(other, 0)],
        )

    def _count_noise(self, step: int) -> float:
        return float(draw_count(self.key, np.int32(step)))

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

    def _name(self, coordinate: int) -> str:
        return self.names[int(np.searchsorted(self.ends, coordinate, side="right"))]

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
        arrays = moments_of(after)
        if sum(map(len, arrays)) != stated * self.ends[-1]:
            return np.full((stated, self.ends[-1]), np.nan)
        return np.concatenate(arrays).reshape(stated, -1) if arrays else np.zeros((0, self.ends[-1]))

    def average(self, after: TrainState) -> np.ndarray:
        """Returns the average of the iterates, with the padding of tables; without averaging, the parameters."""
        return _flat(after.update_state.average if self.method.averaging != "none" else after.params)

    def _released_excess(self, after: TrainState, states: Sequence[OracleState]) -> float:
        """Returns the largest deviation of what the trainer would release from the oracle's average."""
        sizes = self.method.model.vocabulary_sizes

        def trimmed(flat: np.ndarray) -> np.ndarray:
            return _flat(self.method.placement.trim_tables(self._tree(flat), sizes))

        expected = np.stack([trimmed(end) for end in states[-1].average])
        way = np.sum(np.abs(np.diff([trimmed(state.average[1]) for state in states], axis=0)), axis=0)
        return float(np.max(excess(_flat(self.trainer.release(after)), expected, way)))

    def _compared(
        self, name: str, state: TrainState, states: Sequence[OracleState], fills: Sequence[Fill], past: Past
    ) -> Comparison:
        released = self._released_excess(state, states)
        after, oracle = self.method.placement.whole(state), states[-1]
        positions = [one.params[1] for one in states]
        found = _flat(after.params)
        moved, moved_here = positions[-1] - positions[0], found - positions[0]
        ratios = excess(found, oracle.params, np.sum(np.abs(np.diff(positions, axis=0)), axis=0))
        for number, values in enumerate(self.moments(after)):
            expected = oracle.moments[:, number]
            ratios = np.maximum(ratios, excess(values, expected, np.abs(expected[1])))
        ratios = np.maximum(ratios, past.excess(after))
        worst = int(np.argmax(ratios))
        length = _length(moved)
        scale = float(np.sum(moved_here * moved)) / length**2 if length > 0 else 1.0
        rest = _length(moved_here - scale * moved)
        return Comparison(
            run=name,
            excess=max(float(ratios[worst]), released),
            parameter="what is released" if released > ratios[worst] else self._name(worst),
            scale=scale,
            residual=rest / length if length > 0 else 0.0,
            clip_norm=float(after.l2_clip_norm) / oracle.l2_clip_norm,
            steps=len(fills),
            examples=int(sum(np.sum(fill.examples >= 0) for fill in fills)),
        )


def _length(values: np.ndarray) -> float:
    # Not by BLAS, whose threads compete with training on other threads.
    return float(np.sqrt(np.sum(values**2)))


def _flat(tree: Any) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
