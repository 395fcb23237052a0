"""The privacy statement of a LabelDP trial, in words that a person can check."""

from __future__ import annotations

from dp_core.labels.record import LabelRecord
from tasks.privacy.audit_result import AuditResult
from tasks.training.trial import RESPONSES, Trial


def label_statement(trial: Trial, record: LabelRecord, audit: AuditResult, name: str) -> str:
    """Returns the statement of a LabelDP trial as Markdown, from its record and the audit's result."""
    passed = audit["verdict"] == "passed"
    held = "within" if passed else "NOT SHOWN TO BE WITHIN"
    guarantee = f"{record.epsilon:.4f}-differential privacy of labels (LabelDP); δ = 0"
    if not passed:
        guarantee = "**none**: the audit failed, see Evidence"
    histogram = ""
    if record.histogram_epsilon:
        histogram = (
            f"| Histogram | {record.histogram_epsilon:.6g} of ε: a noisy histogram of the labels that the bins were "
            "fitted to |\n"
        )
    trained_on = "unbiased labels computed from the responses" if record.debiased else "the responses as they are"
    findings = "".join(f"- **Finding:** {finding}.\n" for finding in audit["findings"])
    return f"""\
# Privacy statement

Trial `{name}` ({trial.label()}), ε = {record.epsilon:.4f} **for labels only**: {held} its budget of \
{trial.epsilon:g}.

## Setting

| | |
|---|---|
| Guarantee | {guarantee} |
| Unit of privacy | the label of one training example |
| Neighbouring relation | one label is replaced by another. **Features are public**: anyone who sees the model may \
learn all of them, and learn that an example is in the data |
| Released | the responses to all labels, and therefore every model that is trained on them |

## Accounting

| | |
|---|---|
| Responses | {RESPONSES[trial.response or "binary"]} among {len(record.values)} values; a label is kept with \
probability {record.keep_probability:.6g} and otherwise replaced by one of the others, chosen uniformly |
| ε of the responses | ln(p/q) = {record.response_epsilon:.6g}, from the probability that was in force |
{histogram}| Drawn | once for the whole training, whatever the number of epochs; draw `{record.draw}` |
| Training | without noise, on {trained_on}: it costs no more ε |
| Other models | on the same draw cost nothing more; on another draw they add its ε (`python -m tasks releases`) |

## Randomness

{_label_randomness(trial)}

## Evidence

{findings}- The ε above was computed from the record of what ran, not from what was planned.
- The numbers of labels that were kept, and of those that were replaced by each other value, were tested against the
  stated probabilities.

## What is not covered

- **Features**, the vocabulary made from them, and whether an example is in the data.
- **The size of the training split**, and the points in time at which the log was split.
- **Validation and test labels.** Settings were chosen by the loss on the true validation labels, without noise.
- **Every reported loss.** Validation and test losses of this and other trials, the non-private baseline's among them,
  relative losses, `evidence.json` and the data card are computed from true labels without noise. The logged training
  losses are computed from the responses, so they are as private as the responses.
- **The trial's key and the data's fingerprint** in MLflow, in reports and in the names of folders: they are hashes of
  the log. Do not publish them.
- **Several labels of one user.** The unit of privacy is one label: k labels of one user have k times the ε.
- **Events behind labels.** If a label counts conversions that are recorded in other rows of the log, one conversion can
  affect the labels of several examples.
- **Floating point.** Responses are drawn with NumPy's PCG64, which is not a cryptographic generator.
"""


def _label_randomness(trial: Trial) -> str:
    if trial.randomness == "secret":
        return (
            "Responses were drawn from the operating system's entropy, which the checkpoint held until the run ended."
        )
    return (
        f"**Responses came from the fixed seed {trial.seed}: this run is a reproduction, and is not private against "
        "anyone who knows the seed.** Set `randomness: secret` to train a model for release."
    )
