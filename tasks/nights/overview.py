"""The page of all nights of an entry: tonight, the champion, the budget left, and how each night ended."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.config.nightly import Nightly
from tasks.nights.champions import Reign
from tasks.nights.record import ENDINGS, Night, dag_id, days_before
from tasks.reporting.document import Cell, Document, Figure, Table
from tasks.reporting.files import PAGE
from tasks.reporting.plots import line_chart
from tasks.reporting.series import Point, Series

OVERVIEW = "nights"
_SHOWN_DAYS = 8


class Budget(NamedTuple):
    """What the ledger says of an entry's dataset.

    Attributes:
        most_spent: ε of the day that has spent the most; 0 if nothing was spent.
        on_day: That day; empty if nothing was spent.
        forecast: What is going to happen at this rate, in one sentence.
    """

    most_spent: float
    on_day: str
    forecast: str


def overview(
    name: str,
    nightly: Nightly,
    nights: Sequence[Night],
    reigns: Sequence[Reign],
    budget: Budget,
    now: datetime.datetime,
) -> Document:
    """Returns the document of an entry's nights; ``nights`` are in the order of their days."""
    newest = list(reversed(nights))
    return Document(
        pipeline=dag_id(name),
        profile=nightly.profile,
        run=OVERVIEW,
        title=f"Nights of {name}",
        shows="",
        headline=_headline(nightly, nights, reigns, budget),
        finished=now.strftime("%Y-%m-%d %H:%M UTC"),
        command=f"python -m tasks nights {name}",
        figures=_losses(nightly.task, nights),
        tables=[_status(nightly, nights, reigns, budget, now), _nights_table(nightly.task, newest)],
        findings=[],
        notes=_notes(nightly),
        details=[_reigns_table(reigns)] if reigns else [],
        cards={},
        statements={},
        provenance={},
        mlflow_link="",
    )


def metric_name(task: TaskName) -> str:
    """Returns the name of the metric that nights are judged by, for people."""
    return "Poisson log loss" if task == "pconvs" else "AUC"


def as_metric(task: TaskName, loss: float | None) -> float | None:
    """Returns a loss as the metric that people know: AUC for 1 − AUC."""
    return loss if loss is None or task == "pconvs" else 1 - loss


def number(value: float | None, digits: int = 4) -> Cell:
    """Returns a number as a cell, a dash if there is none."""
    return Cell("–") if value is None else Cell(f"{value:,.{digits}f}", value)


def _headline(nightly: Nightly, nights: Sequence[Night], reigns: Sequence[Reign], budget: Budget) -> str:
    left = nightly.total.epsilon - budget.most_spent
    money = f"Budget left: {left:.2f} of ε = {nightly.total.epsilon:g}."
    if not nights:
        return f"No night has run yet. {money}"
    champion = (
        f"Champion: night {reigns[-1]['day']} (version {reigns[-1]['version']})." if reigns else "No champion yet."
    )
    last = nights[-1]["sentence"]
    return f"{champion} {last[0].upper()}{last[1:]}. {money}"


def _status(
    nightly: Nightly, nights: Sequence[Night], reigns: Sequence[Reign], budget: Budget, now: datetime.datetime
) -> Table:
    left = nightly.total.epsilon - budget.most_spent
    on = f", on the data of {budget.on_day}" if budget.on_day else ""
    champion = "none yet"
    if reigns:
        champion = f"night {reigns[-1]['day']}, version {reigns[-1]['version']}, since {reigns[-1]['since']}"
    last = nights[-1]["sentence"] if nights else "none yet"
    rows = [
        ("tonight", _tonight(nightly, now)),
        ("last night", last),
        ("champion", champion),
        ("budget left", f"{left:.3f} of ε = {nightly.total.epsilon:g} at δ = {nightly.total.delta:g}{on}"),
        ("forecast", budget.forecast),
    ]
    cells = [[Cell(name, strong=True), Cell(text)] for name, text in rows]
    cells.append([Cell("ledger", strong=True), Cell("the budget of every day, by night", link=f"../ledger/{PAGE}")])
    return Table("status", "Now", ["", "now"], cells)


def _tonight(nightly: Nightly, now: datetime.datetime) -> str:
    from croniter import croniter

    local = now.astimezone(ZoneInfo(nightly.timezone))
    moment = croniter(nightly.schedule, local).get_next(datetime.datetime)
    day = str(moment.date() - datetime.timedelta(days=1))
    window = days_before(day, nightly.window_days)
    return (
        f"{moment:%Y-%m-%d %H:%M} ({nightly.timezone}), if the DAG is not paused: night {day}, trained on "
        f"{window[0]} to {window[-1]} with ε = {nightly.epsilon:g}"
    )


def _nights_table(task: TaskName, nights: Sequence[Night]) -> Table:
    metric = metric_name(task)
    columns = [
        "night",
        "ending",
        f"{metric}, challenger",
        f"{metric}, champion",
        "paired test",
        "calibration",
        "ε of the night",
        "version",
        "in words",
    ]
    rows, records, news = [], [], _news(nights)
    for night in nights:
        found: Mapping[str, Any] = night.get("comparison") or {}
        challenger, champion = (as_metric(task, found.get(f"{who}_loss")) for who in ("challenger", "champion"))
        rows.append(
            [
                Cell(night["day"], link=f"../{night['day']}/{PAGE}"),
                Cell(ENDINGS[night["status"]], strong=night["status"] == "promoted"),
                number(challenger),
                number(champion),
                Cell(found.get("verdict") or "–"),
                number(found.get("challenger_calibration"), 2),
                number(night.get("epsilon"), 3),
                Cell(str(night.get("version", "–")), night.get("version")),
                Cell("; ".join([night["sentence"], *news[night["day"]]])),
            ]
        )
        records.append(
            {
                "night": night["day"],
                "status": night["status"],
                "challenger": challenger,
                "champion": champion,
                "verdict": found.get("verdict"),
                "calibration": found.get("challenger_calibration"),
                "epsilon": night.get("epsilon"),
                "version": night.get("version"),
                "sentence": night["sentence"],
            }
        )
    caption = "“ε of the night” is that of the night alone at its own δ; the budget counts all nights at the total's δ."
    return Table("nights", "All nights, newest first", columns, rows, caption, records=records)


def _news(nights: Sequence[Night]) -> dict[str, list[str]]:
    """Returns what each night said of its data that no night before it had said: a late day stays late for a window."""
    told: set[str] = set()
    found = {}
    for night in sorted(nights, key=lambda night: night["day"]):
        said = night.get("said", [])
        found[night["day"]] = [one for one in said if one not in told]
        told.update(said)
    return found


def _reigns_table(reigns: Sequence[Reign]) -> Table:
    rows = [
        [
            Cell(one["since"]),
            Cell(one["day"]),
            Cell(str(one["version"]), one["version"]),
            Cell(one["by"]),
            Cell(one["reason"]),
        ]
        for one in reversed(reigns)
    ]
    return Table("champions", "Champions, newest first", ["since", "night", "version", "by", "why"], rows)


def _losses(task: TaskName, nights: Sequence[Night]) -> list[Figure]:
    judged = [night for night in nights if night.get("comparison")]
    if not judged:
        return []
    first = datetime.date.fromisoformat(judged[0]["day"])
    places = {night["day"]: (datetime.date.fromisoformat(night["day"]) - first).days for night in judged}
    series = []
    for who in ("challenger", "champion"):
        points = []
        for night in judged:
            value = as_metric(task, (night["comparison"] or {}).get(f"{who}_loss"))
            text = "" if value is None else f"{who}, night {night['day']}: {value:.4f}"
            points.append(Point(float(places[night["day"]]), value, note=text))
        if any(point.y is not None for point in points):
            series.append(Series("challenger (tonight's model)" if who == "challenger" else "champion before", points))
    every = -(-len(judged) // _SHOWN_DAYS)
    ticks = {float(places[night["day"]]): night["day"][5:] for night in judged[::every]}
    metric = metric_name(task)
    svg = line_chart(series, title=f"{metric} by night", x_label="newest day", y_label=metric, x_ticks=ticks)
    caption = f"{metric} of {TASK_TITLES[task]} on the newest day, which neither model was trained on."
    return [Figure("by_night", f"{metric} by night", svg, caption)]


def _notes(nightly: Nightly) -> list[str]:
    measured = (
        "The comparison on the newest day is a private release, charged to the ledger. Trainings in MLflow have exact "
        "losses beside it, which are for you, not for publication."
        if nightly.private_evaluation
        else "Metrics on the newest day are exact. No ε covers them, nor the decision which model becomes champion. "
        "They are for you, not for publication; `private_evaluation: true` makes the comparison private."
    )
    if any(isinstance(value, tuple) and len(value) > 1 for _, value in nightly.dp_sgd):
        measured += (
            " The choice among the settings of the grid looks at exact losses on the first tenth of the newest day, "
            "which no ε covers. All trainings are charged to the days that they were trained on."
        )
    return [
        f"An example is in up to {nightly.window_days} windows. The ledger adds up what all releases tell about one "
        "day's data, and refuses a night that would exceed the total.",
        measured,
        "Data checks look at exact numbers. That a night was stopped by one is not covered by ε.",
    ]
