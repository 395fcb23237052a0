"""Noise of the releases besides training: what was measured of it where it was drawn, and tests of it.

A private vocabulary adds Gaussian noise to the counts of tokens, and the histogram that label bins are fitted to has
two-sided geometric noise. Both are released once, so the noise is measured when it is drawn, as the difference between
the noisy array that is used and the exact one, and the audit tests it later. Where too few numbers are noised to tell
anything, the same function is also called with other counts, whose noise is measured and discarded.

What is measured says something about exact counts. It is not private, and stays with the prepared data or the trial.

Each test reports correct noise with probability at most ``FALSE_ALARM_RATE``. Measured power: with probability 0.99,
Gaussian noise at 0.85 times the stated standard deviation is reported after 1,000 draws, at 0.1 times after 10 draws,
and Laplace or uniform noise of the right variance after 2,500 draws. Missing noise is reported after one draw. Of the
histogram, noise at 0.9 times the stated scale is reported.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any, TypedDict

import numpy as np
from scipy import stats

from dp_core.audit.chances import binomial_chance

FALSE_ALARM_RATE = 1e-6
# Draws of the probes, where the function that draws is called for its noise alone.
PROBED_DRAWS = 4000
PROBED_CELLS = 10_000

_CELLS = 16
_HEAD = 8
# Independent draws agree this closely in three places with a probability of 2e-13.
_SAME, _FEWEST_SAME = 1e-4, 3


@dataclasses.dataclass(frozen=True)
class GaussianNoise:
    """What was measured of standardised noise, (noisy − exact) / stated standard deviation.

    Attributes:
        draws: The number of draws.
        squares: The sum of their squares.
        products: The sum over disjoint pairs of successive draws of their product.
        cells: The number of draws in each of 16 equally likely cells.
        repeats: How many calls began with the same draws as another one.
        heads: The first draws of each call, to find repeats. They are not stored: they would reveal exact counts.
    """

    draws: int = 0
    squares: float = 0.0
    products: float = 0.0
    cells: tuple[int, ...] = (0,) * _CELLS
    repeats: int = 0
    heads: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def measured(cls, noise: np.ndarray, standard_deviation: float) -> GaussianNoise:
        """Measures the noise of one call, in the order of its draws."""
        z = np.asarray(noise, np.float64) / standard_deviation
        pairs = z[: len(z) // 2 * 2].reshape(-1, 2)
        cell = np.minimum((stats.norm.cdf(z) * _CELLS).astype(np.int64), _CELLS - 1)
        cells = tuple(int(count) for count in np.bincount(cell, minlength=_CELLS))
        heads = (tuple(float(value) for value in z[:_HEAD]),) if len(z) >= _FEWEST_SAME else ()
        return cls(len(z), float(np.sum(z * z)), float(np.sum(pairs[:, 0] * pairs[:, 1])), cells, 0, heads)

    @classmethod
    def together(cls, parts: Iterable[GaussianNoise]) -> GaussianNoise:
        """Adds up what was measured in several calls."""
        parts = list(parts)
        heads = sorted(head for part in parts for head in part.heads)
        same = sum(
            all(abs(a - b) < _SAME for a, b in zip(one, other, strict=False))
            for one, other in itertools.pairwise(heads)
        )
        return cls(
            draws=sum(part.draws for part in parts),
            squares=float(sum(part.squares for part in parts)),
            products=float(sum(part.products for part in parts)),
            cells=tuple(int(count) for count in np.sum([cls().cells, *(part.cells for part in parts)], axis=0)),
            repeats=same,
            heads=tuple(heads),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns what is stored, as a JSON-able dictionary."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "heads"}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> GaussianNoise:
        """Reads what ``to_json`` returned."""
        return cls(**{**value, "cells": tuple(value["cells"])})

    def defects(self, name: str) -> list[str]:
        """Tests whether this was independent Gaussian noise of the stated scale.

        Args:
            name: What the noise was added to, such as "the counts of the private vocabulary".

        Returns:
            A description of each defect; empty if there is none.
        """
        defects = []
        if self.repeats:
            defects.append(f"the noise of {name} is not fresh: {self.repeats:,} times the same noise was drawn again")
        if not self.draws:
            return defects
        law = stats.chi2(self.draws)
        if 2 * min(law.cdf(self.squares), law.sf(self.squares)) < FALSE_ALARM_RATE:
            defects.append(
                f"the noise of {name} has {(self.squares / self.draws) ** 0.5:.4g} times the stated standard "
                f"deviation, over {self.draws:,} draws"
            )
        chances = binomial_chance(self.cells, self.draws, 1 / _CELLS)
        if chances.min() * _CELLS < FALSE_ALARM_RATE:
            worst = int(chances.argmin())
            defects.append(
                f"the noise of {name} is not Gaussian: {self.cells[worst]:,} of {self.draws:,} draws are in a "
                f"sixteenth of the distribution, where {self.draws / _CELLS:,.0f} are expected"
            )
        if self._chance_of_products() < FALSE_ALARM_RATE:
            defects.append(
                f"the noise of {name} is not independent: successive draws have a correlation of "
                f"{2 * self.products / self.draws:.3g}"
            )
        return defects

    def _chance_of_products(self) -> float:
        """Returns a Chernoff bound: a product of two independent Gaussians has E[exp(s·xy)] = (1 − s²)^(−1/2)."""
        pairs, size = self.draws // 2, abs(self.products)
        if not pairs or not size:
            return 1.0
        # The minimum over s of −s·size − pairs/2·log(1 − s²).
        stake = (-pairs + (pairs**2 + 4 * size**2) ** 0.5) / (2 * size)
        return float(min(1.0, 2 * np.exp(-stake * size - pairs / 2 * np.log1p(-(stake**2)))))


class HistogramNoise(TypedDict):
    """What was measured of the noise of a label histogram.

    Attributes:
        exact: The exact number of labels in each cell.
        noisy: The numbers that bins were fitted to, at least 0.
        probed: The number of cells without labels that were noised only to measure it.
        reached: ``[k, number]``: how many of those had a noisy number of at least k.
        repeated: Whether two such calls had the same noise.
    """

    exact: list[int]
    noisy: list[int]
    probed: int
    reached: list[tuple[int, int]]
    repeated: bool


def histogram_noise(
    exact: np.ndarray, noisy: np.ndarray, first: np.ndarray, second: np.ndarray, *, epsilon: float
) -> HistogramNoise:
    """Measures the noise of a histogram.

    Args:
        exact: The exact numbers. Shape [cells].
        noisy: The noisy ones that are used. Shape [cells].
        first: A noisy histogram of no labels, from the same function. Shape [probed cells].
        second: Another one.
        epsilon: The stated ε of the histogram, which determines the levels that are counted.
    """
    probe = np.concatenate([first, second])
    # The smallest noise above 0, and what about these shares of draws reach.
    levels = {1, *(max(1, round(-2 / epsilon * float(np.log(2 * share)))) for share in (0.4, 0.3, 0.2, 0.1, 0.01))}
    return {
        "exact": exact.tolist(),
        "noisy": noisy.tolist(),
        "probed": len(probe),
        "reached": [(int(level), int(np.count_nonzero(probe >= level))) for level in sorted(levels)],
        "repeated": bool(np.array_equal(first, second)),
    }


def histogram_defects(epsilon: float, measured: HistogramNoise | None) -> list[str]:
    """Tests whether a label histogram had two-sided geometric noise, P(x) ∝ e^(−|x|·ε/2), in each cell.

    Args:
        epsilon: The stated ε of the histogram.
        measured: What was measured of its noise, if it was.

    Returns:
        A description of each defect; empty if there is none.
    """
    if measured is None:
        return ["the noise of the label histogram was not measured"]
    ratio = np.exp(-epsilon / 2)
    defects = []
    noise = np.asarray(measured["noisy"]) - np.asarray(measured["exact"])
    # Numbers below 0 were set to 0, so a cell that is 0 has at most this noise.
    whole = noise[np.asarray(measured["noisy"]) > 0]
    most_likely = (1 - ratio) / (1 + ratio)
    if len(whole) > 1 and np.all(whole == whole[0]) and most_likely ** (len(whole) - 1) < FALSE_ALARM_RATE:
        defects.append(f"the noise of the label histogram is {whole[0]} in all of {len(whole)} cells")
    elif len(whole) and not whole.any() and most_likely ** len(whole) < FALSE_ALARM_RATE:
        defects.append(f"the label histogram has no noise in {len(whole)} cells")
    if len(noise) and len(noise) * 2 * ratio ** float(np.abs(whole).max(initial=0)) / (1 + ratio) < FALSE_ALARM_RATE:
        defects.append(
            f"a cell of the label histogram has noise of {np.abs(whole).max():,}: more than ε = {epsilon:g} has"
        )
    levels, found = np.array(measured["reached"]).reshape(-1, 2).T
    chances = binomial_chance(found, measured["probed"], ratio**levels / (1 + ratio))
    if chances.min(initial=1.0) * len(chances) < FALSE_ALARM_RATE:
        worst = int(chances.argmin())
        defects.append(
            f"the noise of the label histogram is not what ε = {epsilon:g} needs: {found[worst]:,} of "
            f"{measured['probed']:,} draws are {levels[worst]:,} or more, where "
            f"{measured['probed'] * ratio ** levels[worst] / (1 + ratio):,.0f} are expected"
        )
    # The probability that two draws agree in a cell: both 0 or below, or both the same positive number.
    agree = (1 + (1 - ratio) * ratio**2 / (1 + ratio)) / (1 + ratio) ** 2
    if measured["repeated"] and agree ** (measured["probed"] / 2) < FALSE_ALARM_RATE:
        defects.append("the noise of the label histogram is not fresh: two draws are the same")
    return defects
