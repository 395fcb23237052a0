"""The page that explains one night: data, checks, settings, audit, comparison and ledger entry."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tasks.config.dataset import TaskName
from tasks.config.nightly import Nightly
from tasks.nights.overview import as_metric, metric_name, number
from tasks.nights.record import ENDINGS, Night, dag_id
from tasks.reporting.document import Cell, Document, Table
from tasks.reporting.targets import run_target
from tasks.reporting.wording import MECHANISM_TITLES, setting_title, value_text
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial

# Facts of a trial that the other tables show, or that are hashes of the log.
_NOT_SETTINGS = {"data_fingerprint", "task", "dataset", "seed", "canaries", "start_from"}


def explanation(nightly: Nightly, night: Night) -> Document:
    """Returns the document of a night that has ended."""
    finished = _chosen(night)
    parent = night.get("parent")
    tables = [_facts(nightly, night), _data(night)]
    tables += [_comparison(nightly.task, night)] if night.get("comparison") else []
    details = [_settings(finished), _audit(finished)] if finished else []
    return Document(
        pipeline=dag_id(night["name"]),
        profile=nightly.profile,
        run=night["day"],
        title=f"Night {night['day']} of {night['name']}",
        shows="",
        headline=f"{night['sentence'][0].upper()}{night['sentence'][1:]}.",
        # Not the time at which the page is written: a rerun of a finished night writes it again.
        finished=f"{night['finished'][:16]} UTC",
        command=f"python -m tasks champion {night['name']} --explain {night['day']}",
        figures=[],
        tables=tables,
        findings=[],
        notes=[
            *(f"{sentence}." for sentence in night.get("said", [])),
            "The numbers of this page are exact unless it says otherwise, and no ε covers them: they are for you, not "
            "for publication.",
        ],
        details=details,
        cards={},
        statements={"trial-1": finished.statement.read_text(encoding="utf-8")} if finished else {},
        provenance={},
        mlflow_link=run_target(parent["experiment"], parent["mlflow_run"]) if parent else "",
    )


def _chosen(night: Night) -> FinishedTrial | None:
    """Returns the trial that became the night's model; None if there is none, or if its folder was deleted."""
    if "chosen" not in night:
        return None
    try:
        return FinishedTrial.open(night["chosen"])
    except UserError:
        return None


def _facts(nightly: Nightly, night: Night) -> Table:
    champion = night.get("champion")
    rows = {
        "ending": ENDINGS[night["status"]],
        "why": night["sentence"],
        "started by": night.get("reason", "–"),
        "ended": night["finished"],
        # A night that was stopped before its comparison looked at no champion.
        "champion before": f"night {champion['day']}, version {champion['version']}"
        if champion is not None
        else "none"
        if "champion" in night
        else "–",
        "registered as": f"version {night['version']} of {night['name']}" if "version" in night else "–",
        "trainings": str(len(night["trained"])) if "trained" in night else "–",
        "ε of the night": f"{night['epsilon']:.4f} at δ = {night['delta']:.3g}, for one example of the window"
        if "epsilon" in night
        else "–",
        "ledger": night.get("ledger_key", "no entry"),
        "budget": f"at most ε = {nightly.total.epsilon:g} at δ = {nightly.total.delta:g} for one day's data, over all "
        "releases",
    }
    return _pairs("night", "How it ended", rows.items())


def _data(night: Night) -> Table:
    rows_by_day = night.get("rows", {})
    rows = [
        [
            Cell(day),
            _use(night, day),
            number(rows_by_day.get(day), 0) if day in rows_by_day else Cell("no data"),
        ]
        for day in [*sorted([*night.get("window", []), *night.get("missing_days", [])]), night["day"]]
    ]
    return Table("data", "Data", ["day", "used for", "rows"], rows)


def _use(night: Night, day: str) -> Cell:
    """Returns what a day's data was used for. The checks of the newest day have a page beside this one."""
    if day == night["day"]:
        used = [name for name, done in (("checked", "checked"), ("compared on", "comparison")) if night.get(done)]
        return Cell(" and ".join(used) or "not used", link="checks.html" if night.get("checked") else "")
    if day in night.get("missing_days", []):
        return Cell("left out")
    return Cell("trained on" if night.get("trained") else "of the window")


def _comparison(task: TaskName, night: Night) -> Table:
    found: dict[str, Any] = night["comparison"] or {}
    columns = ["model", metric_name(task), "calibration"]
    champion = night.get("champion")
    names = {
        "challenger": f"challenger, version {night['version']}",
        "champion": "champion" if champion is None else f"champion, version {champion['version']}",
    }
    rows = [
        [
            Cell(names[who], strong=(who == "challenger") == (night["status"] == "promoted")),
            number(as_metric(task, found[f"{who}_loss"])),
            number(found[f"{who}_calibration"], 3),
        ]
        for who in names
        if found[f"{who}_loss"] is not None
    ]
    caption = f"On {found['rows']:,} rows of {night['day']}, which neither model was trained on."
    if found["difference"] is not None:
        caption += (
            f" Difference of the loss, challenger − champion: {found['difference']:+.5f}, with 95 % confidence from "
            f"{found['low']:+.5f} to {found['high']:+.5f} (paired test: {found['verdict']})."
        )
    caption += " Calibration is the sum of predictions over that of labels."
    if found["private"]:
        caption += " These numbers are a private release, charged to the ledger."
    return Table("comparison", "Challenger and champion", columns, rows, caption)


def _settings(finished: FinishedTrial) -> Table:
    settings = finished.trial.flat_settings()
    shown = {setting_title(name): _text(name, value) for name, value in settings.items() if name not in _NOT_SETTINGS}
    return _pairs("settings", "Settings of the training", shown.items())


def _text(name: str, value: Any) -> str:
    return MECHANISM_TITLES[value] if name == "mechanism" else value_text(name, value)


def _audit(finished: FinishedTrial) -> Table:
    audit = finished.audit
    epsilon, lower = audit["epsilon"], audit["epsilon_lower"]
    rows = {
        "verdict": audit["verdict"],
        "findings": "; ".join(audit["findings"]) or "none",
        "ε of this training": "–" if epsilon is None else f"{epsilon:.4f} at δ = {finished.trial.target_delta:.3g}",
        "lower bound": "–" if lower is None else f"{lower:.4f}",
        "steps": f"{finished.record['steps']:,}",
        "examples": f"{finished.record['examples']:,}",
    }
    return _pairs("audit", "Audit", rows.items())


def _pairs(name: str, title: str, rows: Iterable[tuple[str, str]]) -> Table:
    return Table(name, title, ["", "value"], [[Cell(one, strong=True), Cell(text)] for one, text in rows])
