"""What several releases tell about one example together: ε by composition, worked out once and cached.

A day's charges are a multiset of parts of mechanisms. A model with a private vocabulary has two parts, its training
and the draw of the vocabulary; a draw counts once, however many models share it. Charges that contain others cost at
least as much, so of several days only those need to be worked out whose charges no other day contains.

A group of examples of one user is charged with the size of the group beside each part.
"""

from __future__ import annotations

import functools
import json
import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from tasks.ledger.release import Release, canonical
from tasks.privacy.cached_accounting import remembered

_Day = TypeVar("_Day", bound=Hashable)
# A sum of 1/σ² is rounded at most this much, as a share.
_ROUNDING = 1e-12


class Part(NamedTuple):
    """A part of a mechanism, as canonical JSON, and the number of one user's examples that it may have read."""

    mechanism: str
    group_size: int = 1


Charges = Counter[Part]


def charges_of(releases: Iterable[Release]) -> Charges:
    """Returns the charges of releases that read the same example."""
    return composed(Counter(_parts(release.mechanism)) for release in releases)


def composed(several: Iterable[Charges]) -> Charges:
    """Returns the charges of all of several, in which a draw of a private vocabulary counts once."""
    found: Charges = Counter()
    for one in several:
        found.update(one)
    for part in found:
        if _is_vocabulary(part):
            found[part] = 1
    return found


def for_group(charges: Charges, group_size: int) -> Charges:
    """Returns the same charges for a group of that many examples, all of which the releases may have read."""
    return Counter({part._replace(group_size=group_size): count for part, count in charges.items()})


def _parts(mechanism: dict[str, Any]) -> list[Part]:
    if mechanism["mechanism"] != "dp_sgd":
        return [Part(canonical(mechanism))]
    record = mechanism["record"]
    # Noise is in clip norms, so that their length does not matter.
    training = {**record, "l2_clip_norm": 1.0, "vocabulary": None}
    parts = [Part(canonical({"mechanism": "dp_sgd", "record": training}))]
    if record["vocabulary"] is not None:
        noise_multiplier, delta, draw = record["vocabulary"]
        shared = {"mechanism": "vocabulary", "noise_multiplier": noise_multiplier, "delta": delta, "draw": draw}
        parts.append(Part(canonical(shared)))
    return parts


@functools.lru_cache(maxsize=4096)
def _is_vocabulary(part: Part) -> bool:
    return json.loads(part.mechanism)["mechanism"] == "vocabulary"


def no_group_number(charges: Charges) -> str:
    """Returns why charges of a group have no ε; empty if they have one."""
    for part in charges:
        mechanism = json.loads(part.mechanism)
        if part.group_size > 1 and mechanism["mechanism"] == "vocabulary":
            return "the guarantee of a private vocabulary is for single examples, not for groups"
        if part.group_size > 1 and mechanism.get("record", {}).get("bands", 1) > 1:
            return "the guarantee of correlated noise (bands above 1) is for single examples, not for groups"
        if part.group_size > 1 and mechanism.get("delta"):
            return "the part of δ that a Gaussian release uses up besides is for single examples, not for groups"
    return ""


def epsilon(charges: Charges, delta: float) -> float:
    """Returns an upper bound on ε of everything that was charged, at δ; infinity if there is none."""
    if not charges:
        return 0.0
    questions: Counter[str] = Counter()
    for part, count in charges.items():
        mechanism = json.loads(part.mechanism)
        # Two draws of a vocabulary cost the same.
        mechanism.pop("draw", None)
        questions[canonical({**mechanism, "group_size": part.group_size})] += count
    return remembered(
        _epsilon, parts=[[json.loads(text), count] for text, count in sorted(questions.items())], delta=delta
    )


def _epsilon(*, parts: list[tuple[dict[str, Any], int]], delta: float) -> float:
    import dp_accounting

    from dp_core.accounting.epsilon import epsilon_bound
    from dp_core.accounting.mechanism import MechanismRecord

    events: list[dp_accounting.DpEvent] = []
    spent, lost, precision = 0.0, 0.0, 0.0
    for part, count in parts:
        group = part["group_size"]
        if part["mechanism"] == "dp_sgd":
            record = MechanismRecord.from_json(part["record"])
            events.append(dp_accounting.SelfComposedDpEvent(record.training_event(group_size=group), count))
            spent += count * record.truncation_delta(group_size=group)
            lost += count * record.tail_charge(group_size=group).share
            continue
        # Gaussian releases together are one Gaussian release, whose 1/σ² is the sum of theirs.
        precision += count * (group / part["noise_multiplier"]) ** 2
        spent += count * part.get("delta", 0.0)
    if precision > 0:
        events.append(dp_accounting.GaussianDpEvent(1 / math.sqrt(precision * (1 + _ROUNDING))))
    # (1 − a)(1 − b) ≥ 1 − (a + b)
    left = (delta - spent) * (1 - min(1.0, lost))
    if left <= 0:
        return math.inf
    event = events[0] if len(events) == 1 else dp_accounting.ComposedDpEvent(events)
    return epsilon_bound(event, left).epsilon


def delta_used(release: Release) -> float:
    """Returns the part of δ that a release uses up, whatever the ε: truncation, tails and a vocabulary's threshold."""
    return remembered(_delta_used, parts=[json.loads(part.mechanism) for part in sorted(charges_of([release]))])


def _delta_used(*, parts: list[dict[str, Any]]) -> float:
    from dp_core.accounting.mechanism import MechanismRecord

    records = [MechanismRecord.from_json(part["record"]) for part in parts if part["mechanism"] == "dp_sgd"]
    return sum(part.get("delta", 0.0) for part in parts) + sum(record.truncation_delta() for record in records)


def largest(by_day: Mapping[_Day, Charges]) -> list[_Day]:
    """Returns the days whose charges no other day's contain: one of them has the largest ε.

    >>> largest({"a": Counter({Part("x"): 1}), "b": Counter({Part("x"): 2}), "c": Counter({Part("y"): 1})})
    ['b', 'c']
    """
    kept: list[_Day] = []
    for day in sorted(by_day, key=lambda day: -by_day[day].total()):
        if not any(by_day[day] <= by_day[other] for other in kept):
            kept.append(day)
    return [day for day in by_day if day in kept]
