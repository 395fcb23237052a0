"""Rows of the privacy statement of a DP-SGD trial: its sampler, clipping, noise and start, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dp_core.accounting.epsilon import EpsilonBound
from dp_core.accounting.mechanism import MechanismRecord
from dp_core.clipping.factors import clip_factor
from dp_core.cyclic_sampling import CyclicPoissonSampler
from dp_core.training.label_rate import largest_label
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from tasks.training.warm_start import Start


def relation_text(record: MechanismRecord) -> str:
    """Returns the neighbouring relation in words."""
    name = record.neighboring_relation.name.lower()
    return f"{name} (zeroing out): one example is replaced by an empty one that contributes nothing; N is public"


def sampler_text(record: MechanismRecord) -> str:
    """Returns how batches were sampled, and what of δ that takes."""
    sampler = record.stated_sampler
    size = f"batches of {record.expected_batch_size:,} of N = {record.examples:,}"
    if record.sampler == "shuffle":
        return (
            f"shuffled epochs, {size}. **No amplification by sampling is claimed**: it is common to account for such "
            "batches as Poisson samples, but not valid"
        )
    truncation = (
        f"the probability that a batch ever exceeds its {record.max_batch_size:,} slots, at most "
        f"{record.truncation_delta():.2g}, is subtracted from δ"
    )
    kind = "cyclic Poisson" if record.bands > 1 else "Poisson"
    kind = kind if record.sampler == "poisson" else "balls in bins (each example is in one batch per epoch)"
    return f"{kind}, probability {sampler.sampling_probability:.6g} (expected {size}); {truncation}"


def correlation_row(record: MechanismRecord) -> str:
    """Returns the row on correlated noise; empty for independent noise."""
    if record.bands == 1:
        return ""
    sampler = record.stated_sampler
    assert isinstance(sampler, CyclicPoissonSampler)
    return (
        f"| Noise | **correlated over {record.bands} steps** (banded matrix factorisation): the noise is C⁻¹z with a "
        f"lower triangular matrix C of {record.bands} bands and columns of norm at most 1. Each example was assigned "
        f"to one of {record.bands} parts, independently, and step t sampled from part t mod {record.bands} only. "
        f"Accounted for as {sampler.rounds(record.steps):,} Poisson samples with probability "
        f"{sampler.round_probability:.6g}, whichever part an example is in. Large embedding tables have independent "
        "noise, which the same ε covers. Only for single examples: no bound is claimed for several examples of one "
        "user |\n"
    )


def clipped_text(record: MechanismRecord) -> str:
    """Returns what was clipped, and how."""
    what = "per-example gradients"
    if record.microbatch_size > 1:
        what = f"mean gradients of groups of {record.microbatch_size} (each example draws its group independently)"
    return f"{what} {clip_factor(record.clipping).statement}"


def label_rate_row(trial: Trial, record: MechanismRecord) -> str:
    """Returns the row on the release that the initial bias follows from; empty if there was none."""
    noise_multiplier = record.label_rate_noise_multiplier
    if noise_multiplier is None:
        return ""
    return (
        f"| Initial bias | inside ε: a function of the noisy sum of the training labels, each at most "
        f"{largest_label(trial.task)} (noise multiplier {noise_multiplier:.6g} relative to that sensitivity, "
        f"ε = {trial.initial_bias_epsilon:g} by itself), drawn once |\n"
    )


def initial_row(trial: Trial, bound: EpsilonBound, start: Start | None) -> str:
    """Returns the row on the model that training started from; empty if it started at random."""
    if trial.start_from is None:
        return ""
    name, spent = (start.name, start.spent) if start else ("unknown", None)
    earlier = "How much the earlier ones have is not known here: one of them is gone"
    if spent is not None:
        earlier = (
            f"That model and those that it started from have ε = {spent[0]:.4f} at δ = {spent[1]:.3g}, so with this "
            f"training an example that all of them saw has at most ε = {spent[0] + bound.epsilon:.4f} at "
            f"δ = {spent[1] + trial.target_delta:.3g}"
        )
    return (
        f"| Initial parameters | **the released ones of another model**, `{name}`. That costs the examples of "
        "this training nothing more. For an example that both trainings saw, the guarantees of the two models compose: "
        f"the ε above is what this training adds. {earlier} |\n"
    )


def clip_norm_text(record: MechanismRecord) -> str:
    """Returns the clip norm, and whether it adapted."""
    if not clip_factor(record.clipping).adaptive:
        return f"{record.l2_clip_norm:g}"
    return f"{record.l2_clip_norm:g} at first, then adapted by a noisy count of the gradients that exceed it"


def count_noise_text(record: MechanismRecord) -> str:
    """Returns the noise of the count that steered an adaptive clip norm; empty if there was none."""
    if record.count_noise_multiplier is None:
        return ""
    return f"; {record.count_noise_multiplier:.6g} for the count, which has sensitivity 1; ε covers both"


def clip_norms(number: float) -> str:
    """Returns a multiple of the clip norm C."""
    return "C" if number == 1 else f"{number:g}C"
