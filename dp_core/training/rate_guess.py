"""A first guess at DP-SGD's learning rate from its noise, so that one list of rates fits every budget and clip norm.

Derivation. A step of SGD lowers the loss if it stays where the loss is about as its gradient says. So the length of a
step should be at most some distance ρ, which is a property of the model: the trust region. The length of DP-SGD's step
is known but for one number. The direction is the clipped sum with its noise, over the expected batch size B. Its signal
has length γC, where C is the clip norm and γ ≤ 1 the share that is left of clipped gradients when those of a batch,
which point in different directions, are averaged. Its noise has a standard deviation of σC/B in each of d coordinates
and so a length of √d·σC/B, and is nearly orthogonal to the signal. Momentum μ applies every direction 1/(1 − μ) times
over. A step that is ρ long has the rate

    η = ρ·(1 − μ) / (C·√(γ² + d·σ²/B²)).

For little noise this is a constant over C. For much noise it is the rate at which noise alone moves the model by ρ.

A bound on the mean loss of a convex problem (Bassily, Smith and Thakurta 2014, Theorem 2.4) gives the same expression
with R/√T in place of ρ, for T steps and the distance R to the optimum. In trainings of 79 and 293 steps we found no
such dependence on T: fitted to the same best rates, it is off by a factor of up to 2.9, and this one by up to 2.0.

ρ and γ are constants here, fitted once to the best rates of small networks on one synthetic log and checked on another
(docs/settings.md has the figures), so the guess is the centre of a list, not an answer.
"""

from __future__ import annotations

import math

# ρ and γ, fitted to the best rates on synthetic_display: two sizes, two budgets, two clip norms; one digit is known.
STEP_LENGTH = 4.0
SIGNAL_SHARE = 0.3


def guessed_rate(
    *, l2_clip_norm: float, noise_multiplier: float, batch_size: int, dimension: int, momentum: float
) -> float:
    """Returns the guess for SGD.

    Args:
        l2_clip_norm: C.
        noise_multiplier: σ, the noise's standard deviation in units of C.
        batch_size: B, the expected batch size.
        dimension: d, the number of parameters.
        momentum: μ.

    >>> rate = guessed_rate(l2_clip_norm=8.0, noise_multiplier=0.0, batch_size=1000, dimension=10**5, momentum=0.9)
    >>> round(rate, 4)
    0.1667
    """
    noise = math.sqrt(dimension) * noise_multiplier / batch_size
    return STEP_LENGTH * (1 - momentum) / (l2_clip_norm * math.hypot(SIGNAL_SHARE, noise))
