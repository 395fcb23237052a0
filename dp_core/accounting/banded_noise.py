"""Correlated noise by a banded matrix (BandMF): why it is private, and the matrix with the least error.

DP-SGD adds independent noise σ·z_t to the clipped sum g_t of each step. Here the noise of step t is σ·(C⁻¹z)_t, where C
is a lower triangular T×T matrix with b diagonals (*bands*). The noise of a step is then partly subtracted again in the
steps after it, so that the sum of many noisy gradients, which is what parameters are made of, has less of it. The
source is Choquette-Choo et al. (2023), "(Amplified) Banded Matrix Factorization" (arXiv 2306.08153).

*The mechanism.* Each example is assigned to one of b parts, independently and uniformly. Step t takes a Poisson sample,
with probability q·b, of the examples of part t mod b only. An example is in a given batch with probability q, as
before.

*Claim.* If every column of C has norm at most 1, the mechanism is as private as ⌈T/b⌉ steps of DP-SGD with sampling
probability q·b and the same σ. C may be another matrix for each coordinate of the gradient, with at most b bands each.
Independent noise is C = I, so that arrays without room for a history can be left with it.

*Proof.* Fix the example's part p, and everything that is drawn for the other examples. Publishing g + σ·C⁻¹z for every
step is post-processing of publishing y = C·g + σ·z, row by row, and the next gradients are functions of the rows so
far. Clip norms are 1 (noise is in clip norms). The example can take part in steps p, p + b, p + 2b, … only. Column t of
C is zero but for rows t, …, t + b − 1, so the rows fall into disjoint blocks of b rows, one for each of these steps,
and what the example adds to g_t reaches the rows of block t only: with C_k the matrix of coordinate k, it adds the
vector v = (C_k[s, t]·x_k) over rows s and coordinates k, where x is its clipped gradient at step t. Its norm is

    ‖v‖² = Σ_k x_k²·Σ_s C_k[s, t]² ≤ Σ_k x_k² ≤ 1.

x depends on rows before the block only. Let h_s be what the other examples and earlier blocks add to row s; it is a
function of the rows before s, whether the example is there or not. So given the rows before the block, its rows are a
fixed invertible function of u + σ·z, where u is v with probability q·b, independently of all else, and 0 otherwise.
That is one step of DP-SGD. The blocks compose adaptively, and part p has ⌈(T − p)/b⌉ ≤ ⌈T/b⌉ of them. The part is
random, but the bound holds for each. ∎

With microbatches x is the difference of two clipped means, of norm at most 2, and noise is scaled to that. The noisy
count of an adaptive clip norm is one more coordinate, with C = I. If the clip norm changes, all of the above is in
units of the step's own clip norm, and multiplying by it is post-processing. A group of several examples (one user) may
be in several parts, whose blocks overlap: no bound is claimed for it.

*Large batches* are truncated by the same rule as Poisson samples. Over the random parts, the other examples are in a
batch with probability q, independently of each other, so the probability that a batch leaves no slot is the same.
*Missing tails of the noise* cost what they cost in a step of DP-SGD with b times as many coordinates: a block's.

*The best matrix* among Toeplitz ones (McKenna, 2024, "Scaling up the Banded Matrix Factorization Mechanism for
Differentially Private ML", arXiv 2405.15913). C has the first column c₀, …, c_{b−1} and ‖c‖ = 1, so no column is
longer. The error of all prefix sums is that of A·C⁻¹·z with A the lower triangular matrix of ones. As power series,
β(x) = 1/((1 − x)·c(x)), and the mean squared error over all T prefixes, times the squared sensitivity, is

    Σ_k (T − k)·β_k²/T · ‖c‖².

It does not change if c is scaled, and its gradient is −2·Σ_k (T − k)·β_k·ε_{k−j} for c_j, with ε = β/c, so that b
numbers are found by L-BFGS in O(T·b) for each evaluation.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy import optimize, signal

# Coefficients are lowered by this share, so that their float32 sum of squares is at most 1.
_BELOW_ONE = 1e-6


@functools.lru_cache(maxsize=256)
def toeplitz_coefficients(bands: int, steps: int) -> tuple[float, ...]:
    """Returns the first column c of the banded Toeplitz matrix with the least prefix error.

    >>> toeplitz_coefficients(1, 100)
    (1.0,)

    Args:
        bands: The number b of bands, from 1 to ``steps``.
        steps: The number T of steps.

    Returns:
        b positive numbers, exact in float32, with a sum of squares of at most 1.
    """
    if not 1 <= bands <= steps:
        raise ValueError(f"bands must be from 1 to the {steps:,} steps, got {bands:,}")
    if bands == 1:
        return (1.0,)
    # With c₀ fixed the scale is fixed too. The start is the square root of the matrix of ones, cut off after b bands,
    # which is nearly the best for many bands.
    numbers = np.arange(1, bands)
    start = np.cumprod((numbers - 0.5) / numbers)
    found = optimize.minimize(
        lambda rest: _log_error(rest, steps),
        start,
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": 500, "maxcor": 20, "ftol": 1e-12, "gtol": 1e-8},
    )
    column = np.concatenate([[1.0], found.x])
    column = (column / np.linalg.norm(column) * (1 - _BELOW_ONE)).astype(np.float32).astype(np.float64)
    return tuple(column.tolist())


def _log_error(rest: np.ndarray, steps: int) -> tuple[float, np.ndarray]:
    """Returns the log of the mean squared prefix error times ‖c‖² for c = (1, rest), and its gradient by ``rest``."""
    column = np.concatenate([[1.0], rest])
    left = np.arange(steps, 0, -1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        sums = signal.lfilter([1.0], column, np.ones(steps))
        error = float(left @ sums**2)
        if not math.isfinite(error):
            return math.inf, np.zeros_like(rest)
        again = signal.lfilter([1.0], column, sums)
        weighted = left * sums
        slopes = signal.fftconvolve(weighted, again[::-1])[steps - 1 : steps - 1 + len(column)]
    squares = float(column @ column)
    gradient = -2 * slopes / error + 2 * column / squares
    return math.log(error / steps * squares), gradient[1:]


def prefix_error(coefficients: tuple[float, ...], steps: int) -> float:
    """Returns the root mean squared error of all prefix sums of ``steps`` noises C⁻¹z, for z of variance 1.

    >>> prefix_error((1.0,), 3) == math.sqrt((1 + 2 + 3) / 3)
    True
    """
    sums = signal.lfilter([1.0], coefficients, np.ones(steps))
    return math.sqrt(float(np.arange(steps, 0, -1.0) @ sums**2) / steps)


def column_norm(coefficients: tuple[float, ...]) -> float:
    """Returns the norm of the longest column: the sensitivity of C·g to an example that takes part in one step."""
    return math.sqrt(math.fsum(one * one for one in coefficients))
