"""The table of metrics beside the reported loss, for the chosen settings of any sweep, and the finding on calibration.

AUC does not change if every prediction is twice as large. So a private model can rank well and be far off in the
number of clicks that it predicts, by which bids are made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from tasks.config.dataset import TASK_TITLES
from tasks.reporting.document import Cell, Finding, Table
from tasks.reporting.exhibits.common import seeds_text
from tasks.reporting.results import Result
from tasks.training.trial import Trial

# Loading the configuration imports this module: it should not wait for NumPy.
if TYPE_CHECKING:
    from tasks.training.finished import TrialRecord

# The names of metrics in records and MLflow, with those of the table's columns.
METRICS: Mapping[str, str] = {
    "auc": "AUC",
    "poisson_log_loss": "Poisson log loss",
    "log_loss": "log loss",
    "normalized_entropy": "NE",
    "llh": "LLH",
    "calibration": "calibration",
}
# Calibration is taken as right inside of this band.
BAND = (0.9, 1.1)
# A calibration counts as outside of the band if it is so by this many standard errors.
_ERRORS = 2.0
_EVENTS = {"pctr": "clicks", "pcvr": "conversions", "pconvs": "conversions"}

ReadRecord = Callable[[Trial], "TrialRecord"]


class Spread(NamedTuple):
    """A metric over seeds: its mean, its standard deviation (0 for one seed) and the number of seeds that have it."""

    mean: float
    deviation: float
    seeds: int


def read_record(trial: Trial) -> TrialRecord:
    from tasks.training.finished import FinishedTrial

    return FinishedTrial.open(trial).record


def metrics_table(results: Sequence[Result], read: ReadRecord = read_record) -> Table:
    """Returns all metrics of the test split for the chosen settings of each cell; validation is in the CSV file."""
    rows, records = [], list[dict[str, Any]]()
    found = [[read(outcome.trial) for outcome in result.chosen] for result in results]
    shown = [name for name in METRICS if any(name in one.get("test_metrics", {}) for cell in found for one in cell)]
    for result, cell in zip(results, found, strict=True):
        tested = {name: over_seeds([one.get("test_metrics", {}) for one in cell], name) for name in METRICS}
        validated = {name: over_seeds([_validation(one) for one in cell], name) for name in METRICS}
        epsilon = Cell("∞", math.inf) if result.epsilon is None else Cell(f"{result.epsilon:g}", result.epsilon)
        rows.append(
            [Cell(TASK_TITLES[result.task]), Cell(result.arm.label), epsilon, *(_cell(tested[name]) for name in shown)]
        )
        record: dict[str, Any] = {
            "task": result.task,
            "method": result.arm.label,
            "epsilon": result.trial.epsilon_label,
            "seeds": len(cell),
        }
        for split, by_name in (("test", tested), ("validation", validated)):
            for name, one in by_name.items():
                record[f"{split}_{name}_mean"] = one.mean if one else None
                record[f"{split}_{name}_std"] = one.deviation if one and one.seeds > 1 else None
        records.append(record)
    caption = (
        f"On the test split, {seeds_text(results)}, for the settings that validation loss chose. NE, normalised "
        "entropy: the log loss relative to that of predicting the split's mean label for every row (for pConvs, the "
        "Poisson deviance relative to that); LLH = 1 − NE. Calibration: the mean prediction over the mean label. “–”: "
        "not measured by the version that trained it, or not defined. These numbers come from held-out labels without "
        "noise, and no ε covers them."
    )
    columns = ["task", "method", "ε budget", *(METRICS[name] for name in shown)]
    return Table("metrics", "Metrics", columns, rows, caption, records)


def calibration_findings(results: Sequence[Result], read: ReadRecord = read_record) -> list[Finding]:
    """Returns a finding for each task and method with private models that predict too much or too little on average.

    A mean calibration over seeds is outside of ``BAND`` if it is so by two standard errors. These cover the choice of
    test rows, which the seeds share, and the spread over seeds.
    """
    baselines = {result.task: _calibration(result, read) for result in results if result.epsilon is None}
    findings = []
    cells = dict.fromkeys((result.task, result.arm) for result in results if result.epsilon is not None)
    for task, arm in cells:
        own = [one for one in results if (one.task, one.arm) == (task, arm) and not one.diverged]
        measured = [(one, found) for one in own if (found := _calibration(one, read)) is not None]
        off = [(one, *found) for one, found in measured if is_off(*found)]
        if not off:
            continue
        several = sum(of_task == task for of_task, _ in cells) > 1
        method = f" ({arm.label})" if several else ""
        values = ", ".join(f"{ratio:.2f} ± {error:.2f} at ε = {one.epsilon:g}" for one, ratio, error in off)
        baseline, worst = baselines.get(task), max((ratio for _, ratio, _ in off), key=_distance)
        findings.append(
            Finding(
                f"{TASK_TITLES[task]}{method}: private models predict as many {_EVENTS[task]} as there are",
                "not shown",
                f"mean prediction over mean label {values}, outside of {BAND[0]:g} to {BAND[1]:g}; "
                f"{_cause(task, baseline, worst)}",
            )
        )
    return findings


def is_off(ratio: float, standard_error: float) -> bool:
    """Returns whether a calibration is outside of the band by more than its uncertainty.

    >>> is_off(1.15, 0.01), is_off(1.15, 0.04), is_off(0.8, 0.02), is_off(1.0, 0.0)
    (True, False, True, False)
    """
    return ratio - _ERRORS * standard_error > BAND[1] or ratio + _ERRORS * standard_error < BAND[0]


def over_seeds(metrics: Sequence[Mapping[str, float]], name: str) -> Spread | None:
    """Returns a metric over seeds; None if no seed has it.

    >>> over_seeds([{"auc": 0.7}, {"auc": 0.8}, {}], "auc").seeds, over_seeds([{}], "auc")
    (2, None)
    """
    values = [one[name] for one in metrics if name in one]
    return Spread(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values)) if values else None


def _distance(ratio: float) -> float:
    """Returns how far a calibration is from 1, as a factor in either direction."""
    return abs(math.log(ratio)) if ratio > 0 else math.inf


def _cause(task: str, baseline: tuple[float, float] | None, worst: float) -> str:
    """Returns what a calibration that is off tells, given the baseline's and the one that is most off."""
    if baseline is None:
        return "the baseline's is not known"
    ratio, error = baseline
    # Labels can change between the splits. Twice the baseline's distance is more than that.
    if not BAND[0] <= ratio <= BAND[1] and _distance(worst) < 2 * _distance(ratio):
        return f"the non-private model has {ratio:.2f} ± {error:.2f}, so privacy need not be the cause"
    hidden = "The Poisson log loss has it in one number with all else" if task == "pconvs" else "AUC does not show it"
    return (
        f"the non-private model has {ratio:.2f} ± {error:.2f}. {hidden}: clipping and noise bias the mean prediction. "
        "`recalibration: shift` corrects it"
    )


def _calibration(result: Result, read: ReadRecord) -> tuple[float, float] | None:
    """Returns the mean calibration over seeds and its standard error; None if it was not measured."""
    records = [read(outcome.trial) for outcome in result.chosen]
    found = over_seeds([one.get("test_metrics", {}) for one in records], "calibration")
    errors = [error for one in records if (error := one.get("calibration_error")) is not None]
    if found is None or not errors:
        return None
    return found.mean, math.hypot(found.mean * fmean(errors), found.deviation / math.sqrt(found.seeds))


def _validation(record: TrialRecord) -> Mapping[str, float]:
    return record["curve"][-1].get("validation_metrics", {}) if record["curve"] else {}


def _cell(found: Spread | None) -> Cell:
    if found is None:
        return Cell("–")
    spread = f" ± {found.deviation:.4f}" if found.seeds > 1 else ""
    return Cell(f"{found.mean:.4f}{spread}", found.mean)
