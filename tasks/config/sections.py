"""What the sections of ``pipelines.yaml`` are built from: frozen models that know every key of theirs."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, Strict

_T = TypeVar("_T")
Items = Annotated[tuple[_T, ...], Strict(False), Field(min_length=1)]
Some = Annotated[dict[str, _T], Field(min_length=1)]
Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
# Larger than any count that makes sense, and small enough to be calculated with.
Count = Annotated[int, Field(ge=1, le=10**12)]


def _as_sequence(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is in the list more than once")
    return values


Distinct = Annotated[Items[_T], AfterValidator(_distinct)]
# One value, or a list of them.
OneOrMore = Annotated[Distinct[_T], BeforeValidator(_as_sequence)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint at the nearest of the known names, or nothing.

    >>> did_you_mean("colums", ["columns", "format"])
    " (did you mean 'columns'?)"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
