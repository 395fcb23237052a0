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
from tasks.runtime.home import read_json, short_hash, write_json
from tasks.runtime.progress import say
from tasks.training.finished import is_trained
from tasks.training.trial import Trial


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


def _key(night: Night, trials: Sequence[Trial], releases: Sequence[Release], mark: str) -> str:
    made_of = [mark, [trial.key for trial in trials], [release.to_json() for release in releases]]
    return f"{night['name']}/{short_hash(made_of)}/{night['day']}"


def _mark(night: Night, *, anew: bool = False) -> str:
    path = night_folder(night["name"], night["day"]) / "mark.json"
    if anew or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"mark": secrets.token_hex(16)})
    return read_json(path)["mark"]
