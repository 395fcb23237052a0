"""Who was champion, from when, and why: the history of the alias ``champion`` of an entry's registered model.

The alias in MLflow's registry says who is champion. The history beside the nights says how it got there. An alias that
someone moved elsewhere, for example in MLflow's pages, is noticed and added to the history.
"""

from __future__ import annotations

import datetime
from typing import TypedDict

from tasks.config.nightly import parsed_day
from tasks.nights.record import DECIDED, ChampionOf, read_night, read_nights
from tasks.nights.tracking import tag_champion
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, write_json
from tasks.serving.registry import champion, set_champion, versions


class Reign(TypedDict):
    """A time as champion.

    Attributes:
      version: The version of the registered model.
      day: The night that made it.
      since: When it became champion, in UTC.
      by: ``night`` if a night promoted it, ``person`` if a command did, ``elsewhere`` if the alias was moved outside.
      reason: The night's sentence, or the person's.
    """

    version: int
    day: str
    since: str
    by: str
    reason: str


def history(name: str) -> list[Reign]:
    """Returns all reigns of an entry, oldest first; the last one is the present champion's."""
    path = home() / "nights" / name / "champions.json"
    reigns: list[Reign] = read_json(path) if path.exists() else []
    found = champion(name)
    if found is not None and (not reigns or reigns[-1]["version"] != found.version):
        moved = "the alias was moved outside of this project, for example in MLflow's pages"
        reigns.append(_reign(name, found.version, "elsewhere", moved))
        write_json(path, reigns)
    return reigns


def present(name: str) -> ChampionOf | None:
    """Returns the champion of an entry; None if there is none."""
    found = champion(name)
    if found is None:
        return None
    return {"version": found.version, "day": found.tags.get("night", "unknown")}


def champion_for(name: str, day: str) -> ChampionOf | None:
    """Returns the champion that the night of a day is judged against: the present one, unless it is of a later day.

    A champion of a later night has trained on the day, and one of the same night is the challenger itself, which a
    crash left before the night was done. Then the last champion of an earlier night counts, as it did at the time. In a
    back-fill of several nights, that may be one of them: it won, and only a later night's decision kept it from the
    alias.
    """
    now = present(name)
    if now is None or parsed_day(now["day"]) is None:
        return now
    then = now if now["day"] < day else _reigned_before(name, day)
    nights = read_nights(name)
    if not any(night["day"] > day and night["status"] in DECIDED for night in nights):
        return then
    since = "" if then is None else then["day"]
    won = [night for night in nights if since < night["day"] < day and night.get("won_too_late")]
    there = {found.version for found in versions(name)}
    kept = [night for night in won if night["version"] in there]
    return {"version": kept[-1]["version"], "day": kept[-1]["day"]} if kept else then


def _reigned_before(name: str, day: str) -> ChampionOf | None:
    there = {found.version for found in versions(name)}
    for reign in reversed(history(name)):
        if reign["day"] < day and reign["version"] in there:
            return {"version": reign["version"], "day": reign["day"]}
    return None


def promote(name: str, version: int, *, by: str, reason: str) -> None:
    """Makes a version the champion, and notes it in the history."""
    reigns = history(name)
    set_champion(name, version)
    path = home() / "nights" / name / "champions.json"
    if not reigns or reigns[-1]["version"] != version:
        write_json(path, [*reigns, _reign(name, version, by, reason)])


def roll_back(name: str, day: str, reason: str) -> Reign:
    """Makes the model of an earlier night the champion again.

    Raises:
      UserError: The night has no model, it is champion already, or there is no reason.
    """
    if not reason.strip():
        raise UserError("a roll-back needs a reason, which the history keeps: give it with --reason")
    night = read_night(name, day)
    if night is None or "version" not in night:
        ended = "it has not ended" if night is None else night["sentence"]
        raise UserError(f"night {day} of {name} has no registered model: {ended}")
    now = present(name)
    if now is not None and now["version"] == night["version"]:
        raise UserError(f"night {day} of {name} is the champion already")
    promote(name, night["version"], by="person", reason=reason.strip())
    tag_champion(name, day)
    return history(name)[-1]


def _reign(name: str, version: int, by: str, reason: str) -> Reign:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    tags = next((found.tags for found in versions(name) if found.version == version), {})
    day = tags.get("night", "unknown")
    return {"version": version, "day": day, "since": now, "by": by, "reason": reason}
