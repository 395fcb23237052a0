"""Probe: runs the very program that trained, and compares it with the step oracle.

The compiled dispatch of a run, with its optimiser, pieces, devices and noise, is run again from the run's last
parameters on batches of the probe's own. Each run of the probe isolates a part, so that a defect has a name:

* *sparse*: a few examples in random rows, in the first and last rows among them, without noise. At a clip norm that
  half of them exceed.
* *full*: every row of every piece holds an example, without noise. At the run's clip norm, or at the one above if it
  is smaller: in a row whose example is not clipped, a row that is never clipped would not show.
* *noise*: no examples at all, with the run's noise. From step 0 on.
* *whole*: full and half-filled batches with noise, late in the run's schedule.

After each the parameters, the optimiser's state and the clip norm must be what the oracle computes from the same
batches and the noise of the step's key: where noise is correlated, with a history that the probe puts into the state
(``correlation``). The noise itself is tested in ``noise_checks``, and the clip factor over norms
that no example reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.audit.laboratory import Laboratory
from dp_core.audit.noise_checks import NoiseTest, noise_tests, strangest
from dp_core.audit.probe_batches import Examples
from dp_core.audit.single_steps import SingleStep, compare_single_steps
from dp_core.audit.step_oracle import Comparison, Compiled
from dp_core.clipping.factors import clip_factor
from dp_core.training.step import Hyperparameters

# Tolerance on the clip factor, in clip norms.
TOLERANCE = 1e-4
# A deviation of a single step that needs no second look, in multiples of what rounding explains.
_FAR = 20.0

__all__ = ["Comparison", "Compiled", "Probe", "probe_step"]


class Probe(NamedTuple):
    """Measurements of a compiled step.

    Attributes:
        noise_multiplier: The noise multiplier that the program was run with.
        sensitivity: The sensitivity that its noise is scaled to, in clip norms.
        count_noise_multiplier: The noise multiplier of the count of an adaptive clip norm.
        comparisons: The runs against the oracle.
        single_steps: The worst of many single steps against the oracle, with examples and with noise.
        noise_tests: The tests of the noise.
        noise_draws: Number of draws that were tested.
        factor_bound: Largest product of a norm and its clip factor, over norms from 0 to 1e30, in clip norms.
        factor_difference: Largest difference of that product from the oracle's.
    """

    noise_multiplier: float
    sensitivity: float
    count_noise_multiplier: float
    comparisons: list[Comparison]
    single_steps: list[SingleStep]
    noise_tests: list[NoiseTest]
    noise_draws: int
    factor_bound: float
    factor_difference: float

    def to_json(self) -> dict[str, Any]:
        """Returns the measurements as JSON values; non-finite numbers become None."""

        def plain(value: Any) -> Any:
            if hasattr(value, "_asdict"):
                return {name: plain(item) for name, item in value._asdict().items()}
            if isinstance(value, list):
                return [plain(item) for item in value]
            return None if isinstance(value, float) and not np.isfinite(value) else value

        return plain(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Probe:
        """Reads what ``to_json`` returned; None becomes NaN."""

        def numbers(item: dict[str, Any]) -> dict[str, Any]:
            return {name: np.nan if one is None else one for name, one in item.items()}

        comparisons = [Comparison(**numbers(item)) for item in value["comparisons"]]
        tests = [NoiseTest(**numbers(item)) for item in value["noise_tests"]]
        singles = [SingleStep(**numbers(item)) for item in value["single_steps"]]
        return cls(**{**numbers(value), "comparisons": comparisons, "single_steps": singles, "noise_tests": tests})

    def defects(self) -> list[str]:
        """Returns what is wrong with the step as the stated mechanism; an empty list if nothing is.

        A correct step is blamed with probability at most ``noise_checks.FALSE_ALARM_RATE``: the comparisons allow
        for rounding and are otherwise exact.
        """
        found = []
        if not self.factor_bound <= 1 + TOLERANCE:
            found.append(
                f"the clip factor lets a gradient contribute {self.factor_bound:.3g} clip norms; at most 1 is allowed"
            )
        if not self.factor_difference <= TOLERANCE:
            found.append(f"the clip factor differs from its oracle by {self.factor_difference:.3g} clip norms")
        for comparison in self.comparisons:
            found += _blame(comparison)
        for one in self.single_steps:
            found += one.defects()
        return found + strangest(self.noise_tests)


_PARTS = {
    "sparse": "the step on a few examples without noise is not the oracle's (gradients, clipping or their sum)",
    "full": "the step on a full batch without noise is not the oracle's (clipping, layout or scale)",
    "noise": "the step without examples does not add the noise of its key (noise or its scale)",
    "whole": "the step with examples and noise is not the oracle's (noise, scale, optimiser or schedule)",
}


def _blame(comparison: Comparison) -> list[str]:
    found = []
    if not comparison.excess <= 1:
        scaled = ""
        if abs(comparison.scale - 1) > 1e-3 and comparison.residual < 0.05:
            scaled = f"; it moved {comparison.scale:.4g} times as far in the right direction"
        found.append(
            f"{_PARTS[comparison.run]}: {comparison.parameter} deviates by {comparison.excess:.3g} times what rounding "
            f"explains{scaled}"
        )
    if not abs(comparison.clip_norm - 1) <= 1e-3:
        found.append(
            f"the clip norm after the {comparison.run} batches is {comparison.clip_norm:.6g} times what the noisy "
            "count says"
        )
    return found


def probe_step(
    compiled: Compiled,
    params: Any,
    hyper: Hyperparameters,
    key: jax.Array,
    data: tuple[np.ndarray, ...],
    *,
    seed: int,
    thorough: bool = True,
) -> Probe:
    """Measures a compiled step.

    A difference from the oracle must show for two independent choices of examples to be blamed. Where a unit of the
    model is at a kink to the last bit, float32 and the oracle may take different sides of it for one example, but not
    for another choice. Features that are made large may overflow; the second choice has none.

    Args:
        compiled: The program to measure.
        params: The parameters to measure at, usually the run's last.
        hyper: The run's numbers; ``l2_clip_norm`` is the clip norm to measure at.
        key: A noise key that no step of the run has used.
        data: (integers, categoricals, labels) of some training examples.
        seed: Chooses the rows that the examples are put into.
        thorough: Whether to take single steps and to look at every step of a dispatch. Not needed again for a program
            that was measured with other numbers before.

    Returns:
        The measurements.
    """
    # Numbers that are not finite make a comparison fail, which is what it is for.
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return _probed(
            Laboratory(compiled, jax.tree.map(np.asarray, params), hyper, key, thorough=thorough), data, seed
        )


def _probed(lab: Laboratory, data: tuple[np.ndarray, ...], seed: int) -> Probe:
    compiled, hyper = lab.compiled, lab.hyper
    comparisons = lab.compare(data, np.random.default_rng(seed))
    if any(not one.excess <= 1 for one in comparisons):
        comparisons = lab.compare(data, np.random.default_rng(seed + 1), stretch=1.0)
    singles = _single_steps(lab, data, seed + 2) if lab.thorough else []
    noise = lab.noise_by_name()
    tests = [*noise_tests(noise), lab.other_key_test()]
    if clip_factor(compiled.method.clipping).adaptive:
        tests += lab.count_noise_tests()
    half = 0.5 * lab.last_median or float(hyper.l2_clip_norm)
    factor_bound, factor_difference = _factor_errors(compiled.method.clipping, [float(hyper.l2_clip_norm), half])
    return Probe(
        noise_multiplier=float(hyper.noise_multiplier),
        sensitivity=float(hyper.sensitivity),
        count_noise_multiplier=float(hyper.count_noise_multiplier),
        comparisons=comparisons,
        single_steps=singles,
        noise_tests=tests,
        noise_draws=sum(values.size for values in noise.values()),
        factor_bound=factor_bound,
        factor_difference=factor_difference,
    )


def _single_steps(lab: Laboratory, data: tuple[np.ndarray, ...], seed: int) -> list[SingleStep]:
    singles = compare_single_steps(lab, Examples(*data), np.random.default_rng(seed))
    if not any(one.defects() for one in singles):
        return singles
    again = compare_single_steps(lab, Examples(*data), np.random.default_rng(seed + 1))
    # Blamed if a second choice shows it too, or if it is far more than rounding can do.
    return [
        one if not one.excess <= _FAR or not one.defects() else other for one, other in zip(singles, again, strict=True)
    ]


def _factor_errors(clipping: str, clip_norms: Sequence[float]) -> tuple[float, float]:
    """Returns the largest contribution that a clip factor allows, and its largest difference from the oracle's.

    Both are in clip norms, over gradient norms that the few examples of a probe do not reach.
    """
    factor = clip_factor(clipping)
    grid = np.concatenate([[0.0], np.logspace(-30, 30, 241)]).astype(np.float32).astype(np.float64)
    errors = []
    for clip_norm in clip_norms:
        # Factors of longer gradients are subnormal numbers, which a device may round to 0.
        norms = grid[grid <= 1e35 * clip_norm]
        traced = np.asarray(factor.traced(jnp.asarray(norms, jnp.float32), jnp.float32(clip_norm)), np.float64)
        allowed, expected = (factors * norms / clip_norm for factors in (traced, factor.oracle(norms, clip_norm)))
        errors.append((np.max(allowed), np.max(np.abs(allowed - expected))))
    bounds, differences = zip(*errors, strict=True)
    return float(np.max(bounds)), float(np.max(differences))
