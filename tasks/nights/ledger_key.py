"""The key of a night in the ledger: one key stands for one set of releases that are made once.

Trainings are secret, so training the same settings again is another release. A finished trial and a private comparison
are made once because they are kept on disk. If they were deleted after they had been charged, or the night runs in
another home with the same ledger, they are made anew and have to be charged anew. So the key depends on a random mark
in the night's folder, which goes with the folder.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tasks.ledger.book import Ledger, Release
from tasks.nights.record import Night, night_folder
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, short_hash, write_json
from tasks.runtime.progress import say
from tasks.training.finished import is_trained
from tasks.training.trial import Trial

_MARK = "mark.json"


def ledger_key(night: Night, trials: Sequence[Trial], releases: Sequence[Release]) -> str:
    """Returns the key under which a night reserves its releases: that of an earlier try, if it releases the same.

    It begins with the entry and ends with the night. Other data or other settings have another key, and so have
    trainings that were charged but are no longer there.
    """
    key = _key(night, trials, releases, _mark(night))
    states = {entry.key: entry.state for entry in Ledger.open().entries()}
    if states.get(key) != "committed" or all(map(is_trained, trials)):
        return key
    say(
        f"night {night['day']} is in the ledger as {key}, but its trainings are gone from the home folder. They are "
        "trained and charged anew: other noise is another release"
    )
    return _key(night, trials, releases, _mark(night, anew=True))


def check_charged(night: Night) -> None:
    """Raises ``UserError`` if what a night is about to train would be a release that nobody charged.

    ``reserve`` sees to it when a night runs from its start. Airflow can also run its later tasks again by themselves,
    with what ``reserve`` returned then: the reservation may have been given back since, and trainings that were charged
    may have been deleted.
    """
    key = night["ledger_key"]
    state = next((entry.state for entry in Ledger.open().entries() if entry.key == key), None)
    trials = [Trial.model_validate(item["trial"]) for group in night["groups"] for item in group["items"]]
    if state == "reserved" or (state == "committed" and all(map(is_trained, trials))):
        return
    why = f"{key} is {state or 'not'} in the ledger" + (", and its trainings are gone" if state == "committed" else "")
    raise UserError(
        f"night {night['day']} of {night['name']} cannot be trained from here on: {why}, so that a new training would "
        "be a release that nobody charged. Run the night from its first task"
    )


def check_mark(night: Night) -> None:
    """Raises ``UserError`` if the night's folder is not the one in which its releases were charged."""
    path = night_folder(night["name"], night["day"]) / _MARK
    if not path.exists() or read_json(path)["mark"] != night.get("mark"):
        raise UserError(
            f"the folder of night {night['day']} was deleted after the night had been charged, and with it what was "
            "released: another private comparison would not be charged. Run the night from its first task"
        )


def mark_of(night: Night) -> str:
    """Returns the mark in the night's folder."""
    return _mark(night)


def _key(night: Night, trials: Sequence[Trial], releases: Sequence[Release], mark: str) -> str:
    made_of = [mark, [trial.key for trial in trials], [release.to_json() for release in releases]]
    return f"{night['name']}/{short_hash(made_of)}/{night['day']}"


def _mark(night: Night, *, anew: bool = False) -> str:
    path = night_folder(night["name"], night["day"]) / _MARK
    if anew or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"mark": secrets.token_hex(16)})
    return read_json(path)["mark"]
