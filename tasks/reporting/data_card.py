"""The data card: one HTML page that describes a prepared dataset.

All numbers come from the schema that preparation wrote; no row is read again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from dp_core.models.spec import ModelSpec
from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.data.prepared import Prepared
from tasks.reporting.document import Cell, Figure, Table
from tasks.reporting.label_rates import LabelRates, label_rates
from tasks.reporting.page import render
from tasks.reporting.plots import Bar, Mark, bar_chart, line_chart
from tasks.reporting.series import Point, Series
from tasks.reporting.terms import terms_in
from tasks.runtime.home import read_json, write_text
from tasks.training.model_size import model_size

# What the kinds of labels are made of (`tasks.config.dataset`).
_KINDS = {
    "binary": "“binary”: a column of 0 and 1.",
    "any": "“any”: 1 if there was at least one event, and 0 otherwise.",
    "count": "“count”: the number of events.",
}


def write_data_card(prepared: Prepared, path: Path, *, models: Mapping[str, ModelSpec]) -> Path:
    """Writes the card of a prepared dataset and returns its path. Equal data gives an equal card.

    Args:
        prepared: the dataset.
        path: the HTML file to write.
        models: the models to count the parameters of, by the name of the profile.
    """
    write_text(path, data_card(prepared, models=models))
    return path


def data_card(prepared: Prepared, *, models: Mapping[str, ModelSpec]) -> str:
    """Returns the card as an HTML page."""
    statistics, rates = prepared.statistics, label_rates(prepared)
    return render(
        "data_card.html",
        dataset=prepared.dataset,
        facts=_facts(prepared),
        rows=_rows_table(prepared),
        rows_plot=_rows_plot(prepared),
        has_times=bool(statistics["by_day"]),
        window_days=statistics["window_days"],
        labels=_labels_table(prepared),
        rate_plots=[_rate_plot(prepared, rates, number) for number in range(len(statistics["tasks"]))],
        rates=_rates_table(rates, statistics["tasks"]),
        vocabulary_kind=prepared.vocabulary["kind"],
        vocabulary_settings=_vocabulary_settings(prepared.vocabulary),
        vocabulary=_vocabulary_table(prepared),
        kept_from=read_json(prepared.path / "schema.json").get("vocabulary_kept_from"),
        missing=_missing_table(prepared),
        missing_plot=_missing_plot(prepared),
        row_count=statistics["rows"],
        bad_row_count=sum(statistics["bad_rows"].values()),
        bad_rows=_bad_rows_table(statistics["bad_rows"]),
        parameters=_parameters_table(prepared, models),
        terms=terms_in(["ε", *map(_title, prepared.tasks)]),
    )


def embedding_parameters(prepared: Prepared) -> int:
    """Returns the number of parameters in the embedding tables, one per categorical column."""
    return sum(column.vocabulary_size * column.embedding_dimension for column in prepared.categorical_columns)


def percent(share: float) -> str:
    """Returns a share as a percentage that is never rounded to none or all.

    >>> percent(0.12345), percent(1e-6), percent(1 - 1e-6), percent(1.0)
    ('12.35 %', '< 0.01 %', '> 99.99 %', '100.00 %')
    """
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return "> 99.99 %" if 0.9999 < share < 1 else f"{100 * share:.2f} %"


def _title(task: str) -> str:
    """Returns a task's name for people."""
    return TASK_TITLES.get(cast(TaskName, task), task)


def _facts(prepared: Prepared) -> dict[str, str]:
    source = prepared.source
    more = f" and {source['files'] - 1:,} more files" if source["files"] > 1 else ""
    origin = "synthetic, from the project's own generator" if prepared.ceiling is not None else "raw logs"
    return {
        "fingerprint": prepared.fingerprint,
        "source": f"{source['path']}{more}, {source['bytes']:,} bytes ({origin})",
        "rows": f"{prepared.statistics['rows']:,}",
        "split by": prepared.split_by,
        "features": f"{len(prepared.integer_columns)} integer and {len(prepared.categorical_columns)} categorical",
        "tasks": ", ".join(f"{_title(task)} ({kind})" for task, kind in prepared.tasks.items()),
    }


def _rows_table(prepared: Prepared) -> Table:
    total, times = prepared.statistics["rows"], bool(prepared.statistics["by_day"])
    rows = []
    for name, split in prepared.splits.items():
        cells = [Cell(name), _count(split["rows"]), _share(split["rows"] / total)]
        ends = [Cell(time) for time in (split["first_time"], split["last_time"]) if time is not None]
        rows.append([*cells, *ends])
    columns = ["split", "rows", "share", *(["first time", "last time"] if times else [])]
    return Table("rows", "Rows of each split", columns, rows)


def _rows_plot(prepared: Prepared) -> Figure:
    bars = [Bar(name, split["rows"], f"{split['rows']:,}") for name, split in prepared.splits.items()]
    return Figure("rows", "Rows of each split", bar_chart(bars, title="Rows of each split"))


def _labels_table(prepared: Prepared) -> Table:
    named, means, shares = list[list[Cell]](), list[float](), list[float]()
    for task, kind in prepared.tasks.items():
        for name, split in prepared.splits.items():
            total, positive = prepared.statistics["by_split"][name][f"label_{task}"]
            named.append([Cell(_title(task)), Cell(kind), Cell(name)])
            means.append(total / split["rows"])
            shares.append(positive / split["rows"])
    rows = [[*cells, mean, _share(share)] for cells, mean, share in zip(named, _means(means), shares, strict=True)]
    columns = ["task", "kind", "split", "mean label", "positive rows"]
    caption = " ".join(text for kind, text in _KINDS.items() if kind in prepared.tasks.values())
    return Table("labels", "Labels of each split", columns, rows, caption)


def _rate_plot(prepared: Prepared, rates: LabelRates, number: int) -> Figure:
    """Plots the mean label of the task at ``number``; the line is broken where days are missing."""
    task = prepared.statistics["tasks"][number]
    is_count = prepared.tasks[task] == "count"
    points: list[Point] = []
    for piece in rates.pieces:
        rate = piece.label_sums[number] / piece.rows
        error = None if is_count else math.sqrt(rate * (1 - rate) / piece.rows)
        if points and rates.x_label == "day" and piece.x > points[-1].x + 1:
            points.append(Point(piece.x, None))
        points.append(Point(piece.x, rate, error, f"{piece.name}: {rate:.5g} of {piece.rows:,.0f} rows"))
    quantity = "mean count" if is_count else "label rate"
    title = f"{_title(task)}: {quantity} by {rates.x_label}"
    svg = line_chart(
        [Series(_title(task), points)],
        title=title,
        x_label=rates.x_label,
        y_label=quantity,
        x_ticks=rates.x_ticks,
        marks=[Mark(x, name) for name, x in rates.split_starts.items()],
        from_zero=True,
    )
    return Figure(f"rates_{task}", title, svg)


def _rates_table(rates: LabelRates, tasks: Iterable[str]) -> Table:
    columns_of_means = [
        _means([total / piece.rows for piece, total in zip(rates.pieces, sums, strict=True)])
        for sums in zip(*(piece.label_sums for piece in rates.pieces), strict=True)
    ]
    rows = [
        [Cell(piece.name, piece.x), Cell(f"{piece.rows:,.0f}", piece.rows), *means]
        for piece, *means in zip(rates.pieces, *columns_of_means, strict=True)
    ]
    columns = [rates.x_label, "rows", *(f"mean {_title(task)}" for task in tasks)]
    return Table("rates", "Data of the plots", columns, rows)


def _vocabulary_settings(vocabulary: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:,.6g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in vocabulary.items()
        if name not in ("kind", "noise")
    )


def _vocabulary_table(prepared: Prepared) -> Table:
    rows = []
    for number, column in enumerate(prepared.categorical_columns):
        size, dimension = column.vocabulary_size, column.embedding_dimension
        cells = [Cell(column.name), _count(size), _count(dimension), _count(size * dimension)]
        for name, split in prepared.splits.items():
            unknown = prepared.statistics["by_split"][name]["categoricals"][number]
            hashed = prepared.vocabulary["kind"] == "hash"
            cells.append(Cell("every token", 1.0) if hashed else _share(1 - unknown / split["rows"]))
        rows.append(cells)
    columns = ["column", "size", "dimension", "parameters"]
    return Table("vocabulary", "Vocabulary", [*columns, *(f"{name} coverage" for name in prepared.splits)], rows)


def _missing_plot(prepared: Prepared) -> Figure:
    total, title = prepared.statistics["rows"], "Share of rows in which a column has no value"
    shares = {column: count / total for column, count in prepared.statistics["missing"].items()}
    bars = [Bar(column, share, percent(share)) for column, share in shares.items()]
    return Figure("missing", title, bar_chart(bars, title=title, maximum=1.0))


def _missing_table(prepared: Prepared) -> Table:
    total = prepared.statistics["rows"]
    rows = [
        [Cell(column), _count(count), _share(count / total)] for column, count in prepared.statistics["missing"].items()
    ]
    return Table("missing", "Data of the plot", ["column", "rows", "share"], rows)


def _bad_rows_table(bad_rows: Mapping[str, int]) -> Table:
    rows = [[Cell(reason), _count(count)] for reason, count in sorted(bad_rows.items(), key=lambda item: -item[1])]
    return Table("bad_rows", "Quarantined rows", ["reason", "rows"], rows)


def _parameters_table(prepared: Prepared, models: Mapping[str, ModelSpec]) -> Table:
    embeddings = embedding_parameters(prepared)
    rows = []
    for profile, model in models.items():
        total, widths = model_size(model, prepared), model.layers
        layers = Cell(", ".join(f"{width:,}" for width in widths))
        rows.append([Cell(profile), layers, _count(embeddings), _count(total - embeddings), _count(total)])
    columns = ["profile", "hidden layers", "embeddings", "dense layers", "all"]
    return Table("parameters", "Parameters", columns, rows)


def _means(values: Sequence[float]) -> list[Cell]:
    """Returns the means of a column with equally many decimals: the smallest one gets five digits."""
    smallest = min((value for value in values if value > 0), default=1.0)
    decimals = min(max(4 - math.floor(math.log10(smallest)), 0), 8)
    return [Cell(f"{value:.{decimals}f}", value) for value in values]


def _count(value: int) -> Cell:
    return Cell(f"{value:,}", value)


def _share(value: float) -> Cell:
    return Cell(percent(value), value)
