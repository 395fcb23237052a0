"""Single steps: the compiled step at many step numbers, batch sizes and clip norms, on many training examples.

The probe's other runs look closely at a few examples. A defect may also concern few examples, few steps, or batches of
a certain size. Here every run is one step from the same parameters, so the examples' gradients are computed once and a
run costs little more than the program itself.

Half of the runs have examples and no noise: sizes of batches as the sampler draws them and of any other size, and clip
norms just below the gradient norm of one of the examples. The other half has noise and no examples. Both begin at step
0, near the last step, and at random steps.

Only coordinates that some example's gradient can reach, and a few others, are compared. Tables are cut down to the
tokens of the examples, so the cost does not depend on the size of vocabularies.

What is seen: with r runs, a defect in a share p of the steps or batch sizes is found with probability 1 − (1 − p)^r; a
defect in a share p of the examples with 1 − (1 − p)^m for m examples.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from dp_core.audit.probe_batches import Examples, empty, first_moments, first_scales, first_updates, grouped, to_steps
from dp_core.audit.step_oracle import (
    UPDATE_ROUNDING,
    Fill,
    OracleState,
    OracleStep,
    clipped_weights,
    excess,
    gradient_rounding,
    iterate_weight,
    per_example_gradients,
    rate_share,
    take_step,
)
from dp_core.clipping.factors import clip_factor
from dp_core.training.optimizers import ORACLES
from dp_core.training.step import Hyperparameters, as_traced

if TYPE_CHECKING:
    from dp_core.audit.laboratory import Laboratory

# The most numbers in the examples' gradients, and the numbers of examples to choose from.
_MOST_NUMBERS = 12_000_000
_NUMBERS_OF_EXAMPLES = (256, 128, 64, 32, 16, 8)
# Number of runs for small models; fewer for large ones, so that they move this many coordinates together.
_MOST_RUNS, _FEWEST_RUNS, _MOVED = 32, 4, 240_000
_OTHER_COORDINATES = 1000
_MOVE = 0.05
# Tolerance on the clip norm after a step. One example more or less in a batch of 2,048 changes it by 1e-4. Groups may
# be so near to the clip norm that rounding decides whether they are counted; examples that are so near are avoided.
_COUNTED, _GROUPED, _NEAR = 1e-5, 1e-3, 1e-4
# By how much an example exceeds the clip norm of a run: from 10^-2.5 to 1 of it, in this many equal parts.
_SMALLEST_MARGIN, _MARGINS = 2.5, 4
# Relative distance of the two points that gradients are computed at, and the change between them that shows a kink.
_AWAY, _JUMP = 5e-6, 1e-3


class SingleStep(NamedTuple):
    """The worst of several runs of a kind.

    Attributes:
        run: "examples" or "noise".
        excess: Largest deviation of a coordinate, divided by what rounding explains.
        step: The step number of that run.
        rows: Its number of rows with examples.
        clip_norm: The clip norm after the run with the largest deviation, as a multiple of the oracle's.
        clip_norm_tolerance: How far that may be from 1.
        runs: Number of runs.
        examples: Number of distinct examples.
    """

    run: str
    excess: float
    step: int
    rows: int
    clip_norm: float
    clip_norm_tolerance: float
    runs: int
    examples: int

    def defects(self) -> list[str]:
        """Returns what is wrong; a correct step is never blamed but for rounding, which is allowed for."""
        found = []
        where = f"step {self.step:,} with {self.rows:,} rows"
        if not self.excess <= 1:
            part = "clipping, sum or scale" if self.run == "examples" else "noise or its scale"
            found.append(
                f"the program's {where} is not the oracle's ({part}): it deviates by {self.excess:.3g} times what "
                "rounding explains"
            )
        if not abs(self.clip_norm - 1) <= self.clip_norm_tolerance:
            found.append(f"the clip norm after {where} is {self.clip_norm:.6g} times what the noisy count says")
        return found


class _Compact(NamedTuple):
    """Parameters with the rows of tables that some examples use, and the place of each coordinate in the whole."""

    params: Any
    categoricals: np.ndarray
    columns: np.ndarray


def compare_single_steps(lab: Laboratory, data: Examples, rng: np.random.Generator) -> list[SingleStep]:
    """Runs the program and the oracle on many single steps.

    Args:
        lab: The laboratory, which has the program and its parameters.
        data: Training examples, those that should be looked at first.
        rng: Chooses steps, sizes, rows and clip norms.
    """
    if lab.method.optimizer not in ORACLES:
        # An optimiser that is compared with itself needs whole arrays. The probe's other runs look at it.
        return []
    many = next((number for number in _NUMBERS_OF_EXAMPLES if number * _width(lab, number) <= _MOST_NUMBERS), 8)
    examples = Examples(*(np.asarray(part)[:many] for part in data))
    compact = _compact(lab, examples)
    gradients, smooth = _gradients(lab, compact, examples._replace(categoricals=compact.categoricals), rng)
    norms = np.linalg.norm(first_scales(lab.optimizer, lab.ends[-1])[compact.columns] * gradients, axis=1)
    usable = np.flatnonzero(np.isfinite(norms) & (norms < 1e8) & smooth)
    if not len(usable):
        return []
    others = rng.integers(lab.ends[-1], size=_OTHER_COORDINATES)
    others = others[~np.isin(others, compact.columns)]
    columns = np.concatenate([compact.columns, others])
    gradients = np.pad(gradients[usable], ((0, 0), (0, len(others)))).astype(np.float32)
    bench = _Bench(lab, Examples(*(part[usable] for part in examples)), gradients, norms[usable], columns)
    runs = int(np.clip(_MOVED // lab.ends[-1], _FEWEST_RUNS, _MOST_RUNS))
    return [bench.with_examples(runs if lab.method.microbatch_size == 1 else min(runs, 8), rng), bench.noise(runs, rng)]


def _gradients(
    lab: Laboratory, compact: _Compact, examples: Examples, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the examples' gradients, and which of the examples are not at a kink of the model.

    At a kink float32 and the oracle may take different sides. The gradient is the mean over two points on either side
    of the parameters, further apart than rounding can tell. Where the two differ visibly there is a kink between.
    """
    flat = {path: np.asarray(value, np.float32) for path, value in flatten_dict(compact.params).items()}
    away = {
        path: np.float32(_AWAY) * value * rng.standard_normal(value.shape, np.float32) for path, value in flat.items()
    }
    below, above = (
        per_example_gradients(
            lab.method, unflatten_dict({path: flat[path] + sign * away[path] for path in flat}), examples
        )
        for sign in (np.float32(-1), np.float32(1))
    )
    jump = np.max(np.abs(above - below), axis=1)
    return 0.5 * (below + above), jump <= _JUMP * np.max(np.abs(above), axis=1)


class _Bench:
    """Runs single steps from the laboratory's parameters."""

    def __init__(
        self, lab: Laboratory, examples: Examples, gradients: np.ndarray, norms: np.ndarray, columns: np.ndarray
    ) -> None:
        self.lab, self.examples, self.gradients, self.norms, self.columns = lab, examples, gradients, norms, columns
        self.start, self.scales = lab.flat_start()[columns], first_scales(lab.optimizer, lab.ends[-1])[columns]

    def with_examples(self, runs: int, rng: np.random.Generator) -> SingleStep:
        lab = self.lab
        quiet = lab.hyper._replace(noise_multiplier=0.0, count_noise_multiplier=0.0)
        settings, weights = [], []
        for number, step in enumerate(_steps(lab.hyper, runs, rng)):
            clip_norm, fill = self._setting(number, rng)
            own, too_long = self._weights(fill, clip_norm)
            settings.append((step, clip_norm, fill, too_long))
            weights.append(own)
        stacked = np.stack(weights).astype(np.float32)
        sums = stacked @ self.gradients
        rounding = np.abs(stacked) @ gradient_rounding(self.gradients)
        results = [
            self._run("examples", quiet, *setting[:3], total.astype(np.float64), bound, setting[3])
            for setting, total, bound in zip(settings, sums, rounding, strict=True)
        ]
        return _worst(results, len(self.norms))

    def noise(self, runs: int, rng: np.random.Generator) -> SingleStep:
        lab = self.lab
        nothing = np.zeros(len(self.columns))
        fill = empty(lab.compiled.shape, lab.method.microbatch_size)
        clip_norm = float(lab.hyper.l2_clip_norm)
        return _worst(
            [
                self._run("noise", lab.hyper, step, clip_norm, fill, nothing, nothing, 0)
                for step in _steps(lab.hyper, max(_FEWEST_RUNS, runs // 2), rng)
            ],
            0,
        )

    def _setting(self, number: int, rng: np.random.Generator) -> tuple[float, Fill]:
        """Returns the clip norm and the batch of a run.

        In turn: the run's clip norm; and twice one that some example exceeds by 0.3 % to 100 %, with that and a few
        other examples, and with a batch of any size.
        """
        shape, expected = self.lab.compiled.shape, float(self.lab.hyper.expected_batch_size)
        long, capacity = np.flatnonzero(self.norms > 1e-12), shape.pieces * shape.rows
        chosen = rng.permutation(len(self.norms))
        clip_norm = float(self.lab.hyper.l2_clip_norm)
        if number % 3 and len(long):
            chosen = np.append(rng.choice(long), chosen)
            # Runs take turns at how far the example exceeds the clip norm, so that none misses the small margins.
            margin = 10 ** -(_SMALLEST_MARGIN * (1 - (number % _MARGINS + rng.uniform()) / _MARGINS))
            clip_norm = float(np.float32(self.norms[chosen[0]] / (1 + margin)))
        while np.any(np.abs(self.norms / clip_norm - 1) < _NEAR):
            clip_norm = float(np.float32(clip_norm * (1 - 3 * _NEAR)))
        sizes = rng.normal(expected, expected**0.5), rng.uniform(1, 4), rng.uniform(1, capacity)
        size = int(np.clip(sizes[number % 3], 1, capacity))
        rows = np.full(capacity, -1)
        rows[:size] = np.resize(chosen, size)
        return clip_norm, grouped(Fill(rows.reshape(shape), None), self.lab.method.microbatch_size, rng)

    def _weights(self, fill: Fill, clip_norm: float) -> tuple[np.ndarray, int]:
        method = self.lab.method
        if fill.groups is not None:
            return clipped_weights(
                fill,
                self.gradients.astype(np.float64),
                l2_clip_norm=clip_norm,
                clipping=method.clipping,
                microbatch_size=method.microbatch_size,
            )
        counts = np.bincount(fill.examples[fill.examples >= 0], minlength=len(self.norms))
        factors = np.asarray(clip_factor(method.clipping).oracle(self.norms, clip_norm))
        return factors * counts, int(np.sum(counts[self.norms > clip_norm]))

    def _run(
        self,
        name: str,
        hyper: Hyperparameters,
        step: int,
        clip_norm: float,
        fill: Fill,
        clipped_sum: np.ndarray,
        rounding: np.ndarray,
        too_long: int,
    ) -> SingleStep:
        lab, method, optimizer = self.lab, self.lab.method, self.lab.optimizer
        expected_count = float(hyper.expected_batch_size) / method.microbatch_size
        deviation = float(hyper.noise_multiplier) * float(hyper.sensitivity) * clip_norm / expected_count
        noise, past = np.zeros(len(self.columns)), lab.past(step)
        if deviation > 0:
            noise = deviation * expected_count * past.next(lab.noise(step))[0][self.columns]
            rounding = rounding + deviation * expected_count * past.rounding
        next_norm = clip_norm
        if clip_factor(method.clipping).adaptive:
            next_norm = lab.next_clip_norm(clip_norm, too_long, step, hyper)
        moments = first_moments(optimizer, lab.ends[-1])[:, self.columns]
        updates = first_updates(optimizer)
        mean = (clipped_sum + noise / self.scales) / expected_count
        _, direction = optimizer.update(moments, mean, self.start, updates + 1, deviation)
        weight_decay = float(hyper.weight_decay) * lab.kernels[self.columns]
        direction, decay = direction - weight_decay * self.start, rate_share(hyper, step)
        rate = min(_MOVE / max(float(np.linalg.norm(direction)), 1e-30) / decay, 1e30)
        traced = as_traced(hyper._replace(l2_clip_norm=clip_norm, learning_rate=rate))
        rate = float(traced.learning_rate) * decay
        three, weight = np.stack([self.start] * 3), iterate_weight(method, hyper, step)
        oracle = take_step(
            optimizer,
            OracleState(three, three, np.stack([moments] * 3), clip_norm, step, updates),
            OracleStep(
                *(clipped_sum, rounding, noise, deviation, self.scales),
                *(expected_count, rate, next_norm, weight_decay, weight),
            ),
        )
        state = past.put(method, lab.start_at(traced, lab.start_state(clip_norm, step)))
        steps = to_steps(method, lab.compiled.shape, lab.compiled.steps, self.examples, [fill])
        after, _ = lab.trainer.run(state, steps, lab.key, traced)
        after = method.placement.whole(lab.settled(after, traced))
        # The schedule is computed in float32, which knows 1 + cos to a few digits only near the end.
        known = 1 + 2.0**-22 / decay / UPDATE_ROUNDING
        moved = np.abs(oracle.params[1] - self.start)
        ratios = excess(lab.flat32(after.params)[self.columns], oracle.params, known * moved)
        ratios = np.maximum(ratios, excess(lab.average(after)[self.columns], oracle.average, known * weight * moved))
        for number, values in enumerate(lab.moments(after)):
            expected = oracle.moments[:, number]
            ratios = np.maximum(ratios, excess(values[self.columns], expected, np.abs(expected[1])))
        return SingleStep(
            name,
            float(ratios.max()),
            step,
            int(np.sum(fill.examples >= 0)),
            float(after.l2_clip_norm) / next_norm,
            _COUNTED if method.microbatch_size == 1 else _GROUPED,
            1,
            0,
        )


def _worst(results: list[SingleStep], examples: int) -> SingleStep:
    worst = max(
        results, key=lambda one: (not one.excess <= 1, abs(one.clip_norm - 1) > one.clip_norm_tolerance, one.excess)
    )
    return worst._replace(runs=len(results), examples=examples)


def _steps(hyper: Hyperparameters, runs: int, rng: np.random.Generator) -> list[int]:
    """Returns step numbers: the first, the last whose rate float32 can tell from 0, and random ones."""
    total = int(float(hyper.total_steps))
    last = min(total - 1, int(0.998 * total))
    return [0, max(last, 0), *rng.integers(max(last, 1), size=max(runs - 2, 1)).tolist()]


def _width(lab: Laboratory, examples: int) -> int:
    """Returns the number of coordinates that are compared for this many examples."""
    sizes = {feature: slots for feature, (_, _, slots) in zip(_tables(lab), lab.method.model.features, strict=True)}
    return sum(
        min(len(value), examples * sizes[path]) * value.shape[1] if path in sizes else value.size
        for path, value in flatten_dict(lab.params).items()
    )


def _tables(lab: Laboratory) -> list[tuple[str, str]]:
    return [(name, "table") for name in lab.method.model.vocabulary_sizes]


def _compact(lab: Laboratory, examples: Examples) -> _Compact:
    """Cuts every table down to as many rows as the examples have tokens, the used ones first."""
    flat = flatten_dict(lab.params)
    starts = dict(zip(flatten_dict(lab.padded), np.concatenate([[0], lab.ends[:-1]]), strict=True))
    places = {path: starts[path] + np.arange(value.size) for path, value in flat.items()}
    local, column = np.array(examples.categoricals), 0
    for path, (size, dimension, slots) in zip(_tables(lab), lab.method.model.features, strict=True):
        tokens = examples.categoricals[:, column : column + slots]
        used = np.unique(np.append(tokens[tokens >= 0], 0))
        rows = min(size, len(tokens) * slots)
        used = used if len(used) >= rows else np.append(used, np.setdiff1d(np.arange(size), used)[: rows - len(used)])
        order = np.sort(used)
        local[:, column : column + slots] = np.where(tokens >= 0, np.searchsorted(order, tokens), tokens)
        flat[path] = flat[path][order]
        places[path] = (starts[path] + order[:, None] * dimension + np.arange(dimension)).ravel()
        column += slots
    params = unflatten_dict(flat)
    ordered = [places[path] for path in flatten_dict(params)]
    return _Compact(params, local, np.concatenate(ordered))
