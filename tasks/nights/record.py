"""The record of a night: what its steps hand on, and what is kept of it.

A night is ``home()/nights/NAME/DAY/night.json``, written when it ends in whichever way. Its steps hand on the same
fields as they become known. Everything is JSON, because Airflow passes it between tasks.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypedDict

from tasks.config.nightly import parsed_day
from tasks.runtime.errors import UserError
from tasks.runtime.home import as_fields, home, read_json, write_json
from tasks.training.items import TrainedTrial, TrialGroup

# How a night ended: with a new champion, with the old one, or before a model was judged.
Status = Literal["promoted", "kept", "stopped", "missing", "refused", "failed"]
# The endings that a rerun does not change. The others are tried again: data may come or be mended, budget may be freed.
DECIDED: tuple[Status, ...] = ("promoted", "kept")
# The endings for people.
ENDINGS: dict[Status, str] = {
    "promoted": "new champion",
    "kept": "champion kept",
    "stopped": "stopped by a data check",
    "missing": "no data",
    "refused": "refused: budget",
    "failed": "failed",
}

_RECORD = "night.json"


class ChampionOf(TypedDict):
    """A version of the registered model, and the night that made it."""

    version: int
    day: str


class Night(TypedDict, total=False):
    """A night, as far as its steps have come.

    Attributes:
      name: The entry of ``nightly``.
      day: The newest day, as 2026-01-09.
      reason: What started the night: ``schedule``, ``asset``, ``manual`` or ``backfill``.
      window: The days that are trained on.
      missing_days: The days before the newest that would be in the window, but are not.
      rows: The number of rows by day.
      contents: The digests of the data by day. They are of private data, and stay in this record.
      said: What happened to the data, one sentence each: a late day, a changed one.
      prepared: The folder of the prepared data.
      vocabulary_days: The days that the vocabulary was made from. From ``reserve`` on, those that this night is charged
        for: none if another night was charged for the same draw.
      checked: Whether the data checks were made; their page and ``checks.json`` are beside this record.
      parent: The night's run in MLflow.
      groups: The planned trainings.
      ledger_key: The key of the night's entry in the ledger.
      mark: The random mark of the night's folder, which the key depends on.
      ledger_head: The hash of the ledger's newest row after the night's entry was committed.
      trained: The finished trainings.
      epsilon: ε of everything that the night released about an example of the window, and its δ.
      chosen: The key of the trial that validation chose.
      version: The version of the registered model.
      champion: The champion before the night; None if there was none.
      comparison: How champion and challenger did on the newest day.
      won_too_late: Whether the challenger was good enough, but a later night had decided by then.
      status: How the night ended.
      sentence: The same in words.
      finished: When it ended, in UTC.
    """

    name: str
    day: str
    reason: str
    window: list[str]
    missing_days: list[str]
    rows: dict[str, int]
    contents: dict[str, str]
    said: list[str]
    prepared: str
    vocabulary_days: list[str]
    checked: bool
    parent: dict[str, Any]
    groups: list[TrialGroup]
    ledger_key: str
    mark: str
    ledger_head: str
    trained: list[TrainedTrial]
    epsilon: float
    delta: float
    chosen: str
    version: int
    champion: ChampionOf | None
    comparison: dict[str, Any] | None
    won_too_late: bool
    status: Status
    sentence: str
    finished: str


class NightEnded(UserError):
    """A night ended before a model was judged. The message is the sentence that says why.

    ``night`` is the night as far as the step that ended it had come, if it had come further than before.
    """

    def __init__(self, status: Status, sentence: str, night: Night | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.night = night


def dag_id(name: str) -> str:
    """Returns the id of an entry's DAG, which its experiment and its pages are named for too."""
    return f"nightly_retrain_{name}"


def nights_folder(name: str) -> Path:
    """Returns the folder of an entry's nights."""
    return home() / "nights" / name


def night_folder(name: str, day: str) -> Path:
    """Returns the folder of a night."""
    return nights_folder(name) / day


def read_night(name: str, day: str) -> Night | None:
    """Returns the record of a night; None if it has not ended."""
    path = night_folder(name, day) / _RECORD
    return as_fields(path, read_json(path)) if path.exists() else None


def read_nights(name: str) -> list[Night]:
    """Returns the records of all nights of an entry that have ended, in the order of their days."""
    return list(_records(nights_folder(name)))


def _records(folder: Path) -> Iterator[Night]:
    if not folder.is_dir():
        return
    for child in sorted(folder.iterdir()):
        if parsed_day(child.name) and (child / _RECORD).exists():
            yield as_fields(child / _RECORD, read_json(child / _RECORD))


def is_decided(name: str, day: str) -> bool:
    """Returns whether a night ended with a decision, which a rerun does not make again."""
    record = read_night(name, day)
    return record is not None and record["status"] in DECIDED


def end_night(night: Night, status: Status, sentence: str) -> Night:
    """Writes the record of a night that ended, and returns it. A decision stays, if another run has made one since."""
    if status not in DECIDED and is_decided(night["name"], night["day"]):
        return {**night, "status": status, "sentence": sentence}
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    # The plans of trainings are long, and say nothing that the trials' folders do not.
    ended: Night = {**night, "status": status, "sentence": sentence, "finished": now}
    ended.pop("groups", None)
    write_json(night_folder(night["name"], night["day"]) / _RECORD, ended)
    return ended


def days_before(day: str, count: int) -> list[str]:
    """Returns the days before a day, oldest first.

    >>> days_before("2026-03-02", 2)
    ['2026-02-28', '2026-03-01']
    """
    newest = datetime.date.fromisoformat(day)
    return [str(newest - datetime.timedelta(days=back)) for back in range(count, 0, -1)]
