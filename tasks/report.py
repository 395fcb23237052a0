"""The reporting step: makes a document of a run's results and writes it as a page, tables, figures and to MLflow."""

from __future__ import annotations

import datetime
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.config.dataset import TaskName
from tasks.config.loading import load_config
from tasks.config.pipeline import Grids, Pipeline
from tasks.data.prepared import Prepared, open_prepared
from tasks.evaluation.segments import SegmentReader
from tasks.measure import MEASURED, measured_metrics
from tasks.outages.unlogged import is_unlogged, logged, take_up
from tasks.owners.locks import one_at_a_time
from tasks.privacy.choice_cost import choice_cost, choice_table
from tasks.privacy.statement import audits_line
from tasks.reporting.document import Caveat, Document, Figure, Table
from tasks.reporting.exhibits.common import Exhibit, Measurement, Sweep
from tasks.reporting.exhibits.metrics import calibration_findings, metrics_table
from tasks.reporting.exhibits.registry import exhibits
from tasks.reporting.exhibits.reliability import reliability_figures
from tasks.reporting.exhibits.segments import segment_findings, segments_table
from tasks.reporting.files import PAGE, STATEMENTS, report_files, write_report
from tasks.reporting.index import write_index
from tasks.reporting.notes import fairness_notes
from tasks.reporting.price.doubts import Judgement, together
from tasks.reporting.price.judge import Evidence, judge
from tasks.reporting.price.sampling import Labels
from tasks.reporting.results import Outcome, choose
from tasks.reporting.tables import ListedTrial, measured_settings, settings_table, settings_that_varied, trials_table
from tasks.reporting.targets import compare_target, run_target
from tasks.reporting.terminal import report_text
from tasks.reporting.tracked import description, judgement_metrics, judgement_tags, relative_losses, sweep_metrics
from tasks.rounds.decomposition import NAME as TAKEN_APART
from tasks.rounds.picture import search_figures, search_notes, search_tables
from tasks.rounds.searched import SearchedRounds
from tasks.runtime.home import home, point_latest_at, read_json, whole_directory, write_json
from tasks.runtime.mlflow_views import SweepMetric
from tasks.runtime.progress import note, say, say_result
from tasks.runtime.tracking import log_report, provenance, start_pipeline_run
from tasks.training.finished import CurvePoint, FinishedTrial
from tasks.training.items import AuditedTrial, Plan, PlannedTrial, planned_rounds, planned_selection, read_plan
from tasks.training.logged import find_finished
from tasks.training.trial import Trial


class _Run(NamedTuple):
    """A planned run with the parts of the configuration and the data that it is about."""

    folder: Path
    plan: Plan
    pipeline: Pipeline
    grids: Grids
    prepared: Mapping[str, Prepared]


class _Contents(NamedTuple):
    """What a report says: the exhibit, what stands behind it, notes for the reader, and the numbers for MLflow.

    Attributes:
        relative_losses: Those of the trials, by their runs in MLflow.
        statements: The privacy statements of the trials, by their anchors.
        judgement: Whether the numbers are the price of privacy.
        more_figures: How well predictions are calibrated, and what a search has tried.
    """

    exhibit: Exhibit
    details: Sequence[Table]
    notes: Sequence[str]
    metrics: Sequence[SweepMetric]
    relative_losses: Mapping[str, float | None]
    statements: Mapping[str, str]
    judgement: Judgement
    more_figures: Sequence[Figure] = ()


def report(run_folder: str, new: Iterable[AuditedTrial] = ()) -> dict[str, str]:
    """Writes the report of a planned run, and rewrites the index of all reports.

    Args:
        run_folder: The planned run.
        new: The trials that this run trained and audited. The plan's other trials come from earlier runs: they are
            found, logged to this run and audited again.

    Returns:
        The paths of the page, the Markdown file and the first table.
    """
    config, plan = load_config(), _plan_in_mlflow(run_folder)
    selection = plan["selection"]
    run = _Run(
        folder=Path(run_folder),
        plan=plan,
        pipeline=config.pipeline(selection["pipeline"]),
        grids=config.grids(selection["pipeline"], selection["profile"]),
        prepared={name: open_prepared(Path(path)) for name, path in plan["prepared"].items()},
    )
    contents = _trained(run, new) if run.grids.trains else _measured(run)
    only_for_tests = config.profile(selection["profile"]).only_for_tests
    document = _document(run, contents, only_for_tests=only_for_tests)

    final = home() / "reports" / selection["pipeline"] / run.folder.name
    with whole_directory(final) as folder:
        names = [path.name for path in write_report(folder, document)]
        shutil.rmtree(final, ignore_errors=True)  # an earlier report of the same run
    point_latest_at(final, f"latest-{selection['profile']}")
    if not only_for_tests:
        point_latest_at(final)
    with one_at_a_time("index of reports", "is writing the index of reports"):
        index = write_index(home() / "reports")
    logged(
        run_folder,
        lambda: log_report(
            plan["parent"],
            metrics=contents.metrics,
            files=[final / name for name in names],
            note=description(document, plan["parent"], contents.relative_losses),
            relative_losses=contents.relative_losses,
            tags=judgement_tags(contents.judgement),
        ),
        None,
    )
    # For the log of the step. Who runs the pipeline in a terminal sees the same at the end. Indented, because a line
    # that begins with ✗ would be taken for an error.
    for line in report_text(final).splitlines():
        note(f"  {line}")
    if is_unlogged(run_folder):
        say("MLflow has not got this run: `python -m tasks log-pending` logs it when the server answers again")
    say(f"report: {final / PAGE}")
    say(f"all reports: {index}")
    made = report_files(final)
    say_result(made)
    return made


def _plan_in_mlflow(run_folder: str) -> Plan:
    """Returns the plan of a run. If MLflow did not answer earlier and does now, the plan gets a run there."""
    plan = read_plan(run_folder)
    if take_up(run_folder) and not plan["parent"]["mlflow_run"]:
        selection = planned_selection(plan)
        prepared = {name: open_prepared(Path(path)) for name, path in plan["prepared"].items()}
        cards = {name: opened.data_card for name, opened in prepared.items()}
        trials = [Trial.model_validate(item["trial"]) for item in plan["items"]]
        parent = logged(
            run_folder,
            lambda: start_pipeline_run(load_config(), selection, Path(run_folder).name, prepared, cards, trials),
            plan["parent"],
        )
        items: list[PlannedTrial] = [{**item, "parent": parent} for item in plan["items"]]
        plan = {**plan, "parent": parent, "items": items}
        write_json(Path(run_folder) / "plan.json", plan)
    return plan


def _measured(run: _Run) -> _Contents:
    numbers = read_json(run.folder / MEASURED)
    exhibit = exhibits()[run.pipeline.exhibit].make(Measurement(run.pipeline, numbers))
    judgement = Judgement((), claims_price=False)
    return _Contents(exhibit, [measured_settings(run.grids)], [], measured_metrics(numbers), {}, {}, judgement)


def _trained(run: _Run, new: Iterable[AuditedTrial]) -> _Contents:
    # What MLflow did not take earlier is found and logged again, unless it still does not answer.
    known = [item for item in new if item["mlflow_run"] or is_unlogged(run.folder)]
    audited = _audited(run.plan["items"], known)
    finished = [FinishedTrial.open(item["trial"]) for item in audited]
    say(audits_line([one.audit for one in finished]))

    spec, drawn = exhibits()[run.pipeline.exhibit], run.plan["mean_trials"] or {}
    outcomes = [
        Outcome(one.trial, one.record["validation_loss"], one.record["test_loss"], tuple(item.get("recipes", ())))
        for one, item in zip(finished, run.plan["items"], strict=True)
    ]
    searched = SearchedRounds.of(run.plan, run.pipeline, run.grids, run.prepared, outcomes)
    apart = [planned_rounds(run.plan)[item.get("round", 1) - 1] == TAKEN_APART for item in run.plan["items"]]
    beside = [outcome for outcome, part in zip(outcomes, apart, strict=True) if part]
    chosen_from = [outcome for outcome, part in zip(outcomes, apart, strict=True) if not part]
    results = choose(
        chosen_from,
        run.pipeline.columns,
        each_alone=bool(drawn),
        may_diverge=spec.columns != (),
        among=searched.finalists,
    )
    costs = {
        number: choice_cost(result, drawn.get(result.task), searched.cost_of(result))
        for number, result in enumerate(results)
        if result.epsilon is not None
    }
    epsilons = {item["trial"]: item["epsilon"] for item in audited}
    chosen = {outcome.trial for result in results for outcome in result.chosen}
    experiment = run.plan["parent"]["experiment"]
    listed = [
        ListedTrial(
            one,
            one.trial in chosen,
            run_target(experiment, item["mlflow_run"]),
            f"{STATEMENTS}#{_anchor(number)}",
            outcome.recipes,
        )
        for number, (one, item, outcome) in enumerate(zip(finished, audited, outcomes, strict=True), 1)
    ]
    curves = {one.trial.key: _losses(one.record["curve"]) for one in finished}
    evidence = Evidence(chosen_from, curves, epsilons, _test_labels(run), searched.shortened())
    judgement = judge(results, evidence, claims_price=spec.claims_price)
    sweep = Sweep(run.pipeline, results, _ceilings(run), judgement.doubts, beside)
    columns, segments = _segment_columns(run), SegmentReader(run.prepared, _segment_columns(run))
    by_segment = segments_table(sweep, columns, segments.read)
    exhibit = spec.make(sweep)
    return _Contents(
        exhibit=exhibit._replace(
            findings=[
                *exhibit.findings,
                *calibration_findings(results),
                *segment_findings(sweep, columns, segments.read),
            ],
        ),
        details=[
            settings_table(results, epsilons),
            *search_tables(searched),
            metrics_table(results),
            *([by_segment] if by_segment else []),
            choice_table(results, costs, epsilons),
            trials_table(listed),
            *settings_that_varied([one.trial for one in finished]),
        ],
        notes=[*fairness_notes(results), *search_notes(searched), *segments.notes()],
        metrics=[*sweep_metrics(run.pipeline, results, costs), *judgement_metrics(judgement)],
        relative_losses=relative_losses(audited, finished, results),
        statements={
            _anchor(number): one.statement.read_text(encoding="utf-8") for number, one in enumerate(finished, 1)
        },
        judgement=judgement,
        more_figures=[*reliability_figures(sweep), *search_figures(searched)],
    )


def _losses(curve: Sequence[CurvePoint]) -> list[float]:
    """Returns the validation losses of a curve; none if one is not finite."""
    losses = [point["validation_loss"] for point in curve]
    return [loss for loss in losses if loss is not None] if None not in losses else []


def _test_labels(run: _Run) -> dict[TaskName, Labels]:
    """Returns the rows and the positive labels of each task's test split."""
    found = {}
    for task in run.plan["selection"]["tasks"]:
        prepared = run.prepared[run.plan["selection"]["datasets"][task]]
        _, positives = prepared.statistics["by_split"]["test"][f"label_{task}"]
        found[task] = Labels(prepared.splits["test"]["rows"], int(positives))
    return found


def _segment_columns(run: _Run) -> dict[TaskName, str]:
    """Returns the segment column of the dataset of each task that has one."""
    config, datasets = load_config(), run.plan["selection"]["datasets"]
    columns = {task: config.dataset(datasets[task]).segment_column for task in run.plan["selection"]["tasks"]}
    return {task: column for task, column in columns.items() if column is not None}


def _anchor(number: int) -> str:
    """Returns the anchor of a trial's statement. It is not the trial's key, which statements do not have."""
    return f"trial-{number}"


def _audited(planned: Sequence[PlannedTrial], new: Iterable[AuditedTrial]) -> list[AuditedTrial]:
    """Returns the audited trials of a plan, in its order. Audits those that this run did not train, all in one go."""
    known = {item["trial"]: item for item in new}
    keys = [Trial.model_validate(item["trial"]).key for item in planned]
    found = [find_finished(item) for item, key in zip(planned, keys, strict=True) if key not in known]
    if found:
        # Loads JAX, which a report of trials that were just audited does not need.
        from tasks.audit import audit_group

        known |= {item["trial"]: item for item in audit_group(found)}
    return [known[key] for key in keys]


def _ceilings(run: _Run) -> dict[TaskName, Mapping[str, float]]:
    """Returns the best scores that the planted models of synthetic logs allow, by task."""
    ceilings = {}
    for task in run.plan["selection"]["tasks"]:
        prepared = run.prepared[run.plan["selection"]["datasets"][task]]
        if found := (prepared.ceiling or {}).get("tasks", {}).get(task):
            ceilings[task] = found
    return ceilings


def _document(run: _Run, contents: _Contents, *, only_for_tests: bool) -> Document:
    selection, exhibit, parent = run.plan["selection"], contents.exhibit, run.plan["parent"]
    title, _, of_the_paper = run.pipeline.title.partition(" (")
    return Document(
        pipeline=selection["pipeline"],
        profile=selection["profile"],
        run=run.folder.name,
        title=title,
        shows=of_the_paper.removesuffix(")"),
        headline=exhibit.headline,
        finished=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        command=_command(run.plan, list(run.pipeline.datasets)),
        figures=exhibit.figures,
        more_figures=contents.more_figures,
        tables=exhibit.tables,
        findings=exhibit.findings,
        notes=[*exhibit.notes, *contents.notes],
        details=contents.details,
        cards={name: prepared.data_card.read_text(encoding="utf-8") for name, prepared in run.prepared.items()},
        statements=contents.statements,
        provenance=provenance(run.prepared),
        mlflow_link=run_target(parent["experiment"], parent["mlflow_run"]),
        compare_link=compare_target(parent["experiment"], contents.relative_losses)
        if len(contents.relative_losses) > 1
        else "",
        only_for_tests=only_for_tests,
        verdict=contents.judgement.verdict,
        caveats=[
            Caveat(claim, doubt.consequence, doubt.serious) for claim, doubt in together(contents.judgement.doubts)
        ],
    )


def _command(plan: Plan, all_tasks: list[str]) -> str:
    """Returns the command that repeats the run."""
    selection, options = plan["selection"], dict(plan["options"])
    if list(options.get("tasks") or ()) == all_tasks:
        options.pop("tasks")
    parts = [f"make run PIPELINE={selection['pipeline']}", f"PROFILE={selection['profile']}"]
    for name in ("dataset", "raw", "tasks", "epsilons", "seeds"):
        value = options.get(name)
        if value is not None:
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            parts.append(f"{name.upper()}={shlex.quote(text)}")
    return " ".join(parts)
