"""A search in rounds on a report's page: what was tried, in which round, what survived, and what was chosen."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Figure, Table
from tasks.reporting.plots import line_chart
from tasks.reporting.results import CellKey
from tasks.reporting.series import Point, Series
from tasks.reporting.wording import phrase, setting_noun, setting_title, value_text
from tasks.rounds.cells import ranked
from tasks.rounds.searched import SearchedRounds, Tried
from tasks.runtime.progress import counted
from tasks.training.trial import Trial

_SEARCHES = {
    "extend": "Where the best value was the first or the last of its list, the next one by the same factor was trained",
    "halving": "The better third of each round was trained three times as long, with a schedule of its own",
}


def search_figures(searched: SearchedRounds) -> list[Figure]:
    """Returns for each task and each ordered setting that was searched the validation losses over its values."""
    figures = []
    for task in dict.fromkeys(key[0] for key in searched.cells):
        keys = [key for key in searched.cells if key[0] == task]
        for name in dict.fromkeys(name for key in keys for name in searched.settings(key)):
            if figure := _figure(searched, task, name, [key for key in keys if name in searched.settings(key)]):
                figures.append(figure)
    return figures


def _figure(searched: SearchedRounds, task: TaskName, name: str, keys: Sequence[CellKey]) -> Figure | None:
    series, chosen = list[Series](), list[Point]()
    for key in keys:
        label = _label(key)
        first = [one for one in searched.cells[key] if one.round == 1]
        later = [one for one in searched.cells[key] if one.round > 1]
        series.append(Series(label, _lowest(searched, name, first)))
        if later:
            series.append(
                Series(f"{label}, later rounds", _apart(_points(searched, name, later)), like=label, listed=False)
            )
        chosen += _points(searched, name, [one for one in searched.cells[key] if one.chosen])
    series.append(Series("chosen", _apart(chosen), highlight=True))
    if not any(point.y is not None for line in series for point in line.points):
        return None
    title = f"{TASK_TITLES[task]}: search over {setting_noun(name)}"
    svg = line_chart(
        series, title=title, x_label=_axis(searched, name), y_label="validation loss, first seed", log_x=True
    )
    caption = (
        f"{_SEARCHES[searched.grids.search]}. Lines: the lowest loss at each value in the first round. Hollow marks: "
        "trainings of later rounds. Large marks: what the search chose. Trainings that diverged are not drawn."
    )
    return Figure(f"search_{task}_{name}", title, svg, caption)


def search_tables(searched: SearchedRounds) -> list[Table]:
    """Returns the table of every round in every cell; none if the search has no rounds."""
    rows = []
    for key, tried in searched.cells.items():
        for number in dict.fromkeys(one.round for one in tried):
            found = [one for one in tried if one.round == number]
            best = ranked(one.outcome for one in found)[0]
            loss = best.validation_loss if best.test_loss is not None else None
            rows.append(
                [
                    Cell(TASK_TITLES[key[0]]),
                    Cell(key[1].label),
                    Cell(best.trial.epsilon_label, key[2]),
                    Cell(str(number), number),
                    Cell(str(len(found)), len(found)),
                    Cell("diverged") if loss is None else Cell(f"{loss:.4f}", loss),
                    Cell(_settings(searched, key, best.trial)),
                    Cell("✓ chosen", 0) if any(one.chosen for one in found) else Cell("no", 1),
                ]
            )
    if not rows:
        return []
    columns = ["task", "method", "ε budget", "round", "trainings", "lowest validation loss", "with", "chosen"]
    caption = (
        f"`search: {searched.grids.search}`, by the validation loss of the first seed. "
        f"{_SEARCHES[searched.grids.search]}. “chosen”: the settings that the other seeds were trained with."
    )
    return [Table("search", "The search, round by round", columns, rows, caption)]


def search_notes(searched: SearchedRounds) -> list[str]:
    """Returns what a reader must know of a search in rounds."""
    if not searched.cells:
        return []
    notes = [
        "The settings were chosen by the validation loss of the first seed, for the baseline as for private models. "
        "The other seeds were trained with the chosen settings only."
    ]
    edges = [
        f"{TASK_TITLES[key[0]]}, {_label(key)}: {', '.join(setting_noun(name) for name in names)}"
        for key in searched.cells
        if (names := searched.at_edge(key))
    ]
    if edges and searched.grids.search == "extend":
        notes.append(f"The search ended with the best value still at the edge of what was tried ({'; '.join(edges)}).")
    return notes


def _label(key: CellKey) -> str:
    _, arm, epsilon = key
    return arm.label if epsilon is None else f"{arm.label}, ε = {epsilon:g}"


def _axis(searched: SearchedRounds, name: str) -> str:
    units = (
        {one.outcome.trial.learning_rate_per for tried in searched.cells.values() for one in tried}
        if name == "learning_rate"
        else {"one"}
    )
    per = {"clip_norm": " × clip norm C", "guess": " ÷ guess from the noise"}
    private = next((per[unit] for unit in sorted(units) if unit in per), "")
    return f"{setting_title(name)}{private} (logarithmic)"


def _settings(searched: SearchedRounds, key: CellKey, trial: Trial) -> str:
    names = searched.settings(key)
    words = [phrase(name, getattr(trial, name)) for name in names]
    if "learning_rate" in names:
        words[names.index("learning_rate")] = f"{trial.optimizer} {rate_text(searched, trial)}"
    return ", ".join(words) or trial.optimizer


def rate_text(searched: SearchedRounds, trial: Trial) -> str:
    """Returns a rate, with the number that the grid gave it as if that is another one."""
    rate = value_text("learning_rate", float(f"{trial.learning_rate:.4g}"))
    if trial.learning_rate_per == "one":
        return rate
    per = {"clip_norm": "/ C", "guess": "× guess"}[trial.learning_rate_per]
    return f"{rate} (= {searched.written(trial, 'learning_rate'):.4g} {per})"


def _points(searched: SearchedRounds, name: str, tried: Sequence[Tried]) -> list[Point]:
    """Returns a point for each training, from the smallest value to the largest."""
    points = []
    for one in tried:
        outcome = one.outcome
        loss = outcome.validation_loss if outcome.test_loss is not None else None
        epochs = counted(float(f"{outcome.trial.epochs:.3g}"), "epoch")
        note = f"round {one.round}, {epochs}: {outcome.trial.label()}"
        points.append(Point(searched.written(outcome.trial, name), loss, note=note))
    return sorted(points, key=lambda point: (point.x, math.inf if point.y is None else point.y))


def _lowest(searched: SearchedRounds, name: str, tried: Sequence[Tried]) -> list[Point]:
    """Returns the lowest loss at each value."""
    lowest: dict[float, Point] = {}
    for point in _points(searched, name, tried):
        lowest.setdefault(point.x, point)
    return list(lowest.values())


def _apart(points: Sequence[Point]) -> list[Point]:
    """Returns the points with gaps between them, so that no line connects them."""
    return [part for point in points for part in (point, Point(point.x, None))]
