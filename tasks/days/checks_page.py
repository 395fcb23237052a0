"""The page of a day's data checks: every measure against its limit, and what the columns with a breach look like."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tasks.config.dataset import TASK_TITLES
from tasks.days.check_wording import TITLES, percent, wording
from tasks.days.data_checks import TOP_TOKENS, CheckedDay, Distribution, Measure, sentence
from tasks.reporting.document import Cell, Figure, Table
from tasks.reporting.page import render
from tasks.reporting.plots import PairedBar, paired_bar_chart
from tasks.reporting.terms import terms_in
from tasks.runtime.home import home, write_text

_SHARES = ("bad_rows", "other_days", "unseen_tokens")
# The values of a column that a plot shows, those with the largest shares or differences.
_MOST_BARS = 16


def page_path(entry: str, day: str) -> Path:
    """Returns where the page of a day is; the reports server serves it."""
    return home() / "reports" / f"nightly_retrain_{entry}" / day / "checks.html"


def write_checks_page(checked: CheckedDay) -> Path:
    """Writes the page of a day's checks and returns its path."""
    path = page_path(checked.entry, checked.day)
    write_text(path, checks_page(checked))
    return path


def checks_page(checked: CheckedDay) -> str:
    """Returns the page as HTML."""
    breaches = checked.breaches
    whole = [measure for measure in checked.measures if measure.check not in ("unseen_tokens", "drift")]
    said = sentence(checked).removeprefix("stopped: ")
    return render(
        "data_checks.html",
        entry=checked.entry,
        day=checked.day,
        passed=checked.passed,
        sentence=said[0].upper() + said[1:],
        facts=_facts(checked),
        terms=terms_in(["ε"]),
        breached=_breaches(checked, breaches) if breaches else None,
        distributions=[_plot(checked.day, name, both) for name, both in checked.distributions.items()],
        unmeasured=checked.unmeasured,
        whole=_table("day", "Measures of the day", whole, "about"),
        columns=_columns(checked),
        left_out=_left_out(checked),
        top_tokens=TOP_TOKENS,
    )


def _facts(checked: CheckedDay) -> dict[str, str]:
    days = ", ".join(checked.window) or "none"
    return {
        "nightly entry": checked.entry,
        "dataset": checked.dataset,
        "task": {str(task): title for task, title in TASK_TITLES.items()}[checked.task],
        "rows": f"{checked.rows:,}",
        "compared with": days,
    }


def _breaches(checked: CheckedDay, breaches: Sequence[Measure]) -> Table:
    rows = [[Cell(TITLES[m.check]), Cell(wording(m, checked.day, checked.task))] for m in breaches]
    return Table("breaches", "Breaches", ["check", "what it found"], rows)


def _table(name: str, title: str, measures: Sequence[Measure], about: str) -> Table:
    rows = [
        [
            Cell(TITLES[measure.check]),
            Cell(measure.of or "the new day"),
            _number(measure, measure.day),
            _number(measure, measure.window),
            _value(measure, measure.value),
            _value(measure, measure.limit),
            _verdict(measure),
        ]
        for measure in measures
    ]
    return Table(name, title, ["check", about, "day", "window", "measure", "limit", "result"], rows)


def _columns(checked: CheckedDay) -> Table:
    by_column: dict[str, dict[str, Measure]] = {}
    for measure in checked.measures:
        if measure.check in ("unseen_tokens", "drift"):
            by_column.setdefault(measure.of, {})[measure.check] = measure
    rows = []
    for name, measures in by_column.items():
        drift, unseen = measures["drift"], measures.get("unseen_tokens")
        breach = any(measure.breach for measure in measures.values())
        rows.append(
            [
                Cell(name, strong=breach),
                _value(drift, drift.value),
                _value(drift, drift.limit),
                _value(unseen, unseen.value) if unseen else Cell("–"),
                _value(unseen, unseen.limit) if unseen else Cell("–"),
                Cell(percent(drift.day), drift.day),
                Cell(percent(drift.window or 0), drift.window or 0),
                _verdict(drift if drift.breach or unseen is None else unseen),
            ]
        )
    names = [
        "column",
        "drift (PSI)",
        "limit",
        "unseen tokens",
        "limit of these",
        "missing",
        "missing in window",
        "result",
    ]
    return Table("columns", "Measures of columns", names, rows)


def _left_out(checked: CheckedDay) -> Table:
    rows = [[Cell(day), Cell(reason)] for day, reason in checked.left_out.items()]
    return Table("left_out", "Days that are not in the window", ["day", "why"], rows)


def _number(measure: Measure, value: float | None) -> Cell:
    """Returns what was measured of one side."""
    if value is None:
        return Cell("–")
    text = (
        percent(value) if measure.check in _SHARES else f"{value:,.0f}" if measure.check == "rows" else f"{value:.4g}"
    )
    return Cell(text, value)


def _value(measure: Measure, value: float | None) -> Cell:
    """Returns what is compared with the limit, or the limit."""
    if value is None:
        return Cell("∞", float("inf"))
    if measure.check in _SHARES:
        return Cell(percent(value), value)
    return Cell(f"{value:.3g}" + ("" if measure.check == "drift" else " times"), value)


def _verdict(measure: Measure) -> Cell:
    return Cell("✗ breach", 1.0, strong=True) if measure.breach else Cell("✓ within limit", 0.0)


def _plot(day: str, name: str, both: Distribution) -> Figure:
    places = list(range(len(both.names)))
    if len(places) > _MOST_BARS:
        places = sorted(sorted(places, key=lambda at: -max(both.window[at], both.day[at]))[:_MOST_BARS])
    bars = [
        PairedBar(both.names[at], (both.window[at], both.day[at]), (percent(both.window[at]), percent(both.day[at])))
        for at in places
    ]
    rest = len(both.names) - len(places)
    caption = f"{rest} more values, with smaller shares, are not shown." if rest else ""
    return Figure(f"column_{name}", name, paired_bar_chart(bars, ("window", day), title=name), caption)
