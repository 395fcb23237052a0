"""The privacy statement: what a trained model's guarantee is, in words a person can check."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from dp_core.accounting import EpsilonBound
from dp_core.mechanism import MechanismRecord, proven_sensitivity
from tasks.trial import Trial

_NOT_COVERED = """\
## What is not covered

- **Vocabularies.** Which tokens have an embedding row was decided by exact counts over the training
  part (tokens seen at least a fixed number of times). That choice is outside ε.
- **Hyperparameters.** They were chosen by validation loss among several trials. ε is that of this
  one trial, not of the selection.
- **Other releases.** Every further model that is trained on the same examples and published adds its own ε.
- **The size of the training part.** N is treated as public: it sets the sampling probability and δ.
- **Logged metrics.** Training losses in the log and in MLflow are computed from private examples
  without noise. Do not publish them with the model.
- **Failures.** That a run was stopped by an example without a finite gradient tells of that example.
- **Validation and test examples.** The guarantee is for examples of the training part.
- **Several examples of one user.** The unit is one example (one row of the log).
- **Floating point.** Noise is drawn in 32-bit arithmetic by JAX's threefry generator, whose key has
  64 bits: not a cryptographic generator, and not proof against attacks on floating-point noise.
"""


def private_statement(
    trial: Trial, record: MechanismRecord, bound: EpsilonBound, verdict: str, claimed_epsilon: float | None = None
) -> str:
    """The statement of a DP-SGD trial, from its record and the audit's bound.

    ``claimed_epsilon`` is what the paper's scaling of the noise would be worth, where that is too little.
    """
    if trial.randomness == "secret":
        seed = "Noise and batches were drawn from the operating system's entropy and kept nowhere."
    else:
        seed = (
            f"**Noise and batches came from the fixed seed {trial.seed}: this run is a reproduction, and not "
            "private against anyone who knows the seed.** Set `randomness: secret` for a model to be released."
        )
    loose = "" if bound.converged else " (time ran out before it converged: true, but loose)"
    return f"""\
# Privacy statement

{_budget_line(trial, bound, verdict, claimed_epsilon)}

| | |
|---|---|
| Guarantee | (ε, δ)-differential privacy of the model's parameters |
| ε | {bound.epsilon:.4f} ({bound.accountant}) |
| δ | {trial.target_delta:.4g} (1/N) |
| Unit of privacy | one training example |
| Neighbouring relation | {record.neighboring_relation} |
| Mechanism | DP-SGD: {_clipped(record)}, Gaussian noise on the sum |
| Clip norm C | {_clip_norm(record)} |
| Noise multiplier σ | {record.noise_multiplier:.6g} (noise of standard deviation σ·{_clip_norms(record.sensitivity)} \
per coordinate){_count_noise(record)} |
| Sensitivity of a sum | {_clip_norms(proven_sensitivity(record.microbatch_size))}, for adding or removing one example |
| Sampler | Poisson, probability {record.sampling_probability:.6g} (expected batch {record.expected_batch_size:,} \
of N = {record.examples:,}) |
| Largest batch possible | {record.max_batch_size:,}; the chance of ever needing more, \
{record.truncation_delta():.2g}, is taken off δ |
| Steps run | {record.steps:,}, counted |
| Gradient scale | divided by the expected batch size, not by the realised one |
| ε by PLD | {bound.pld_epsilon:.4f}, connect-the-dots, interval {bound.interval:.2g}{loose} |
| ε by RDP | {bound.rdp_epsilon:.4f} |
| Accountant | dp-accounting {version("dp-accounting")}; the smaller of the two upper bounds |

{seed}

{_NOT_COVERED}"""


def non_private_statement(trial: Trial) -> str:
    return f"""\
# Privacy statement

**This model has no privacy guarantee.** It is a non-private baseline ({trial.label()}): gradients are
neither clipped nor noised. Do not release it.
"""


def _clipped(record: MechanismRecord) -> str:
    what = "per-example gradients"
    if record.microbatch_size > 1:
        what = f"mean gradients of groups of {record.microbatch_size} (each example draws its group by itself)"
    how = "scaled to norm C" if record.clipping == "automatic" else "clipped to norm C"
    return f"{what} {how}"


def _clip_norm(record: MechanismRecord) -> str:
    if record.clipping != "adaptive":
        return f"{record.l2_clip_norm:g}"
    return f"{record.l2_clip_norm:g} at first; then steered by a noisy count of the gradients that are longer"


def _count_noise(record: MechanismRecord) -> str:
    if record.count_noise_multiplier is None:
        return ""
    return f"; {record.count_noise_multiplier:.6g} for the count, whose sensitivity is 1; ε covers both"


def _clip_norms(number: float) -> str:
    return "C" if number == 1 else f"{number:g}C"


def _budget_line(trial: Trial, bound: EpsilonBound, verdict: str, claimed_epsilon: float | None) -> str:
    if claimed_epsilon is not None:
        return (
            f"Trial `{trial.key}` ({trial.label()}). **The budget of ε = {trial.epsilon:g} is not a guarantee under "
            f"adding or removing one example**: noise was scaled as in the paper, which gives {claimed_epsilon:.4f} "
            "by treating the clip norm as the sensitivity, but an example in a microbatch can change the sum by twice "
            f"that. What holds is ε = {bound.epsilon:.4f}."
        )
    held = "within" if verdict == "passed" else "NOT SHOWN TO BE WITHIN"
    return f"Trial `{trial.key}` ({trial.label()}), ε = {bound.epsilon:.4f}: {held} its budget of {trial.epsilon:g}."


def summary(audit: Mapping[str, Any]) -> str:
    """One line for the log."""
    if audit["epsilon"] is None:
        return "no guarantee (non-private baseline)"
    return f"ε = {audit['epsilon']:.4f} at δ = {audit['target_delta']:.3g} (RDP: {audit['rdp_epsilon']:.4f})"
