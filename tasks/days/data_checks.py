"""Compares a new day's data with the days of its window, before anything is trained on the one or judged on the other.

Measures of the whole day come first, those of single columns after them; the sentence begins with the worst breach in
that order. Limits are the ``checks`` of a nightly entry. Here and nowhere else is decided whether a night has too many
bad rows: the preparation of a night tolerates any number (``tolerated_bad_rows`` is for other pipelines).

The population stability index of a column is Σ (p − q)·ln(p/q) over its bins, where p and q are the shares of the day
and of the window. Every bin that either of them has gets half a row more in both, so that an empty bin does not make
the index infinite. The bins of a categorical column are the 50 most frequent tokens of the window, the missing value,
and all other tokens together; those of an integer column are in ``sketches``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from tasks.config.dataset import Dataset
from tasks.config.loading import Config
from tasks.config.nightly import DataChecks
from tasks.data.stable_hash import stable_hash
from tasks.days.check_wording import wording
from tasks.days.delivered import DayState, Survey, survey
from tasks.days.sketches import Sketch, TokenCounts, bin_name, sketch_parts, together
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, write_json

TOP_TOKENS = 50
# The most frequent tokens of either side that a distribution shows.
_SHOWN_TOKENS = 7
_SMOOTHING = 0.5

Check = Literal["bad_rows", "other_days", "rows", "label_rate", "unseen_tokens", "drift"]


@dataclass(frozen=True)
class Measure:
    """A measure against its limit.

    Attributes:
        check: The limit's name in the configuration.
        of: The column, or the day of the window, that it is about; empty for the new day as a whole.
        day: The number of the new day, such as its label rate.
        window: That of the window, None if there is nothing to compare with.
        value: What is compared with the limit: a share, a factor of 1 or more, or an index. None if it is infinite.
        limit: The limit.
        breach: Whether the value is above the limit.
        note: More for people, such as the most frequent reason.
    """

    check: Check
    of: str
    day: float
    window: float | None
    value: float | None
    limit: float
    breach: bool
    note: str = ""

    @property
    def excess(self) -> float:
        """The value as a multiple of the limit."""
        if self.value is None:
            return math.inf
        return self.value / self.limit if self.limit else (math.inf if self.value else 0.0)


@dataclass(frozen=True)
class Distribution:
    """A column's bins, with the share of rows that the window and the new day have in each."""

    names: Sequence[str]
    window: Sequence[float]
    day: Sequence[float]


@dataclass(frozen=True)
class CheckedDay:
    """A day that was checked. ``unmeasured`` says which checks were not made, and why; empty if all were."""

    entry: str
    dataset: str
    task: str
    day: str
    contents: str
    rows: int
    window: Sequence[str]
    left_out: Mapping[str, str]
    measures: Sequence[Measure]
    distributions: Mapping[str, Distribution]
    unmeasured: str = ""

    @property
    def breaches(self) -> list[Measure]:
        """The breaches, the worst first: of the whole day, then of columns."""
        found = [measure for measure in self.measures if measure.breach]
        return sorted(found, key=lambda measure: (measure.check in ("unseen_tokens", "drift"), -measure.excess))

    @property
    def passed(self) -> bool:
        return not self.breaches

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "sentence": sentence(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> CheckedDay:
        fields = {name: value[name] for name in (field.name for field in dataclasses.fields(cls))}
        fields["measures"] = [Measure(**measure) for measure in fields["measures"]]
        fields["distributions"] = {name: Distribution(**both) for name, both in fields["distributions"].items()}
        return cls(**fields)


def check_day(config: Config, entry: str, day: str, *, found: Survey | None = None) -> CheckedDay:
    """Checks a day against its window, and keeps the result in ``home()/nights/ENTRY/DAY/checks.json``.

    Args:
        config: The configuration.
        entry: The name of the nightly entry.
        day: The new day.
        found: The days as ``night_days`` found them; by default it looks now.

    Raises:
        UserError: The day is not delivered, or is refused.
    """
    nightly = config.night(entry)
    found = found or night_days(config, entry, day)
    if found.newest.state in ("missing", "refused"):
        raise UserError(found.newest.sentence)
    dataset = config.dataset(nightly.dataset)
    newest = sketch_parts(found.newest.parts(nightly.dataset, dataset))
    window = {day.day: sketch_parts(day.parts(nightly.dataset, dataset)) for day in found.present}
    measures = [*_of_day(day, newest, window, nightly.task, nightly.checks)]
    distributions: dict[str, Distribution] = {}
    unmeasured = ""
    if not newest.rows:
        unmeasured = "the day has no rows"
    elif not window:
        unmeasured = "the window has no day to compare with, so rows, labels, tokens and drift were not checked"
    else:
        measures += _of_columns(newest, together(list(window.values())), dataset, nightly.checks, distributions)
    checked = CheckedDay(
        entry=entry,
        dataset=nightly.dataset,
        task=nightly.task,
        day=day,
        contents=found.newest.contents,
        rows=newest.rows,
        window=list(window),
        left_out=found.left_out,
        measures=measures,
        distributions=distributions,
        unmeasured=unmeasured,
    )
    write_json(record_path(entry, day), checked.to_json())
    return checked


def record_path(entry: str, day: str) -> Path:
    """Returns the file that keeps the result of a day's checks."""
    return home() / "nights" / entry / day / "checks.json"


def night_days(config: Config, entry: str, day: str) -> Survey:
    """Looks at the days of a night. Days of the window that the checks stopped in their own night are left out.

    A day that was delivered again with other contents since then is not left out.
    """
    found = survey(config, entry, day)
    return found._replace(window=tuple(_unless_breached(entry, earlier) for earlier in found.window))


def _unless_breached(entry: str, day: DayState) -> DayState:
    path = record_path(entry, day.day)
    if day.state != "delivered" or not path.exists():
        return day
    checked = CheckedDay.from_json(read_json(path, alone=True))
    if checked.passed or checked.contents != day.contents:
        return day
    return DayState(day.day, "refused", f"{day.day} is left out, because its own night was {sentence(checked)}")


def sentence(checked: CheckedDay) -> str:
    """Returns the result in one sentence, the worst breach first."""
    if not checked.breaches:
        compared = f"compared with {len(checked.window)} days" if len(checked.window) != 1 else "compared with one day"
        return f"{checked.day} is as usual: {checked.rows:,} rows, {checked.unmeasured or compared}"
    worst, *others = [wording(measure, checked.day, checked.task) for measure in checked.breaches]
    if not others:
        return f"stopped: {worst}"
    more = f"; and {others[0]}" if len(others) == 1 else f"; and {len(others)} more breaches, such as: {others[0]}"
    return f"stopped: {worst}{more}"


def population_stability(day: np.ndarray, window: np.ndarray) -> float:
    """Returns the population stability index of two histograms with the same bins.

    >>> round(population_stability(np.array([50, 50]), np.array([50, 50])), 9)
    0.0
    """
    used = (day + window) > 0
    p, q = (counts[used] + _SMOOTHING for counts in (day, window))
    p, q = p / p.sum(), q / q.sum()
    return float(np.sum((p - q) * np.log(p / q)))


def _of_day(day: str, newest: Sketch, window: Mapping[str, Sketch], task: str, limits: DataChecks) -> Iterator[Measure]:
    """Yields the measures of whole days."""
    for of, sketch in {"": newest, **window}.items():
        share, limit = _share(sketch.bad.total(), sketch.lines), limits.bad_rows
        reason = next((reason for reason, _ in sketch.bad.most_common(1)), "")
        if not of or share > limit:
            yield Measure("bad_rows", of, share, None, share, limit, share > limit, reason)
    own = int(np.datetime64(day, "D").astype(np.int64))
    others = {other: rows for other, rows in newest.by_day.items() if other != own}
    share = _share(sum(others.values()), newest.rows)
    often = str(np.datetime64(max(others, key=lambda other: others[other]), "D")) if others else ""
    yield Measure("other_days", "", share, None, share, limits.other_days, share > limits.other_days, often)
    if not window:
        if not newest.rows:
            yield Measure("rows", "", 0, None, None, limits.rows, True)
        return
    usual = float(np.median([sketch.rows for sketch in window.values()]))
    yield _factor("rows", newest.rows, usual, limits.rows)
    if newest.rows:
        together_rows = sum(sketch.rows for sketch in window.values())
        of_window = sum(sketch.labels[task] for sketch in window.values()) / together_rows
        yield _factor("label_rate", newest.labels[task] / newest.rows, of_window, limits.label_rate)


def _factor(check: Check, day: float, window: float, limit: float) -> Measure:
    """Compares two numbers by how many times the larger one is as large as the smaller."""
    low, high = sorted((day, window))
    value = high / low if low else (1.0 if not high else None)
    return Measure(check, "", day, window, value, limit, value is None or value > limit)


def _of_columns(
    newest: Sketch, window: Sketch, dataset: Dataset, limits: DataChecks, distributions: dict[str, Distribution]
) -> Iterator[Measure]:
    """Yields the measures of columns; adds the distributions of those with a breach."""
    for name in [*dataset.integer_columns, *dataset.categorical_columns]:
        own = limits.columns.get(name)
        measures = []
        if name in newest.tokens:
            tokens = newest.tokens[name], window.tokens[name]
            day, of_window = _token_bins(name, *tokens, _top(tokens[1], TOP_TOKENS))[1:]
            share = _unseen(newest.tokens[name], window.tokens[name])
            limit = limits.unseen_tokens if own is None or own.unseen_tokens is None else own.unseen_tokens
            measures.append(Measure("unseen_tokens", name, share, None, share, limit, share > limit))
        else:
            day, of_window = newest.histograms[name], window.histograms[name]
        drift = population_stability(day, of_window)
        limit = limits.drift if own is None or own.drift is None else own.drift
        missing = [_share(sketch.missing[name], sketch.rows) for sketch in (newest, window)]
        measures.append(Measure("drift", name, missing[0], missing[1], drift, limit, drift > limit))
        if any(measure.breach for measure in measures):
            distributions[name] = _distribution(name, newest, window)
        yield from measures


def _distribution(name: str, newest: Sketch, window: Sketch) -> Distribution:
    """Returns the distributions of a column for people: of tokens, the most frequent ones of either side."""
    if name in newest.tokens:
        both = newest.tokens[name], window.tokens[name]
        top = np.concatenate([_top(both[1], _SHOWN_TOKENS), _top(both[0], _SHOWN_TOKENS)])
        names, day, of_window = _token_bins(name, *both, top[np.sort(np.unique(top, return_index=True)[1])])
    else:
        day, of_window = newest.histograms[name], window.histograms[name]
        names = [bin_name(number) for number in range(len(day))]
    used = np.flatnonzero(day + of_window)
    return Distribution(
        names=[names[place] for place in used],
        window=(of_window[used] / window.rows).tolist(),
        day=(day[used] / newest.rows).tolist(),
    )


def _top(column: TokenCounts, count: int) -> np.ndarray:
    """Returns the most frequent tokens."""
    return column.hashes[np.argsort(-column.counts, kind="stable")[:count]]


def _token_bins(
    name: str, day: TokenCounts, window: TokenCounts, top: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Returns the names of a categorical column's bins, and the rows of the day and of the window in each."""
    missing = stable_hash(name, pa.array([""], pa.string()))
    kept = np.concatenate([top[top != missing[0]], missing])
    of_day, of_window = _counts_of(kept, day), _counts_of(kept, window)
    texts = {**day.texts, **window.texts}
    names = [texts.get(int(value)) or "…" for value in kept[:-1]]
    rest = [column.counts.sum() - counted.sum() for column, counted in ((day, of_day), (window, of_window))]
    return [*names, "missing", "all others"], np.append(of_day, rest[0]), np.append(of_window, rest[1])


def _counts_of(hashes: np.ndarray, column: TokenCounts) -> np.ndarray:
    if not len(column.hashes):
        return np.zeros(len(hashes), np.int64)
    places = np.minimum(np.searchsorted(column.hashes, hashes), len(column.hashes) - 1)
    return np.where(column.hashes[places] == hashes, column.counts[places], 0)


def _unseen(day: TokenCounts, window: TokenCounts) -> float:
    """Returns the share of the day's rows with a token that the window does not have."""
    known = np.isin(day.hashes, window.hashes, assume_unique=True)
    return _share(int(day.counts[~known].sum()), int(day.counts.sum()))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
