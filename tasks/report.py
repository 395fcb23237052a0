"""The reporting step: from a run's results to a document, and from that to a page, tables, figures and MLflow."""

from __future__ import annotations

import datetime
import importlib
import math
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.audit import audit
from tasks.choice_cost import choice_cost, choice_table
from tasks.config import Config, load_config
from tasks.datasets import write_card
from tasks.document import Cell, Document, Table
from tasks.encoded import open_prepared
from tasks.exhibits.common import TASK_TITLES, Exhibit, Sweep, score_text
from tasks.exhibits.relative_loss import relative_percent
from tasks.grids import Grids
from tasks.home import home, point_latest_at, read_json, whole_directory
from tasks.index_page import write_index
from tasks.measure import MEASURED, measured_metrics
from tasks.plan import read_plan
from tasks.progress import say
from tasks.report_files import PAGE, report_files, write_report
from tasks.results import Outcome, Result, choose
from tasks.tracking import log_report, provenance, run_link
from tasks.trained import find_trained
from tasks.trial import Trial


def report(run_folder: str, new: Iterable[Mapping[str, Any]] = ()) -> dict[str, str]:
    """Makes the report of a planned run, and the index of all reports anew.

    ``new`` are the results of the trials that this run trained and audited. The plan's other trials
    were trained by earlier runs: they are found, logged to this one and audited again.
    """
    run = Path(run_folder)
    planned = read_plan(run)
    config, selection = load_config(), planned["selection"]
    known = {item["trial"]: item for item in new}
    audited = [_audited(known, item) for item in planned["items"]]
    if audited:
        say(f"audited {len(audited)} trials: each within its budget")
    metrics: dict[str, float] = {}
    exhibit, details, notes = _contents(config, planned, run, audited, metrics)

    final = home() / "reports" / selection["pipeline"] / run.name
    document = _document(config, planned, run, exhibit, details, notes)
    with whole_directory(final) as folder:
        names = [path.name for path in write_report(folder, document)]
        shutil.rmtree(final, ignore_errors=True)  # an earlier report of the same run
    point_latest_at(final)
    index = write_index(home() / "reports")
    log_report(planned["parent"]["mlflow_run"], metrics, [final / name for name in names])
    say(f"report: {final / PAGE}")
    say(f"all reports: {index}")
    return report_files(final)


def _audited(known: Mapping[str, Mapping[str, Any]], item: Mapping[str, Any]) -> Mapping[str, Any]:
    key = Trial.model_validate(item["trial"]).key
    return known[key] if key in known else audit(find_trained(item))


def _contents(
    config: Config,
    planned: Mapping[str, Any],
    run: Path,
    audited: Sequence[Mapping[str, Any]],
    metrics: dict[str, float],
) -> tuple[Exhibit, list[Table], list[str]]:
    """What a run shows, the tables behind it, and what a reader must know. What MLflow shows goes to ``metrics``."""
    selection = planned["selection"]
    pipeline, grids = config.pipeline(selection["pipeline"]), config.grids(selection["pipeline"], selection["profile"])
    shows = importlib.import_module(f"tasks.exhibits.{pipeline.exhibit}").exhibit
    if not grids.trains:
        measured = read_json(run / MEASURED)
        metrics |= measured_metrics(measured)
        return (shows(measured) if grids.speed is None else shows(measured, pipeline)), [], []

    outcomes = [_outcome(item["trial"]) for item in audited]
    drawn = planned["mean_trials"] or {}
    results = choose(outcomes, pipeline.columns, each_alone=bool(drawn))
    costs = {
        number: choice_cost(result, drawn.get(result.task))
        for number, result in enumerate(results)
        if result.epsilon is not None
    }
    ceilings = {result.task: _ceiling(planned, result) for result in results}
    baselines = {result.task: result for result in results if result.epsilon is None}
    exhibit = shows(Sweep(pipeline, results, {task: found for task, found in ceilings.items() if found}))
    for number, result in enumerate(results):
        arm = [_metric_part(result.arm.label)] if pipeline.columns and result.epsilon is not None else []
        name = ".".join([result.task, *arm, result.trial.epsilon_label])
        if not result.diverged:
            metrics[f"test_loss.{name}"] = result.loss
            relative, _ = relative_percent(result, baselines[result.task])
            metrics |= {f"relative_loss_percent.{name}": relative} if math.isfinite(relative) else {}
        if number in costs:
            metrics[f"epsilon_with_choice.{name}"] = costs[number].holds
    epsilons = {item["trial"]: item["epsilon"] for item in audited}
    details = [
        _settings_table(results, epsilons),
        choice_table(results, costs, epsilons),
        _trials_table(planned, audited),
    ]
    return exhibit, details, _notes(results)


def _document(
    config: Config, planned: Mapping[str, Any], run: Path, exhibit: Exhibit, details: Sequence[Table], notes: list[str]
) -> Document:
    selection = planned["selection"]
    pipeline = config.pipeline(selection["pipeline"])
    grids = config.grids(selection["pipeline"], selection["profile"])
    cards = {
        name: write_card(config, open_prepared(Path(path))).read_text(encoding="utf-8")
        for name, path in planned["prepared"].items()
    }
    title, _, of_the_paper = pipeline.title.partition(" (")
    return Document(
        pipeline=selection["pipeline"],
        profile=selection["profile"],
        run=run.name,
        title=title,
        shows=of_the_paper.removesuffix(")"),
        headline=exhibit.headline,
        finished=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=_command(planned, list(pipeline.datasets)),
        figures=exhibit.figures,
        tables=exhibit.tables,
        findings=exhibit.findings,
        notes=[*exhibit.notes, *notes],
        details=[*details, _grid_table(grids)],
        cards=cards,
        provenance=provenance(planned["prepared"]),
        mlflow_link=run_link(planned["parent"]["experiment"], planned["parent"]["mlflow_run"]),
    )


def _command(planned: Mapping[str, Any], all_tasks: list[str]) -> str:
    """What makes the same run again."""
    selection, options = planned["selection"], dict(planned["options"])
    if list(options.get("tasks") or ()) == all_tasks:
        options.pop("tasks")
    parts = [f"make run PIPELINE={selection['pipeline']}", f"PROFILE={selection['profile']}"]
    for name in ("dataset", "raw", "tasks", "epsilons", "seeds"):
        value = options.get(name)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            parts.append(f"{name.upper()}={shlex.quote(text)}")
    return " ".join(parts)


def _outcome(key: str) -> Outcome:
    record = read_json(home() / "trials" / key / "record.json")
    return Outcome(Trial.model_validate(record["trial"]), record["validation_loss"], record["test_loss"])


def _ceiling(planned: Mapping[str, Any], result: Result) -> Mapping[str, float] | None:
    ceiling = open_prepared(Path(planned["prepared"][result.trial.dataset])).ceiling
    return (ceiling or {}).get("tasks", {}).get(result.task)


def _metric_part(label: str) -> str:
    """A method's name as MLflow takes it.

    >>> _metric_part("batch 8,192 · 32 epochs")
    'batch_8192_32_epochs'
    """
    kept = "".join(c if c.isalnum() or c in "._-" else " " for c in label.replace(",", ""))
    return "_".join(kept.split())


def _settings_table(results: Sequence[Result], epsilons: Mapping[str, float | None]) -> Table:
    """What was chosen for each cell, and among how many."""
    rows = []
    for result in results:
        trial, epsilon = result.trial, epsilons[result.trial.key]
        cells = [Cell(TASK_TITLES[result.task]), Cell(result.arm.label)]
        cells.append(Cell(trial.epsilon_label.replace("inf", "∞"), trial.epsilon or float("inf")))
        cells.append(Cell("–") if epsilon is None else Cell(f"{epsilon:.4f}", epsilon))
        cells += [Cell(score_text(result), None if result.diverged else result.loss), Cell(_settings(trial))]
        cells.append(Cell(str(len(result.tried)), len(result.tried)))
        rows.append(cells)
    columns = ["task", "method", "ε budget", "ε of the run", "test score", "chosen by validation", "trainings"]
    caption = "Trainings are all that were chosen among: settings times seeds."
    return Table("settings", "Chosen settings", columns, rows, caption)


def _settings(trial: Trial) -> str:
    parts = [f"{trial.optimizer} {trial.learning_rate:g}", f"batch {trial.batch_size:,}", f"{trial.epochs:g} epochs"]
    if trial.l2_clip_norm is not None:
        parts += [f"C = {trial.l2_clip_norm:g}", f"σ = {trial.noise_multiplier:.3g}"]
    parts += [f"m = {trial.microbatch_size}"] if trial.microbatch_size > 1 else []
    return ", ".join(parts)


def _trials_table(planned: Mapping[str, Any], audited: Sequence[Mapping[str, Any]]) -> Table:
    """Every trial with the audit's verdict, and the run of it in MLflow."""
    rows = []
    for item in audited:
        folder = home() / "trials" / item["trial"]
        record, verdict = read_json(folder / "record.json"), read_json(folder / "audit.json")
        trial = Trial.model_validate(record["trial"])
        link = run_link(planned["parent"]["experiment"], item["mlflow_run"])
        rows.append(
            [
                Cell(trial.label(), link=link, note=f"trial {trial.key}"),
                Cell(trial.epsilon_label.replace("inf", "∞"), trial.epsilon or float("inf")),
                _number(verdict["epsilon"]),
                _number(verdict.get("epsilon_lower")),
                Cell(verdict["verdict"]),
                _number(record["validation_loss"]),
                _number(record["test_loss"], "diverged"),
                Cell(f"{record['seconds']:.1f}", record["seconds"]),
            ]
        )
    columns = ["trial", "ε budget", "ε audited", "ε at least", "audit", "validation loss", "test loss", "seconds"]
    caption = (
        "ε audited is computed from the record of what ran; “ε at least” is what no accounting of it can be below. "
        "Each trial is a run in MLflow: its links work while `make up` runs."
    )
    return Table("trials", f"All {len(rows)} trials, audited", columns, rows, caption)


def _number(value: float | None, missing: str = "–") -> Cell:
    return Cell(missing) if value is None else Cell(f"{value:.4f}", value)


def _grid_table(grids: Grids) -> Table:
    """The grid as it stands in pipelines.yaml."""
    rows = []

    def add(key: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, inner in value.items():
                add(f"{key}.{name}" if key else name, inner)
        elif value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            rows.append([Cell(key), Cell(text)])

    add("", grids.model_dump(mode="json", exclude_defaults=False))
    return Table("grid", "Settings of the sweep", ["setting", "values"], rows, "As in pipelines.yaml, with defaults.")


def _notes(results: Sequence[Result]) -> list[str]:
    notes = [
        "ε of a cell is that of the one training whose model is kept, as the paper reports it, computed by the audit "
        "from what ran; what choosing among trainings costs is in the table below. Each trial's `privacy_statement.md` "
        "says what its ε covers, and what not.",
        "Standard deviations are over seeds (initial parameters, batches, noise), on one test split: how the split "
        "itself could have come out is not in them.",
    ]
    trainings = {len(result.tried) for result in results if result.epsilon is not None}
    if len(trainings) > 1:
        notes.append(
            f"Methods do not have equally many trainings to choose among ({', '.join(map(str, sorted(trainings)))} a "
            "cell): those with more have an advantage."
        )
    if any(result.trial.sensitivity == "paper" for result in results):
        notes.append(
            "Some noise was scaled as in the paper (`sensitivity: paper`), to less than an example in a microbatch can "
            "change: there the budget is the paper's claim, and ε audited is what holds under adding or removing one."
        )
    if any(result.trial.randomness == "seeded" for result in results):
        notes.append("Noise came from fixed seeds: these models are reproductions, not for release.")
    return notes
