"""What a release is: the mechanism that ran, the days of data that it touched, and who released it.

A mechanism is JSON, of one of three kinds:

- ``{"mechanism": "dp_sgd", "record": MechanismRecord.to_json()}``, a trained model;
- ``{"mechanism": "gaussian", "noise_multiplier": σ}``, one Gaussian release, where σ is relative to its L2 sensitivity
  to emptying one example. ``"delta"`` is optional: the part of δ that it uses up besides;
- ``{"mechanism": "vocabulary", "noise_multiplier": σ, "delta": δ, "draw": …}``, a private vocabulary.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from tasks.config.nightly import parsed_day
from tasks.runtime.errors import UserError

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease

Kind = Literal["model", "vocabulary", "statistic", "metric"]
# The unit of privacy of every entry. A row belongs to the day of its file.
UNIT = "one example; neighbours: replace_special"

_COUNTS = (
    "examples",
    "bands",
    "expected_batch_size",
    "max_batch_size",
    "steps",
    "microbatch_size",
    "coordinates",
    "noise_summands",
)
_NUMBERS = ("noise_multiplier", "l2_clip_norm", "sensitivity", "noise_support")
_LONGEST_TEXT = 500


@dataclasses.dataclass(frozen=True)
class Release:
    """Something that is computed from private data and leaves the house.

    Attributes:
        kind: What is released.
        mechanism: How, as JSON; see this module.
        dataset: The dataset, by its name in ``pipelines.yaml``.
        days: The days of it that were read, such as 2026-01-31. The mechanism is charged to each of them.
        run: The run that made it, for example of MLflow.
        note: Anything else that a reader of the ledger should know.
    """

    kind: Kind
    mechanism: dict[str, Any]
    dataset: str
    days: tuple[str, ...]
    run: str = ""
    note: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the release as a JSON-able dictionary."""
        return {**dataclasses.asdict(self), "days": list(self.days), "unit": UNIT}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Release:
        """Reads what ``to_json`` returned."""
        fields = {field.name: value[field.name] for field in dataclasses.fields(cls)}
        return cls(**{**fields, "days": tuple(fields["days"])})

    @property
    def label(self) -> str:
        """The release in an error message."""
        return f"{self.kind} of {self.dataset}" + (f" (run {self.run})" if self.run else "")


def dp_sgd(record: MechanismRecord) -> dict[str, Any]:
    """Returns the mechanism of a trained model."""
    return {"mechanism": "dp_sgd", "record": record.to_json()}


def gaussian(noise_multiplier: float, delta: float = 0.0) -> dict[str, Any]:
    """Returns the mechanism of a Gaussian release."""
    return {"mechanism": "gaussian", "noise_multiplier": noise_multiplier, **({"delta": delta} if delta else {})}


def vocabulary(release: VocabularyRelease) -> dict[str, Any]:
    """Returns the mechanism of a private vocabulary."""
    return {"mechanism": "vocabulary", **release._asdict()}


def canonical(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no spaces, ASCII only. NaN and infinity are ``ValueError``s.

    >>> canonical({"b": 1, "a": "ε"})
    '{"a":"\\\\u03b5","b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def checked(releases: Sequence[Release]) -> tuple[Release, ...]:
    """Returns releases as the ledger keeps them: days sorted, mechanisms as plain JSON.

    Raises ``UserError`` that names the release for whatever cannot be charged.
    """
    if not releases:
        raise UserError("a reservation needs at least one release: there is nothing to charge")
    return tuple(_checked(release) for release in releases)


def _checked(release: Release) -> Release:
    if release.kind not in get_args(Kind):
        raise UserError(f"a release is one of {', '.join(get_args(Kind))}, not {release.kind!r}")
    for name, text in (("dataset", release.dataset), ("run", release.run), ("note", release.note)):
        if not isinstance(text, str) or not text.isprintable() or len(text) > _LONGEST_TEXT:
            raise UserError(f"{name} of a release must be printable text on one line, got {text!r:.80}")
    if not release.dataset or release.dataset != release.dataset.strip():
        raise UserError(f"a release needs the name of its dataset as pipelines.yaml has it, got {release.dataset!r}")
    return dataclasses.replace(
        release, days=checked_days(release.days, release.label), mechanism=_checked_mechanism(release)
    )


def checked_days(days: Sequence[str], label: str) -> tuple[str, ...]:
    """Returns days in order. Raises ``UserError`` for none, for one that is not ISO, and for one that comes twice."""
    if isinstance(days, str) or not days:
        raise UserError(f"{label}: give the days that it read as a list of dates such as 2026-01-31")
    for day in days:
        if not isinstance(day, str) or parsed_day(day) is None:
            raise UserError(f"{label}: {day!r} is not a day: use dates such as 2026-01-31")
    twice = sorted({day for day in days if list(days).count(day) > 1})
    if twice:
        raise UserError(f"{label}: {', '.join(twice)} is listed more than once: a release reads a day once")
    return tuple(sorted(days))


def _checked_mechanism(release: Release) -> dict[str, Any]:
    try:
        given = json.loads(canonical(release.mechanism))
    except (TypeError, ValueError, RecursionError):
        raise UserError(f"{release.label}: its mechanism is not JSON with finite numbers") from None
    kind = given.get("mechanism") if isinstance(given, dict) else None
    if kind == "dp_sgd":
        return {"mechanism": kind, "record": _checked_record(given.get("record"), release.label)}
    if kind == "gaussian":
        _only(given, {"mechanism", "noise_multiplier", "delta"}, release.label)
    elif kind == "vocabulary":
        _only(given, {"mechanism", "noise_multiplier", "delta", "draw"}, release.label)
        if not isinstance(given.get("draw"), str) or not given["draw"]:
            raise UserError(f"{release.label}: a private vocabulary needs its `draw`, which tells two draws apart")
    elif kind == "label_dp":
        raise UserError(
            f"{release.label}: LabelDP protects labels and not examples, so it has no ε that can be added to the others"
        )
    else:
        raise UserError(
            f"{release.label}: no such mechanism: {kind!r}; the ledger adds up dp_sgd, gaussian and vocabulary"
        )
    _check_number(given, "noise_multiplier", release.label)
    if kind == "vocabulary" or "delta" in given:
        _check_delta(given, release.label)
    return given


def _only(given: dict[str, Any], known: set[str], label: str) -> None:
    if unknown := sorted(set(given) - known):
        raise UserError(f"{label}: its mechanism has unknown fields: {', '.join(unknown)}")


def _check_number(given: dict[str, Any], name: str, label: str) -> None:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UserError(f"{label}: {name} must be a positive number, got {value!r}; without noise there is no ε")


def _check_delta(given: dict[str, Any], label: str) -> None:
    value = given.get("delta")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{label}: delta must be a number from 0 to 1, got {value!r}")


def _checked_record(given: Any, label: str) -> dict[str, Any]:
    """Returns the JSON of a record of DP-SGD, read and written again."""
    from dp_core.accounting.mechanism import MechanismRecord

    if isinstance(given, dict) and "response" in given:
        raise UserError(f"{label}: LabelDP protects labels and not examples, so it has no ε that can be added up")
    try:
        record = MechanismRecord.from_json(given)
        relation = record.neighboring_relation.name
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{label}: this is not the record of a DP-SGD training ({error})") from None
    for name in _COUNTS:
        value = getattr(record, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{label}: {name} must be a whole number of 1 or more, got {value!r}")
    for name in _NUMBERS:
        _check_number({name: getattr(record, name)}, name, label)
    if record.expected_batch_size > record.examples:
        raise UserError(
            f"{label}: a batch of {record.expected_batch_size:,} is larger than the {record.examples:,} examples"
        )
    if record.label_rate_noise_multiplier is not None:
        _check_number(record.to_json(), "label_rate_noise_multiplier", label)
    if record.vocabulary is not None:
        _check_number(record.vocabulary._asdict(), "noise_multiplier", label)
        _check_delta(record.vocabulary._asdict(), label)
    if relation != "REPLACE_SPECIAL":
        raise UserError(
            f"{label}: the ledger adds up ε under replace_special, and this one is under {relation.lower()}"
        )
    return json.loads(canonical(record.to_json()))
