"""The data card: what a prepared dataset is, on one HTML page that needs nothing from elsewhere.

All numbers come from the schema, where preparation left them; no row is read again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tasks.encoded import Prepared
from tasks.home import read_json, write_text
from tasks.svg_plots import Bar, Mark, Point, Series, bar_chart, escaped, line_chart

_MOST_POINTS = 400
_X_TICKS = 4

_STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; background: #fff; color: #222;
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.2; break-after: avoid } h2 { margin-top: 2rem; border-bottom: 1px solid #bbb }
h3, figcaption { font-size: 1rem; font-weight: 600; margin: 0 0 .4rem }
.scroll { overflow-x: auto } table { border-collapse: collapse; overflow-wrap: normal; margin: .5rem 0 }
th, td { padding: .2rem .8rem .2rem 0; text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
th { border-bottom: 1px solid #888 } td { border-bottom: 1px solid #ddd }
th:first-child, td:first-child { text-align: left }
.plots { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)) }
figure { margin: 1rem 0; max-width: 40rem; break-inside: avoid } svg { display: block; height: auto }
.note { border-left: 4px solid #D55E00; padding: .1rem 0 .1rem .8rem; max-width: 50rem }
"""


def write_data_card(prepared: Prepared, path: Path, *, hidden_layers: Mapping[str, Sequence[int]]) -> Path:
    """Writes the card of a prepared dataset; equal data has an equal card. Returns the path.

    ``hidden_layers`` are those of each profile, for the number of parameters that a model of the data has there.
    """
    write_text(path, data_card(prepared, hidden_layers=hidden_layers))
    return path


def data_card(prepared: Prepared, *, hidden_layers: Mapping[str, Sequence[int]]) -> str:
    """The card as a page of HTML."""
    sections = [
        _headline(prepared),
        _section("Rows", _rows(prepared)),
        _section("Labels", _labels(prepared)),
        _section("Vocabulary", _vocabulary(prepared)),
        _section("Missing values", _missing(prepared)),
        _section("Rows put aside", _bad_rows(prepared)),
        _section("Parameters", _parameters(prepared, hidden_layers)),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Data card: {escaped(prepared.dataset)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def embedding_parameters(prepared: Prepared) -> int:
    """The numbers in all embedding tables, one table a categorical column."""
    return sum(column.vocabulary_size * column.embedding_dimension for column in prepared.categorical_columns)


def mlp_parameters(prepared: Prepared, hidden_layers: Sequence[int]) -> int:
    """All parameters of the paper's network (``dp_core.models.AdModel``) on this data.

    Every integer column comes with an indicator of missing values; every dense layer has a bias.
    """
    inputs = 2 * len(prepared.integer_columns) + sum(c.embedding_dimension for c in prepared.categorical_columns)
    widths = [inputs, *hidden_layers, 1]
    dense = sum((before + 1) * after for before, after in itertools.pairwise(widths))
    return embedding_parameters(prepared) + dense


def percent(share: float) -> str:
    """A share for a person, never rounded to none or all.

    >>> percent(0.12345), percent(1e-6), percent(1 - 1e-6), percent(1.0)
    ('12.35 %', '< 0.01 %', '> 99.99 %', '100.00 %')
    """
    if 0 < share < 0.0001:
        return "< 0.01 %"
    return "> 99.99 %" if 0.9999 < share < 1 else f"{100 * share:.2f} %"


def _headline(prepared: Prepared) -> str:
    source = prepared.source
    more = f" and {source['files'] - 1:,} more files" if source["files"] > 1 else ""
    made = "made by the project's generator of synthetic logs" if prepared.ceiling is not None else "raw logs"
    facts = [
        ("fingerprint", prepared.fingerprint),
        ("source", f"{source['path']}{more}, {source['bytes']:,} bytes ({made})"),
        ("rows", f"{prepared.statistics['rows']:,}"),
        ("split by", prepared.split_by),
        ("features", f"{len(prepared.integer_columns)} integer and {len(prepared.categorical_columns)} categorical"),
        ("tasks", ", ".join(f"{task} ({kind})" for task, kind in prepared.tasks.items())),
    ]
    privacy = (
        "Not for publication as it is. Counts, rates and coverages on this page are exact numbers of the data, "
        "computed on all rows of all splits. They are outside every ε of this project."
    )
    return (
        f"<h1>Data card: {escaped(prepared.dataset)}</h1>\n{_note(privacy)}\n"
        f"<p>{'<br>'.join(f'<b>{name}</b> {escaped(value)}' for name, value in facts)}</p>"
    )


def _rows(prepared: Prepared) -> str:
    total = prepared.statistics["rows"]
    table = [
        (name, f"{split['rows']:,}", percent(split["rows"] / total), split["first_time"], split["last_time"])
        for name, split in prepared.splits.items()
    ]
    bars = [Bar(name, split["rows"], f"{split['rows']:,}") for name, split in prepared.splits.items()]
    times = prepared.split_by == "timestamp"
    columns = ["split", "rows", "share", *(["first time", "last time"] if times else [])]
    return (
        _table("rows", columns, [row[: len(columns)] for row in table])
        + ("" if times else "<p>The log has no times: its rows are in the order of the file.</p>")
        + _figure("Rows of each split", bar_chart(bars, title="Rows of each split"))
    )


class _Piece(NamedTuple):
    """Some rows that follow each other, by day or by their position: where they are, and each task's sum of labels."""

    x: float
    name: str
    rows: float
    sums: list[float]


class _Pieces(NamedTuple):
    pieces: list[_Piece]
    x_label: str
    x_ticks: dict[float, str]
    # The splits after the first, where they begin.
    marks: list[Mark]


def _labels(prepared: Prepared) -> str:
    statistics = prepared.statistics
    rows = []
    for task, kind in prepared.tasks.items():
        for name, split in prepared.splits.items():
            total, positive = statistics["by_split"][name][f"label_{task}"]
            rows.append((task, kind, name, f"{total / split['rows']:.5g}", percent(positive / split["rows"])))
    found = _by_day(prepared) if statistics["by_day"] else _by_position(prepared)
    plots = [
        _figure(f"{task}: {what} by {found.x_label}", _rate_chart(found, number, task, prepared.tasks[task]))
        for number, task in enumerate(statistics["tasks"])
        for what in [_what(prepared.tasks[task])]
    ]
    table = [
        (piece.name, f"{piece.rows:,.0f}", *(f"{total / piece.rows:.5g}" for total in piece.sums))
        for piece in found.pieces
    ]
    return (
        _window(statistics["window_days"])
        + _table("labels", ["task", "kind", "split", "mean label", "share of positives"], rows)
        + f'<div class="plots">{"".join(plots)}</div>'
        + "<p>Dashed lines are where validation and test begin. Bars are a standard error of a share of rows drawn "
        "independently.</p><details><summary>Numbers of the plots</summary>"
        + _table("rates", [found.x_label, "rows", *(f"mean {task}" for task in statistics["tasks"])], table)
        + "</details>"
    )


def _window(days: float | None) -> str:
    """What to know of labels that count the events of some days after a row."""
    if not days:
        return ""
    return _note(
        f"Labels count events of up to {days:g} days after a row. Those of the last {days:g} days are not complete, "
        "because their window ends after the log: rates fall there, also in the test split."
    )


def _what(kind: str) -> str:
    return "mean count" if kind == "count" else "label rate"


def _rate_chart(found: _Pieces, number: int, task: str, kind: str) -> str:
    points: list[Point] = []
    for piece in found.pieces:
        rate = piece.sums[number] / piece.rows
        error = None if kind == "count" else float(np.sqrt(rate * (1 - rate) / piece.rows))
        if points and found.x_label == "day" and piece.x > points[-1].x + 1:
            points.append(Point(piece.x, None))
        points.append(Point(piece.x, rate, error, f"{piece.name}: {rate:.5g} of {piece.rows:,.0f} rows"))
    return line_chart(
        [Series(task, points)],
        title=f"{task}: {_what(kind)} by {found.x_label}",
        x_label=found.x_label,
        y_label=_what(kind),
        x_ticks=found.x_ticks,
        marks=found.marks,
    )


def _by_day(prepared: Prepared) -> _Pieces:
    """The days of the log, several of them together if there are very many."""
    by_day = list(prepared.statistics["by_day"].items())
    together = -(-len(by_day) // _MOST_POINTS)
    pieces = []
    for start in range(0, len(by_day), together):
        days = by_day[start : start + together]
        rows, *sums = np.sum([row for _, row in days], axis=0).tolist()
        name = days[0][0] if together == 1 else f"{days[0][0]} to {days[-1][0]}"
        pieces.append(_Piece(float(np.datetime64(days[0][0], "D").astype(np.int64)), name, rows, sums))
    # A split begins in the piece that has its first row.
    ends = np.cumsum([piece.rows for piece in pieces])
    marks = [Mark(pieces[int(np.searchsorted(ends, at, "right"))].x, name) for name, at in _beginnings(prepared)]
    first, last = int(pieces[0].x), int(pieces[-1].x)
    step = max(1, -(-(last - first) // _X_TICKS))
    x_ticks = {float(day): str(np.datetime64(day, "D")) for day in range(first, last + 1, step)}
    return _Pieces(pieces, "day" if together == 1 else f"{together} days", x_ticks, marks)


def _by_position(prepared: Prepared) -> _Pieces:
    """Pieces of a log without times, from its first rows to its last."""
    total, before, pieces = prepared.statistics["rows"], 0.0, []
    for rows, *sums in prepared.statistics["by_position"]:
        name = f"{100 * before / total:.0f} to {100 * (before + rows) / total:.0f} %"
        pieces.append(_Piece((before + rows / 2) / total, name, rows, sums))
        before += rows
    marks = [Mark(at / total, name) for name, at in _beginnings(prepared)]
    x_ticks = {tenth / 10: f"{10 * tenth} %" for tenth in (2, 4, 6, 8)}
    return _Pieces(pieces, "position in the log", x_ticks, marks)


def _beginnings(prepared: Prepared) -> list[tuple[str, int]]:
    """Every split but the first with the number of rows before it."""
    ends = itertools.accumulate(split["rows"] for split in prepared.splits.values())
    return list(zip(list(prepared.splits)[1:], ends, strict=False))


def _vocabulary(prepared: Prepared) -> str:
    kind = prepared.vocabulary["kind"]
    if not prepared.categorical_columns:
        return "<p>There is no categorical column.</p>"
    meaning = {
        "threshold": "tokens that were seen often enough in the training part, by exact counts: outside every ε",
        "private": "tokens whose noisy count in the training part is high enough: part of the ε of every model",
        "hash": "a bucket for every token, without a look at the data",
    }
    numbers = ", ".join(
        f"{name} {value:,.6g}" if isinstance(value, int | float) else f"{name} {value}"
        for name, value in prepared.vocabulary.items()
        if name != "kind"
    )
    text = f"Kind: {kind}, {meaning[kind]} ({numbers})."
    splits = list(prepared.splits)
    if kind == "hash":
        text += " There is no id 0, so every token is covered; several may share a bucket."
    else:
        text += " Coverage is the share of rows whose token has an id of its own, and not id 0."
    rows = []
    for number, column in enumerate(prepared.categorical_columns):
        zeros = [prepared.statistics["by_split"][name]["categoricals"][number] for name in splits]
        covered = [
            "every token" if kind == "hash" else percent(1 - zero / prepared.splits[name]["rows"])
            for name, zero in zip(splits, zeros, strict=True)
        ]
        size, dimension = column.vocabulary_size, column.embedding_dimension
        rows.append((column.name, f"{size:,}", f"{dimension}", f"{size * dimension:,}", *covered))
    columns = ["column", "size with id 0", "dimension", "parameters", *(f"coverage of {name}" for name in splits)]
    return f"<p>{escaped(text)}</p>{_kept(prepared)}{_table('vocabulary', columns, rows)}"


def _kept(prepared: Prepared) -> str:
    origin: dict[str, Any] | None = read_json(prepared.path / "schema.json").get("vocabulary_kept_from")
    if origin is None:
        return ""
    train = origin["train"]
    times = f", {train['first_time']} to {train['last_time']}" if train["first_time"] else ""
    return _note(
        f"Kept from an earlier preparation, whose fingerprint is {origin['fingerprint']}: made from "
        f"{train['rows']:,} training rows of {origin['source']['path']}{times}. Later tokens have id 0."
    )


def _missing(prepared: Prepared) -> str:
    total, missing = prepared.statistics["rows"], prepared.statistics["missing"]
    bars = [Bar(column, count / total, percent(count / total)) for column, count in missing.items()]
    title = "Share of rows in which a column has no value"
    return (
        _figure(title, bar_chart(bars, title=title, maximum=1.0))
        + "<details><summary>Numbers of the plot</summary>"
        + _table("missing", ["column", "rows", "share"], [(b.label, f"{missing[b.label]:,}", b.text) for b in bars])
        + "</details>"
    )


def _bad_rows(prepared: Prepared) -> str:
    bad = prepared.statistics["bad_rows"]
    if not bad:
        return "<p>None: every row could be read.</p>"
    read = prepared.statistics["rows"]
    text = f"{sum(bad.values()):,} rows could not be read and are in quarantine.csv; {read:,} are in the data."
    rows = [(reason, f"{count:,}") for reason, count in sorted(bad.items(), key=lambda item: -item[1])]
    return f"<p>{text}</p>{_table('bad_rows', ['reason', 'rows'], rows)}"


def _parameters(prepared: Prepared, hidden_layers: Mapping[str, Sequence[int]]) -> str:
    embeddings = embedding_parameters(prepared)
    rows = []
    for profile, widths in hidden_layers.items():
        total = mlp_parameters(prepared, widths)
        layers = ", ".join(f"{width:,}" for width in widths)
        rows.append((profile, layers, f"{embeddings:,}", f"{total - embeddings:,}", f"{total:,}"))
    columns = ["profile", "hidden layers", "embeddings", "dense layers", "all"]
    text = (
        "Of the multilayer perceptron with the hidden layers of each profile, for one task, on the vocabulary above. "
        "Tokens of canaries come on top."
    )
    return f"<p>{text}</p>{_table('parameters', columns, rows)}"


def _section(title: str, content: str) -> str:
    return f"<h2>{title}</h2>\n{content}"


def _note(text: str) -> str:
    return f'<p class="note">{escaped(text)}</p>'


def _figure(caption: str, plot: str) -> str:
    return f"<figure><figcaption>{escaped(caption)}</figcaption>{plot}</figure>"


def _table(name: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escaped(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(f'<td>{escaped(cell)}</td>' for cell in row)}</tr>\n" for row in rows)
    return f'<div class="scroll"><table id="{name}"><tr>{head}</tr>\n{body}</table></div>'
