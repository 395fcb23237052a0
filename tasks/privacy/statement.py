"""The privacy statement of a DP-SGD trial: what the model guarantees, in words that a person can check.

It follows the reporting checklist of "How to DP-fy ML" (Ponomareva et al., 2023): the setting, what the definition
is applied to, the accounting, and how to verify it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dp_core.accounting.epsilon import EpsilonBound
from dp_core.accounting.mechanism import MechanismRecord, proven_sensitivity
from tasks.privacy.audit_result import AuditResult
from tasks.privacy.statement_rows import (
    clip_norm_text,
    clip_norms,
    clipped_text,
    correlation_row,
    count_noise_text,
    initial_row,
    label_rate_row,
    relation_text,
    sampler_text,
)
from tasks.runtime.progress import counted
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from tasks.training.warm_start import Start

_NOT_COVERED = """\
- **Hyperparameters.** They were chosen by validation loss among several trials. The ε above is for this one trial.
  The report of the pipeline run also shows what the choice costs.
- **Other releases.** Every other model that is trained on the same examples and published adds its own ε. Compute
  the total with `python -m tasks releases`.
- **The size of the training split.** N is treated as public: it determines the sampling probability and δ. The points
  in time at which the log was split are public too.
- **Every reported loss.** Training, validation and test losses in the log, in MLflow and in reports, the relative
  losses, the audit's evidence in `evidence.json` and the data card are computed from private examples without noise.
  Do not publish them with the model.
- **The non-private baseline.** Its losses, and whatever is relative to them, come from a model without any guarantee.
- **The trial's key and the data's fingerprint** in MLflow, in reports and in the names of folders. They are hashes of
  the log: someone who knows all of its rows but one can test candidates for that one. Do not publish them. The name
  of the trial in this statement was drawn at random.
- **Failures.** If an example with a non-finite gradient stops a run, the fact that it stopped reveals something
  about that example.
- **Validation and test examples.** The guarantee is for the examples of the training split.
- **Several examples of one user.** The unit of privacy is one example (one row of the log). For the ε of k examples
  of one user, use `python -m tasks epsilon --group-size k`.
- **Events behind labels.** If a label counts conversions that are recorded in other rows of the log, one conversion
  can affect the labels of several examples. The guarantee is for an example and its label, not for a conversion.
- **Floating point.** Noise is drawn in 32-bit arithmetic by JAX's threefry generator with a 64-bit key. It is not a
  cryptographic generator, and it does not resist attacks on floating-point noise.
"""

_VOCABULARIES = {
    "threshold": "**outside ε**: tokens with at least {min_count} occurrences, by exact counts in the training split",
    "hash": "independent of the data: tokens are hashed into {buckets:,} buckets per column, which costs no ε",
    "private": "inside ε: tokens with noisy counts above {threshold:.4g} (noise multiplier {noise_multiplier:.4g} "
    "relative to the sensitivity, ε = {epsilon:g} by itself, {delta:.2g} of δ); the noise was drawn from the operating "
    "system's entropy",
}


def private_statement(
    trial: Trial,
    record: MechanismRecord,
    bound: EpsilonBound,
    audit: AuditResult,
    vocabulary: Mapping[str, Any],
    name: str,
    *,
    start: Start | None = None,
    recalibrated: str = "",
) -> str:
    """Returns the statement of a DP-SGD trial as Markdown, from its record and the audit's result.

    ``start`` is the model whose parameters were the initial ones, if the trial names one and it was looked at.
    ``recalibrated`` is the line on its recalibration, if there was one.
    """
    return f"""\
# Privacy statement

{_budget_line(trial, bound, audit, name)}

## Setting

| | |
|---|---|
| Trust model | central: the party that trains sees the examples; the guarantee is against anyone who sees the model |
| Guarantee | {_guarantee(trial, bound, audit)} |
| Unit of privacy | one training example |
| Neighbouring relation | {relation_text(record)} |

## What it covers

| | |
|---|---|
| Released | the final parameters; the bound would also hold if every step's noisy sum were published |
| Training | inside ε: DP-SGD, {clipped_text(record)}, Gaussian noise on the sum |
| Vocabulary | {_VOCABULARIES[vocabulary["kind"]].format(**vocabulary)} |
| Log transform | independent of the data: a fixed function of each value |
{label_rate_row(trial, record)}\
{initial_row(trial, bound, start)}\
{recalibrated}\
| Hyperparameter tuning | **outside ε**: ε is for a single training run |

## Accounting

| | |
|---|---|
| ε | {bound.epsilon:.4f} ({bound.accountant}) |
| ε by PLD | {_number(bound.pld_epsilon)}, connect-the-dots, interval {bound.interval:.2g}; {_looseness(bound)} |
| ε by RDP | {_number(bound.rdp_epsilon)} |
| Lower bound on ε | {_lower(audit)} |
| Accountant | dp-accounting {version("dp-accounting")}; the smaller of the two upper bounds |
| Sampler | {sampler_text(record)} |
{correlation_row(record)}\
| Steps run | {record.steps:,}, counted during training |
| Clip norm C | {clip_norm_text(record)} |
| Noise multiplier σ | {record.noise_multiplier:.6g} (noise of standard deviation σ·{clip_norms(record.sensitivity)} \
per coordinate){count_noise_text(record)} |
| Sensitivity of a sum | {clip_norms(proven_sensitivity(record.microbatch_size))}, for emptying one example |
| Gradient scale | divided by the expected batch size, not by the actual one |

## Randomness

{_randomness(trial)}

## Evidence

{_evidence(record, audit)}

## What is not covered

{_NOT_COVERED}"""


def non_private_statement(trial: Trial) -> str:
    """Returns the statement of a trial without privacy as Markdown: a baseline, or one that only clips."""
    if trial.mechanism == "clipped_only":
        return f"""\
# Privacy statement

**This model has no privacy guarantee.** It was trained to measure what clipping costs ({trial.label()}): gradients are
clipped and no noise is added, which proves no ε at all. Do not release it.
"""
    return f"""\
# Privacy statement

**This model has no privacy guarantee.** It is a non-private baseline ({trial.label()}): gradients are neither
clipped nor noised. Do not release it.
"""


def diverged_statement(trial: Trial, record: MechanismRecord, steps: int, name: str) -> str:
    """Returns the statement of a DP-SGD trial that diverged as Markdown; ``steps`` is the number that it ran."""
    return f"""\
# Privacy statement

Trial `{name}` ({trial.label()}). **This run diverged, and there is no guarantee to give.** It ran {steps:,} of
{record.steps:,} planned steps, and its model was not finite. Whether and when that happens depends on the training
examples, which no ε of the noisy sums covers. No parameters were written. Do not publish anything of this run, nor
that it diverged.

Where its cost counts, as in the choice of hyperparameters, it counts as all {record.steps:,} planned steps.
"""


def audits_line(audits: Sequence[AuditResult]) -> str:
    """Returns what the audits of several trials found as one line: how many kept their budgets, and what others are."""
    kinds = Counter(_kind(audit) for audit in audits)
    return f"{counted(len(audits), 'trial')} audited: " + ", ".join(
        f"{number} {words}" for words, number in ((words, kinds[words]) for words in _KINDS) if number
    )


_WITHIN, _PAPER, _DIVERGED, _PLAIN, _FAILED = _KINDS = (
    "within budget",
    "with the paper's noise, whose budget is no guarantee",
    "diverged, without a guarantee",
    "not private",
    "FAILED",
)


def _kind(audit: AuditResult) -> str:
    if audit["verdict"] != "passed":
        return _DIVERGED if audit["verdict"] == "diverged" else _FAILED
    if audit["budget"] is None:
        return _PLAIN
    return _WITHIN if audit["claimed_epsilon"] is None else _PAPER


def summary(audit: AuditResult) -> str:
    """Returns the audit's result as one line for the log."""
    if audit["verdict"] == "diverged":
        return "no guarantee (diverged)"
    if audit["epsilon"] is None:
        return "no guarantee (non-private baseline)"
    line = f"ε = {audit['epsilon']:.4f} at δ = {audit['target_delta']:.3g}"
    line += " for labels only" if audit["target_delta"] == 0 else ""
    extra = audit.get("recalibration_epsilon")
    line += "" if extra is None else f", and {extra:.4f} for validation examples by recalibration"
    line += "" if audit["rdp_epsilon"] is None else f" (RDP: {audit['rdp_epsilon']:.4f})"
    attack = audit["attack"]
    return line if attack is None else f"{line}; an attack with canaries shows at least {attack['epsilon_lower']:.3f}"


def _guarantee(trial: Trial, bound: EpsilonBound, audit: AuditResult) -> str:
    if audit["verdict"] != "passed":
        return "**none**: the audit failed, see Evidence"
    stated = f"({bound.epsilon:.4f}, {trial.target_delta:.4g})-differential privacy; δ = 1/N"
    if trial.randomness == "seeded":
        return f"**none**, because the noise is not secret; the same training with `randomness: secret` has {stated}"
    return stated


def _looseness(bound: EpsilonBound) -> str:
    if not bound.converged:
        return "time ran out before it converged, so the bound is valid but may be loose"
    return f"a four times finer interval would lower it by at most about {100 * bound.further_change:.2g} %"


def _lower(audit: AuditResult) -> str:
    if audit["epsilon_lower"] is None:
        return "not known for this sampler"
    return f"{audit['epsilon_lower']:.4f}: no valid accounting of these noisy sums on worst-case data can be lower"


def _number(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < float("inf") else "none"


def _randomness(trial: Trial) -> str:
    return _drawn(trial) if trial.table_updates == "dense" else f"{_drawn(trial)} {_WAITING_ROWS}"


# With lazy tables. The mechanism is the same in distribution, so the bound is too.
_WAITING_ROWS = (
    "Rows of embedding tables waited for their noise until a batch read them (lazy tables). All of it was drawn before "
    "the model was evaluated and released, with the distribution of noise at every step."
)


def _drawn(trial: Trial) -> str:
    if trial.randomness == "secret":
        drawn = "Noise and batches were drawn from the operating system's entropy"
        if trial.bands > 1:
            return (
                f"{drawn}. Until the run ended, its checkpoint held the parts of the examples and the noise of the "
                f"last {trial.bands - 1} steps; then it was deleted."
            )
        if trial.sampler == "poisson":
            return f"{drawn} and not stored."
        return f"{drawn}. The noise was not stored; the checkpoint held the order of the examples until the run ended."
    return (
        f"**Noise and batches came from the fixed seed {trial.seed}: this run is a reproduction, and is not "
        "private against anyone who knows the seed.** Set `randomness: secret` to train a model for release."
    )


def _evidence(record: MechanismRecord, audit: AuditResult) -> str:
    lines = [f"- **Finding:** {finding}." for finding in audit["findings"]]
    lines.append("- The ε above was computed from the record of what ran, not from what was planned.")
    lines.append(
        "- All batch sizes, and how often each watched example took part, were tested against the stated sampler."
    )
    lines.append(
        "- Every step reported from the device which rows it computed with; all were compared with the sampled batches."
    )
    probe = audit["probe"]
    if probe is not None:
        compared = probe["comparisons"]
        worst = max(float("inf") if one["excess"] is None else one["excess"] for one in compared)
        lines.append(
            f"- The compiled program that trained was run again on {sum(one['examples'] for one in compared):,} rows, "
            f"in {sum(one['steps'] for one in compared)} steps, and compared with an independent computation in every "
            f"coordinate: the largest deviation was {worst:.2g} times what rounding explains. {probe['noise_draws']:,} "
            "draws of its noise were tested for scale, distribution, tails and independence."
        )
    attack = audit["attack"]
    if attack is not None:
        lines.append(
            f"- A coin flip decided for each of {attack['canaries']:,} canaries whether it was in the training data. "
            f"From the model, {attack['correct']:,} of {attack['guesses']:,} guesses at the coins were correct, so ε "
            f"is at least {attack['epsilon_lower']:.3f} with confidence {attack['confidence']:g}. A model trained with "
            "canaries has embedding rows for them: it is for the audit, not for use."
        )
    else:
        lines.append(
            "- No attack was tried, because there were no canaries in the training data (`canaries` of the pipeline)."
        )
    return "\n".join(lines)


def _budget_line(trial: Trial, bound: EpsilonBound, audit: AuditResult, name: str) -> str:
    if audit["claimed_epsilon"] is not None:
        return (
            f"Trial `{name}` ({trial.label()}). **The budget of ε = {trial.epsilon:g} is not a guarantee**: noise was "
            "scaled as in the paper, which takes the clip norm as the "
            f"sensitivity and arrives at ε = {audit['claimed_epsilon']:.4f}. But an example in a microbatch can change "
            f"the sum by twice the clip norm. What holds is ε = {bound.epsilon:.4f}."
        )
    held = "within" if audit["verdict"] == "passed" else "NOT SHOWN TO BE WITHIN"
    return f"Trial `{name}` ({trial.label()}), ε = {bound.epsilon:.4f}: {held} its budget of {trial.epsilon:g}."
