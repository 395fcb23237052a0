"""The privacy statement: what a trained model's guarantee is, in words a person can check.

It follows the reporting checklist of "How to DP-fy ML" (Ponomareva et al., 2023): the setting, what the
definition is applied to, the accounting, and how it can be verified.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from dp_core.accounting import EpsilonBound
from dp_core.label_record import LabelRecord
from dp_core.mechanism import MechanismRecord, proven_sensitivity
from tasks.trial import RESPONSES, Trial

_NOT_COVERED = """\
- **Hyperparameters.** They were chosen by validation loss among several trials. ε is that of this
  one trial. The report of its pipeline run has what the choice costs beside it.
- **Other releases.** Every further model that is trained on the same examples and published adds its
  own ε: `python -m tasks releases` adds them up.
- **The size of the training part.** N is treated as public: it sets the sampling probability and δ. So
  are the moments in time at which the log was split.
- **Logged metrics.** Training losses in the log and in MLflow, the evidence for the audit in `evidence.json`
  and the data card are computed from private examples without noise. Do not publish them with the model.
- **Failures.** That a run was stopped by an example without a finite gradient tells of that example.
- **Validation and test examples.** The guarantee is for examples of the training part.
- **Several examples of one user.** The unit is one example (one row of the log). What k examples of
  one user have is answered by `python -m tasks epsilon --group-size k`.
- **Events behind labels.** Where a label counts conversions that other rows of the log carry, one conversion
  may be in the labels of several examples. The guarantee is for an example with its label, not for a conversion.
- **Floating point.** Noise is drawn in 32-bit arithmetic by JAX's threefry generator, whose key has
  64 bits: not a cryptographic generator, and not proof against attacks on floating-point noise.
"""

_VOCABULARIES = {
    "threshold": "**outside ε**: tokens with at least {min_count} occurrences, by exact counts over the training part",
    "hash": "independent of the data: tokens are hashed into {buckets:,} buckets a column, which costs no ε",
    "private": "inside ε: noisy counts above {threshold:.4g} (noise multiplier {noise_multiplier:.4g} relative to its "
    "sensitivity, {epsilon:g} of ε by itself; {delta:.2g} of δ); its noise was drawn from the operating system's "
    "entropy",
}


def private_statement(
    trial: Trial,
    record: MechanismRecord,
    bound: EpsilonBound,
    audit: Mapping[str, Any],
    vocabulary: Mapping[str, Any],
) -> str:
    """The statement of a DP-SGD trial, from its record and the audit's result."""
    return f"""\
# Privacy statement

{_budget_line(trial, bound, audit)}

## Setting

| | |
|---|---|
| Model of privacy | central: whoever trains sees the examples; the guarantee is against whoever sees the model |
| Guarantee | ({bound.epsilon:.4f}, {trial.target_delta:.4g})-differential privacy; δ = 1/N |
| Unit of privacy | one training example |
| Neighbouring relation | {_relation(record)} |

## What it covers

| | |
|---|---|
| Released | the final parameters; the bound also holds if every step's noisy sum were seen |
| Training | inside ε: DP-SGD, {_clipped(record)}, Gaussian noise on the sum |
| Vocabulary | {_VOCABULARIES[vocabulary["kind"]].format(**vocabulary)} |
| Log transform | independent of the data: a fixed function of each value |
| Hyperparameter tuning | **outside ε**: this is the ε of a single training run |

## Accounting

| | |
|---|---|
| ε | {bound.epsilon:.4f} ({bound.accountant}) |
| ε by PLD | {_number(bound.pld_epsilon)}, connect-the-dots, interval {bound.interval:.2g}; {_looseness(bound)} |
| ε by RDP | {_number(bound.rdp_epsilon)} |
| ε at least | {_lower(audit)} |
| Accountant | dp-accounting {version("dp-accounting")}; the smaller of the two upper bounds |
| Sampler | {_sampler(record)} |
| Steps run | {record.steps:,}, counted |
| Clip norm C | {_clip_norm(record)} |
| Noise multiplier σ | {record.noise_multiplier:.6g} (noise of standard deviation σ·{_clip_norms(record.sensitivity)} \
per coordinate){_count_noise(record)} |
| Sensitivity of a sum | {_clip_norms(proven_sensitivity(record.microbatch_size))}, for adding or removing one example |
| Gradient scale | divided by the expected batch size, not by the realised one |

## Randomness

{_randomness(trial)}

## Evidence

{_evidence(record, audit)}

## What is not covered

{_NOT_COVERED}"""


def label_statement(trial: Trial, record: LabelRecord, audit: Mapping[str, Any]) -> str:
    """The statement of a LabelDP trial."""
    held = "within" if audit["verdict"] == "passed" else "NOT SHOWN TO BE WITHIN"
    histogram = ""
    if record.histogram_epsilon:
        histogram = (
            f"| Histogram | {record.histogram_epsilon:.6g} of ε: a noisy histogram of the labels, which the bins were "
            "fitted to |\n"
        )
    findings = "".join(f"- **Finding:** {finding}.\n" for finding in audit["findings"])
    return f"""\
# Privacy statement

Trial `{trial.key}` ({trial.label()}), ε = {record.epsilon:.4f} **for labels alone**: {held} its budget of \
{trial.epsilon:g}.

## Setting

| | |
|---|---|
| Guarantee | {record.epsilon:.4f}-differential privacy of labels (LabelDP); δ = 0 |
| Unit of privacy | the label of one training example |
| Neighbouring relation | replace one label by another. **Features are public**: whoever sees the model may learn all \
of them, and that an example is in the data |
| Released | the responses to all labels, and so every model that is trained on them |

## Accounting

| | |
|---|---|
| Responses | {RESPONSES[trial.response or "binary"]} among {len(record.values)} values; a label is kept with \
probability {record.keep_probability:.6g}, else it becomes one of the others, evenly |
| ε of the responses | ln(p/q) = {record.response_epsilon:.6g}, from the probability that was in force |
{histogram}| Drawn | once for the whole training, whatever the number of epochs; draw `{record.draw}` |
| Training | without noise, on the responses{" made right in the mean" if record.debiased else " as they are"}: \
it costs nothing more |
| Further models | of the same draw are free; of another draw they add their ε (`python -m tasks releases`) |

## Randomness

{_label_randomness(trial)}

## Evidence

{findings}- ε above was computed from the record of what ran, not from what was planned.
- How many labels were kept, and what the others became, was tested against the stated probabilities.

## What is not covered

- **Features**, the vocabulary that was made from them, and whether an example is in the data.
- **The size of the training part**, and the moments in time at which the log was split.
- **Validation and test labels.** Settings were chosen by the loss on true validation labels, without noise.
- **Logged metrics** of validation and test, `evidence.json` and the data card. The logged training losses are of the
  responses, and private as they are.
- **Several labels of one user.** The unit is one label: k labels of one user have k times ε.
- **Events behind labels.** Where a label counts conversions that other rows of the log carry, one conversion may be in
  the labels of several examples.
- **Floating point.** Responses are drawn with NumPy's PCG64, which is not a cryptographic generator.
"""


def _label_randomness(trial: Trial) -> str:
    if trial.randomness == "secret":
        return "Responses came from the operating system's entropy, which was in the run's checkpoint until it ended."
    return (
        f"**Responses came from the fixed seed {trial.seed}: this run is a reproduction, and not private against "
        "anyone who knows the seed.** Set `randomness: secret` for a model to be released."
    )


def non_private_statement(trial: Trial) -> str:
    return f"""\
# Privacy statement

**This model has no privacy guarantee.** It is a non-private baseline ({trial.label()}): gradients are
neither clipped nor noised. Do not release it.
"""


def summary(audit: Mapping[str, Any]) -> str:
    """One line for the log."""
    if audit["epsilon"] is None:
        return "no guarantee (non-private baseline)"
    line = f"ε = {audit['epsilon']:.4f} at δ = {audit['target_delta']:.3g}"
    line += " for labels alone" if audit["target_delta"] == 0 else ""
    line += "" if audit["rdp_epsilon"] is None else f" (RDP: {audit['rdp_epsilon']:.4f})"
    attack = audit["attack"]
    return line if attack is None else f"{line}; an attack with canaries shows at least {attack['epsilon_lower']:.3f}"


def _relation(record: MechanismRecord) -> str:
    name = record.neighboring_relation.name.lower()
    if name == "replace_special":
        return f"{name}: one example is replaced by an empty one that contributes nothing"
    return f"{name}: one example is added or removed"


def _sampler(record: MechanismRecord) -> str:
    sampler = record.stated_sampler
    size = f"batches of {record.expected_batch_size:,} of N = {record.examples:,}"
    if record.sampler == "shuffle":
        return (
            f"shuffled epochs, {size}. **No amplification by sampling is claimed**: accounting such batches as "
            "Poisson samples is common, and not valid"
        )
    cut = (
        f"the chance that one is ever larger than the {record.max_batch_size:,} there is room for, "
        f"{record.truncation_delta():.2g}, is taken off δ"
    )
    kind = "Poisson" if record.sampler == "poisson" else "balls in bins (each example in one batch an epoch)"
    return f"{kind}, probability {sampler.sampling_probability:.6g} (expected {size}); {cut}"


def _looseness(bound: EpsilonBound) -> str:
    if not bound.converged:
        return "time ran out before it converged: true, but loose"
    return f"an interval of a quarter would take off at most about {100 * bound.further_change:.2g} %"


def _lower(audit: Mapping[str, Any]) -> str:
    if audit["epsilon_lower"] is None:
        return "not known for this sampler"
    return f"{audit['epsilon_lower']:.4f}: no accounting of these noisy sums, on the worst data, can be below that"


def _number(epsilon: float) -> str:
    return f"{epsilon:.4f}" if epsilon < float("inf") else "none"


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


def _randomness(trial: Trial) -> str:
    if trial.randomness == "secret":
        drawn = "Noise and batches were drawn from the operating system's entropy"
        if trial.sampler == "poisson":
            return f"{drawn} and kept nowhere."
        return f"{drawn}. Noise was kept nowhere, and the order of the examples in the run's checkpoint until it ended."
    return (
        f"**Noise and batches came from the fixed seed {trial.seed}: this run is a reproduction, and not "
        "private against anyone who knows the seed.** Set `randomness: secret` for a model to be released."
    )


def _evidence(record: MechanismRecord, audit: Mapping[str, Any]) -> str:
    lines = [f"- **Finding:** {finding}." for finding in audit["findings"]]
    lines.append("- ε above was computed from the record of what ran, not from what was planned.")
    lines.append(
        "- The sizes of all batches, and how often watched examples took part, were tested against the sampler."
    )
    probe = audit["probe"]
    if probe is not None:
        largest = max([*probe["contribution_norms"], *probe["at_half"]])
        lines.append(
            f"- The compiled step was measured: {len(probe['contribution_norms'])} examples contributed at most "
            f"{largest:.4f} clip norms each (at most {probe['oracle_difference']:.1e} from the oracle's), and its "
            f"noise had {probe['noise_deviation'] / (record.noise_multiplier * record.sensitivity):.4f} times the "
            f"stated standard deviation over "
            f"{probe['coordinates'] * probe['noisy_steps']:,} draws."
        )
    attack = audit["attack"]
    if attack is not None:
        lines.append(
            f"- Of {attack['canaries']:,} canaries about half were in the training data, by a coin each. From the "
            f"model {attack['correct']:,} of {attack['guesses']:,} guesses at them were right: with confidence "
            f"{attack['confidence']:g}, ε is at least {attack['epsilon_lower']:.3f}. A model that was trained with "
            "canaries has rows for them: it is for the audit, not for use."
        )
    else:
        lines.append("- No canaries were in the training data (`canaries` of the pipeline), so no attack was tried.")
    return "\n".join(lines)


def _budget_line(trial: Trial, bound: EpsilonBound, audit: Mapping[str, Any]) -> str:
    if audit["claimed_epsilon"] is not None:
        return (
            f"Trial `{trial.key}` ({trial.label()}). **The budget of ε = {trial.epsilon:g} is not a guarantee under "
            f"adding or removing one example**: noise was scaled as in the paper, which gives "
            f"{audit['claimed_epsilon']:.4f} by treating the clip norm as the sensitivity, but an example in a "
            f"microbatch can change the sum by twice that. What holds is ε = {bound.epsilon:.4f}."
        )
    held = "within" if audit["verdict"] == "passed" else "NOT SHOWN TO BE WITHIN"
    return f"Trial `{trial.key}` ({trial.label()}), ε = {bound.epsilon:.4f}: {held} its budget of {trial.epsilon:g}."
