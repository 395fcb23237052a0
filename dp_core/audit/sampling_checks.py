"""Statistical tests of whether a run's batches can have come from the stated sampler.

The tests judge ``SamplingCounts``. They ask for what ε is computed from: each example joins each batch with the stated
probability, independently of other examples, of other steps and of the time. Samplers that deal epochs have tests of
their own, and so has the one of correlated noise.

*False alarms.* Each test has a correct sampler fail with probability at most ``FALSE_ALARM_RATE``. All laws are exact,
or bounds that hold at any size (``chances``), and tests of many counts divide the rate by their number. A run is judged
by about ten tests, so it fails by accident about once in 10⁵ runs.

*Power.* The smallest deviations that were seen in 99 of 100 runs of Poisson sampling at the quick profile's size
(N = 120,000, batches of 2,048, 590 steps):

- a sampling probability that is wrong by 0.7 %, or too high by 1 % in one half of the run and too low in the other;
- sizes of batches with a variance that is 1.6 or 0.6 times the stated one;
- neighbours i and i + 1 in a batch together 7 % more often than by chance;
- a block of 1/64 of the examples that is sampled 6 % too seldom; 0.5 % of the examples, anywhere, that never are;
- 0.8 % of each batch taken over from the batch before; 40 % of one batch taken over from any other one;
- a batch that is equal to any other one, also if all its examples are shifted.

An example that is in a batch twice is always seen. With dealt epochs, examples that are dealt twice in an epoch are
seen if they are 0.12 % of all: one of the watched ones must be among them.
"""

from __future__ import annotations

from dp_core.audit.cyclic_checks import CYCLIC_CHECKS
from dp_core.audit.dealt_checks import BALLS_IN_BINS_CHECKS, SHUFFLE_CHECKS
from dp_core.audit.poisson_checks import POISSON_CHECKS, Batches, Check
from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.cyclic_sampling import CyclicPoissonSampler
from dp_core.sampling import BallsInBinsSampler, PoissonSampler, Sampler, ShuffledSampler

FALSE_ALARM_RATE = 1e-6

_CHECKS: dict[type[Sampler], tuple[Check, ...]] = {
    PoissonSampler: POISSON_CHECKS,
    CyclicPoissonSampler: CYCLIC_CHECKS,
    BallsInBinsSampler: BALLS_IN_BINS_CHECKS,
    ShuffledSampler: SHUFFLE_CHECKS,
}


def sampling_defects(
    sampler: Sampler, counts: SamplingCounts, *, false_alarm_rate: float = FALSE_ALARM_RATE
) -> list[str]:
    """Tests whether these batches can have come from a sampler.

    Args:
        sampler: The stated sampler.
        counts: The counts of all batches.
        false_alarm_rate: The probability with which each test may report a correct sampler.

    Returns:
        A description of each defect; empty if there is none.
    """
    if counts.examples != sampler.examples:
        return [f"batches were drawn from {counts.examples:,} examples, where {sampler.examples:,} are stated"]
    defects = _impossible(sampler, counts)
    if not counts.steps:
        return defects
    checks = next(checks for kind, checks in _CHECKS.items() if isinstance(sampler, kind))
    batches = Batches(sampler, counts)
    found = (check(batches, false_alarm_rate) for check in checks)
    return [*defects, *(defect for defect in found if defect is not None)]


def _impossible(sampler: Sampler, counts: SamplingCounts) -> list[str]:
    """Returns what no sampler may ever do."""
    defects = []
    largest = max(counts.sizes, default=0)
    if largest > sampler.max_batch_size:
        defects.append(f"a batch of {largest:,} exceeds the stated maximum of {sampler.max_batch_size:,}")
    if counts.repeated:
        defects.append(f"{counts.repeated:,} times an example was in one batch more than once")
    if counts.outside:
        defects.append(f"{counts.outside:,} sampled indices are not from 0 to {sampler.examples - 1:,}")
    if counts.misplaced:
        defects.append(f"{counts.misplaced:,} batches were not counted in the order of the steps")
    return defects
