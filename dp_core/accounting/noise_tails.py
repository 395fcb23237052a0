"""What the missing tails of the noise cost: the part of δ that truncated normal draws use up.

*What is idealised.* A draw is taken to be a normal variable conditioned on [−T, T], in real numbers. That covers the
support and the tails. It does not cover which of the finitely many float32 numbers can occur: the low-order bits, and
the gaps between the last values before T (0.12 wide at the very end, below 3e-6 up to 7.6). Against attacks on these
there is no proof, but for secret noise the sum of several draws makes them infeasible (Holohan and Braghin, 2021).
Seeded noise is for reproductions, which have no guarantee anyway.

*Several draws.* If the noise is the sum of n draws z₁ … zₙ over √n, a shift by v is a shift of each draw by v/√n. So
the sum is post-processing of n·d draws with a shift of the same norm. Below, d stands for n·d.

*One step, one participation.* In units of the noise's standard deviation, the example shifts the sum by a vector v of
norm at most s = 1/σ. Let P₀ = N(0, I) and Q₀ = N(v, I); P and Q are P₀ and Q₀ conditioned on their boxes
B = [−T, T]ᵈ and B + v. Let f₀ keep a coordinate inside B and redraw one outside from P, and f₁ the same for B + v and
Q. Then f₀(P₀) = P and f₁(Q₀) = Q exactly. With a = |vᵢ| and g(a) = Φ(T) − Φ(T − a), the two functions give different
values of coordinate i with probability at most 3·g(a), under P₀ and under Q₀, since

- xᵢ lies in one interval and not in the other with probability at most g(a) + a·φ(T) ≤ 2·g(a) (if a ≤ 2T), and
- in neither with probability at most 2Φ(−T) ≤ 2φ(T)/T; the redraws can be coupled so that they then differ with
  probability a·φ(0)/(1 − 2Φ(−T)) at most. The product is below a·φ(T) ≤ g(a).

So f₀ and f₁ differ with probability at most η = 3·Σ g(|vᵢ|) (union bound).

*The sum over coordinates*, over all v of norm s ≤ T − 2/T. On [0, T], g is convex and g(a) ≤ a·φ(T − a). Coordinates
up to 1/T have g(a) ≤ a·e·φ(T), so they add up to at most e·φ(T)·s·√d (Cauchy-Schwarz). The derivative of g(a)/a² has
the sign of h(a) = a·φ(T − a) − 2·g(a), and h' = φ(T − a)·(a(T − a) − 1) is negative, then positive up to T − 2/T.
So g(a)/a² falls, then rises, and on [1/T, s] it is at most the sum of its values at both ends. The coordinates above
1/T therefore add up to at most s²·T·e·φ(T) + g(s). Together:

    η(s) = 3·(g(s) + e·φ(T)·(s·√d + s²·T)),  and 1 if s is above T − 2/T.

*Poisson sampling.* With the example, a step has the law (1 − q)·P + q·Q. Suppose that the same with P₀ and Q₀ is
(ε, δ)-DP. Both directions are post-processing of it, but for a probability of q·η:

- With the example against without: f₀ turns P₀ into P exactly, and the mixture of P₀ and Q₀ into that of P and
  f₀(Q₀), which is within q·η of the mixture of P and Q in total variation.
- Without against with: draw from x whether the example took part, with its probability r(x) given the mixture, and
  apply f₁ if so, else f₀. This turns the mixture of P₀ and Q₀ into that of P and Q exactly. It turns P₀ into
  something within E[r(x)·1{f₀ ≠ f₁}] of P. As p₀·q₀/((1 − q)·p₀ + q·q₀) ≤ (1 − q)·q₀ + q·p₀ (harmonic and arithmetic
  mean), that is at most q·η.

In both, the error is on the side that is not multiplied by e^ε. Steps add up (hybrid argument): steps·q·η(s).
For a group of k, with j of them in the batch with probability w_j, r_j(x) is at most w_j·q_j/(w₀·p₀), so a step costs
Σ w_j·η(j·s)/w₀; and never more than η(k·s), the probability that f₀ differs from any of the others.

*Correlated noise* of b bands is a step of the above for each round (``banded_noise``), with q·b for q and the b·d
coordinates of a block of rows for d. The rows are post-processing of the draws, so coordinates may be redrawn as above.

*Shuffling* is accounted for given the batch that an example is in: η(s) an epoch, by f₀ for one direction and f₁ for
the other. So are groups in balls in bins. k examples take part in up to k steps: k·η(k·s).

*Balls in bins.* Later steps depend on which bin it was, so the draw of r(x) above is not possible. With the example
against without is as before, η(s) an epoch. Without against with: let F be that in any step the sum without the
example falls outside B + v. Its probability is at most steps·η(s)/3. Outside of F all densities are those of the normal
distributions times the same constant, (1 − 2Φ(−T))^(−d·steps). So δ grows to at most that constant times δ, plus
steps·η(s)/3 (or η(s) an epoch, if that is more).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy import stats

from dp_core.cyclic_sampling import CyclicPoissonSampler
from dp_core.sampling import BallsInBinsSampler, EpochSampler, PoissonSampler, Sampler

# A draw of ``dp_core.training.noise`` reaches 9.0801.
SUPPORT = 9.08
# More coordinates than any model here, and the summands of secret noise: for questions about trainings to come.
LARGEST_MODEL = 2**30
MOST_SUMMANDS = 4


class NoiseTails(NamedTuple):
    """How far the noise of a training reaches.

    Attributes:
        coordinates: The number of coordinates that noise is added to in a step.
        support: The largest size T of a draw, in standard deviations of a draw.
        summands: The number of draws that are summed for the noise of a coordinate.
    """

    coordinates: int = LARGEST_MODEL
    support: float = SUPPORT
    summands: int = MOST_SUMMANDS

    @property
    def draws(self) -> int:
        """The number of draws in a step."""
        return self.coordinates * self.summands

    def edge_delta(self, shift: float) -> float:
        """Returns η/3: the bound on the sum of g over the coordinates."""
        t = self.support
        if not shift <= t - 2 / t:
            return 1.0
        spread = math.e * float(stats.norm.pdf(t)) * (shift * math.sqrt(self.draws) + shift**2 * t)
        return min(1.0, float(stats.norm.sf(t - shift)) + spread)

    def participation_delta(self, shift: float) -> float:
        """Returns η: what one step with the example costs.

        >>> f"{NoiseTails(coordinates=78_000_000, summands=1).participation_delta(1.0):.1e}"
        '3.7e-14'

        Args:
            shift: How far the example moves the sum, in standard deviations of the noise.
        """
        return min(1.0, 3 * self.edge_delta(shift))


class TailCharge(NamedTuple):
    """What truncated noise does to δ: (ε, δ)-DP becomes (ε, δ/(1 − share) + delta)-DP.

    Attributes:
        delta: The part that is added to δ.
        share: The part of δ that is lost besides.
    """

    delta: float
    share: float = 0.0


def tail_charge(
    sampler: Sampler, *, steps: int, noise_multiplier: float, tails: NoiseTails, group_size: int = 1
) -> TailCharge:
    """Returns what the missing tails of a training's noise cost.

    Args:
        sampler: The sampler of the batches.
        steps: The number of steps.
        noise_multiplier: The standard deviation of the noise over the sensitivity to one example.
        tails: How far the noise reaches.
        group_size: The number of examples that neighbours differ in.

    Returns:
        The charge: all of δ if an example (or the group) can move the sum further than the noise reaches.
    """
    if noise_multiplier <= 0:
        # There is no noise to truncate, and no ε.
        return TailCharge(0.0)
    shift = 1 / noise_multiplier
    if isinstance(sampler, PoissonSampler):
        return TailCharge(min(1.0, steps * _poisson_delta(sampler.sampling_probability, shift, tails, group_size)))
    if isinstance(sampler, CyclicPoissonSampler) and group_size == 1:
        block = tails._replace(coordinates=tails.coordinates * sampler.parts)
        one = _poisson_delta(sampler.round_probability, shift, block, group_size)
        return TailCharge(min(1.0, sampler.rounds(steps) * one))
    if isinstance(sampler, BallsInBinsSampler) and group_size == 1:
        outside = 2 * float(stats.norm.sf(tails.support))
        edges = max(steps * tails.edge_delta(shift), sampler.epochs(steps) * tails.participation_delta(shift))
        lost = -math.expm1(steps * tails.draws * math.log1p(-outside))
        return TailCharge(min(1.0, edges), lost)
    # A sampler that is not known here may put an example into every batch.
    rounds = sampler.epochs(steps) if isinstance(sampler, EpochSampler) else steps
    return TailCharge(min(1.0, rounds * group_size * tails.participation_delta(group_size * shift)))


def _poisson_delta(probability: float, shift: float, tails: NoiseTails, group_size: int) -> float:
    """Returns what one step costs."""
    if group_size == 1:
        return probability * tails.participation_delta(shift)
    at_most = tails.participation_delta(group_size * shift)
    absent = (1 - probability) ** group_size
    if absent == 0:
        return at_most
    # From this number on, the group moves the sum further than the noise reaches.
    too_many = min(group_size, math.floor(tails.support / shift)) + 1
    present = np.arange(1, too_many)
    costs = np.array([tails.participation_delta(number * shift) for number in present])
    weights = stats.binom.pmf(present, group_size, probability)
    expected = float(costs @ weights) + float(stats.binom.sf(too_many - 1, group_size, probability))
    return min(at_most, expected / absent)


def least_noise_multiplier(sampler: Sampler, *, steps: int, tails: NoiseTails, allowed: float) -> float:
    """Returns a noise multiplier, not much above the least, at which the added ``tail_charge`` is at most ``allowed``.

    Args:
        sampler: The sampler of the batches.
        steps: The number of steps.
        tails: How far the noise reaches.
        allowed: The part of δ that may be used up, positive.
    """

    def fits(noise_multiplier: float) -> bool:
        charge = tail_charge(sampler, steps=steps, noise_multiplier=noise_multiplier, tails=tails)
        return charge.delta <= allowed

    low = high = 0.1
    while not fits(high):
        low, high = high, 2 * high
        if math.isinf(high):
            raise ValueError(f"no noise reaches far enough for δ = {allowed:.2g} over {steps:,} steps")
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high
