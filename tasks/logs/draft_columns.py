"""The columns of a sample: their types, missing values, and whether they can be a time or a label."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.logs.draft_sample import DATE, NUMBER, Sample, is_absent, shown
from tasks.logs.text_values import iso_times

_INTEGER = r"^[-+]?\d+$"
ABSENT_NUMBERS = (-1, -9, -99, -999, -9999)
_FIRST_SECOND, _LAST_SECOND = 631_152_000, 2_208_988_800  # of 1990 and 2039
_UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6}
# With fewer rows, a constant or unique column may be chance.
ENOUGH_ROWS = 50

# Words in column names and what they indicate. Words for labels are ordered, the best first.
WORDS = {
    says: words.split()
    for says, words in {
        "clicked": "click clicked clicks clk ctr label target y",
        "converted": "conversion converted conv cvr sale sold purchase purchased bought order install",
        "conversions": "conversions convs sales orders purchases installs",
        "nothing": "is has was did n nb num number of count total flag label",
        "time": "time timestamp ts datetime date day hour dt epoch at",
        "no time": "since delay of to duration zone elapsed last",
        "afterwards": "conversion conversions attribution attributed delay revenue",
        "outcome": "sale sales purchase purchases order orders",
        "of an outcome": "amount value id time timestamp ts date at total",
        "history": "last past previous prev prior before history avg mean rate",
        "category": "id uid cat category type kind class code campaign device advertiser publisher partner site app "
        "domain country region city zip brand product placement slot creative banner channel segment os browser gender "
        "hour day month c",
    }.items()
}


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a sample.

    Attributes:
        type: integer, number, text, boolean, time or other.
        stored: "text", or the kind of its Parquet type.
        stand_ins: Placeholders for missing values, with the share of rows that have them.
        odd_share: The share of rows with text in a column of numbers.
        is_hash_like: Whether its integers look like hashes and not like amounts.
        numbers: The value of each row as a number; NaN if it is missing or not a number.
        present: Whether each row has a value.
    """

    name: str
    type: str
    stored: str
    distinct: int = 0
    missing_share: float = 0.0
    stand_ins: dict[str, float] = field(default_factory=dict)
    odd_share: float = 0.0
    examples: tuple[str, ...] = ()
    is_hash_like: bool = False
    numbers: np.ndarray = field(default_factory=lambda: np.zeros(0))
    present: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))

    @cached_property
    def words(self) -> list[str]:
        """The words of the name without digits: ``isClick2`` gives is, click."""
        return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", self.name)]

    @property
    def last_word(self) -> str:
        return self.words[-1] if self.words else ""

    def says(self, what: str) -> bool:
        return not set(self.words).isdisjoint(WORDS[what])

    @cached_property
    def known(self) -> np.ndarray:
        return self.numbers[np.isfinite(self.numbers)]

    @cached_property
    def non_decreasing_share(self) -> float | None:
        return float((np.diff(self.known) >= 0).mean()) if len(self.known) > 1 else None

    @property
    def is_number(self) -> bool:
        return self.type in ("integer", "number")

    @cached_property
    def is_count(self) -> bool:
        known = np.zeros(0) if self.type == "time" else self.known
        return len(known) > 0 and bool(((known >= 0) & (known <= 1000) & (known == np.floor(known))).all())

    @cached_property
    def is_binary(self) -> bool:
        return self.is_count and bool((self.known <= 1).all())

    @property
    def is_category(self) -> bool:
        """Whether its numbers identify something instead of measuring it."""
        return self.is_hash_like or self.last_word in WORDS["category"]

    @property
    def is_unique(self) -> bool:
        return bool(self.present.sum() >= ENOUGH_ROWS and self.distinct > 0.9 * self.present.sum())

    @property
    def is_after_the_fact(self) -> bool:
        """Whether its name says that it is known only after the outcome that labels predict."""
        is_about = self.says("outcome") and self.says("of an outcome")
        return (is_about or self.says("afterwards")) and not self.says("history")

    @cached_property
    def time_format(self) -> str | None:
        """The ``time_format`` that its values need; None for typed times and for numbers outside 1990 to 2039."""
        if self.type == "time":
            return "iso8601" if self.stored in ("text", "string") else None
        if self.type != "integer" or not len(self.known):
            return None
        low, high = self.known.min(), self.known.max()
        return next((u for u, n in _UNITS.items() if _FIRST_SECOND * n <= low and high <= _LAST_SECOND * n), None)

    @cached_property
    def time_score(self) -> float | None:
        """How much it looks like the time of a row; None if it cannot be one."""
        is_named, in_order = self.says("time") and not self.says("no time"), self.non_decreasing_share == 1
        is_exact, is_whole = is_named and len(self.words) == 1, bool(self.present.all())
        if (self.is_after_the_fact and not is_whole) or not len(self.known):
            return None
        if self.type == "time" and self.stored != "string":  # strings in Parquet are not read as times
            score = 3.0
        elif self.type == "integer" and self.time_format and self.distinct > 1 and (is_named or in_order):
            score = 2.0
        # Hours and days of the month recur, though a short sample may not show it.
        elif (
            self.type == "integer" and is_named and self.known.max() > 31 and (in_order or self.words == ["timestamp"])
        ):
            score = 1.0
        else:
            return None
        score += is_named + is_exact + 2 * in_order + 3 * self.distinct / len(self.present)
        return score - 2 * (not is_whole) - 4 * self.is_after_the_fact

    def follows(self, label: Column) -> bool:
        """Whether it has non-zero values only in rows with a positive label, in too many rows for chance."""
        active, positive = self.present & ~(self.numbers == 0), label.numbers > 0
        if not active.any() or not positive[active].all():
            return False
        return bool(active.sum() * math.log(positive.mean()) < math.log(1e-6))


def columns_of(sample: Sample) -> tuple[Column, ...]:
    """Returns the columns of a sample in their order."""
    return tuple(
        Column(name, "other", stored) if values is None else _look(name, stored, values)
        for name, stored, values in zip(sample.names, sample.stored, sample.values, strict=True)
    )


def _look(name: str, stored: str, values: pa.Array) -> Column:
    """Analyses a column by its distinct values, in order of first occurrence."""
    coded = values.dictionary_encode()
    indices = coded.indices.fill_null(len(coded.dictionary)).to_numpy(zero_copy_only=False)
    texts = coded.dictionary.cast(pa.string())
    shares = np.bincount(indices, minlength=len(texts) + 1)[:-1] / len(values)
    blank, is_text = _mask(pc.equal(texts, "")), stored in ("text", "string")
    absent = _mask(is_absent(texts)) & is_text
    regular = ~absent & ~blank
    type_, numbers = _typed(stored, coded.dictionary, regular, shares)
    is_number = type_ in ("integer", "number")
    odd = regular & np.isnan(numbers) & is_number & is_text
    negative = np.unique(numbers[regular & (numbers < 0)])
    if is_number and len(negative) == 1 and negative[0] in ABSENT_NUMBERS and regular.sum() > 2:
        absent |= (numbers == negative[0]) & (shares >= 0.01)
    elif not is_number:
        absent &= shares >= 0.005
    regular = ~absent & ~blank
    numbers[~regular] = np.nan
    known = np.abs(numbers[np.isfinite(numbers)])
    # Amounts are mostly small and often round. Hashes are neither.
    is_hash_like = type_ == "integer" and len(known) > 1 and known.max() >= 1e6
    is_hash_like = is_hash_like and bool(np.median(known) >= 0.2 * known.max() and (known % 10 == 0).mean() < 0.5)
    return Column(
        name,
        type_,
        stored,
        distinct=int(regular.sum()),
        missing_share=abs(round(float(1 - shares[~blank].sum()), 6)),
        stand_ins={texts[int(i)].as_py(): round(float(shares[i]), 6) for i in np.flatnonzero(absent)},
        odd_share=float(shares[odd].sum()),
        examples=tuple(shown(text) for text in texts.filter(pa.array(regular)).slice(0, 3).to_pylist()),
        is_hash_like=is_hash_like,
        numbers=np.append(numbers, np.nan)[indices],
        present=np.append(regular, False)[indices],
    )


def _typed(stored: str, values: pa.Array, regular: np.ndarray, shares: np.ndarray) -> tuple[str, np.ndarray]:
    """Returns the type of a column's distinct values, and each value as a number (NaN if it is not one)."""
    if stored not in ("text", "string"):
        whole = {"time": pa.int64(), "boolean": pa.int8()}.get(stored, values.type)
        return stored, np.array(values.cast(whole).cast(pa.float64(), safe=False))
    numbers, texts = np.full(len(values), np.nan), values.filter(pa.array(regular))
    matches = _mask(pc.match_substring_regex(values, NUMBER)) & regular
    share = shares[matches].sum() / max(shares[regular].sum(), 1e-9)
    if stored == "text" and len(texts) and (matches[regular].all() or (share > 0.99 and matches.sum() > 10)):
        trimmed = pc.utf8_trim_whitespace(values.filter(pa.array(matches)))
        numbers[matches] = np.array(trimmed.cast(pa.float64()))
        return "integer" if pc.all(pc.match_substring_regex(trimmed, _INTEGER)).as_py() else "number", numbers
    if len(texts) and pc.all(pc.match_substring_regex(texts, DATE)).as_py():
        times, wrong = iso_times(texts, ())
        if not wrong.any():
            numbers[regular] = np.array(times.cast(pa.float64(), safe=False))
            return "time", numbers
    is_boolean = len(texts) and pc.all(pc.is_in(pc.utf8_lower(texts), pa.array(["true", "false"]))).as_py()
    return "boolean" if is_boolean else "text", numbers


def _mask(values: pa.Array) -> np.ndarray:
    return values.to_numpy(zero_copy_only=False).astype(bool)
