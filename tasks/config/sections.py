"""Building blocks for the sections of ``pipelines.yaml``: the base model and the types of values."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PositiveFloat, Strict

from dp_core.models.spec import ModelSpec

_T = TypeVar("_T")
Items = Annotated[tuple[_T, ...], Strict(False), Field(min_length=1)]
Some = Annotated[dict[str, _T], Field(min_length=1)]
Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
# The upper limit is above any sensible count, and small enough to compute with.
Count = Annotated[int, Field(ge=1, le=10**12)]


def _as_sequence(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice.label if isinstance(twice, ModelSpec) else repr(twice)} is listed twice")
    return values


Distinct = Annotated[Items[_T], AfterValidator(_distinct)]
# A single value is read as a list of one.
OneOrMore = Annotated[Distinct[_T], BeforeValidator(_as_sequence)]


class Section(BaseModel):
    """A section of the file: frozen, strict about types, and closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a hint at the closest known name, or an empty string.

    >>> did_you_mean("colums", ["columns", "format"])
    " (did you mean 'columns'?)"
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def registered(names: Callable[[], Iterable[str]]) -> AfterValidator:
    """Returns a validator that accepts the names in a registry at the time the file is read.

    A ``Literal`` would repeat the names, and would miss what a plug-in registers.
    """

    def check(name: str) -> str:
        known = list(names())
        if name not in known:
            raise ValueError(f"no such name: {name!r}{did_you_mean(name, known)}; known: {', '.join(known)}")
        return name

    return AfterValidator(check)
