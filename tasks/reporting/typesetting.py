"""How text becomes typography: minus signs, code between backquotes, and what must stay on one line."""

from __future__ import annotations

import re
from typing import NamedTuple

# A hyphen before a number, unless it joins it to what stands before: a range, a date, a name or an exponent.
_MINUS = re.compile(r"(?<![\w.)\]-])-(?=[\d.∞])")

# A number with a power of ten, as Python writes it.
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e([-+]\d+)(?!\w)")
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

# Spaces before a percent sign, and around the signs between a name, its value and its spread.
_INNER_SPACE = re.compile(r" (?=%|± \d|= [-−\d∞])|(?<=±) (?=\d)|(?<= =) (?=[-−\d∞])")


class Run(NamedTuple):
    """A piece of text in one style."""

    text: str
    code: bool


def typeset(text: str) -> str:
    """Returns text with minus signs before negative numbers, and with powers of ten.

    >>> typeset("-4.3 % to (-0.1), 2024-02-01, 1e-5, dcn-2")
    '−4.3 % to (−0.1), 2024-02-01, 10⁻⁵, dcn-2'
    """
    return _MINUS.sub("\N{MINUS SIGN}", with_powers(text))


def with_powers(text: str) -> str:
    """Returns text with powers of ten as people write them.

    >>> with_powers("(1, 6.25e-05), at most 1e-8, 2e+09, trial 1e5")
    '(1, 6.25·10⁻⁵), at most 10⁻⁸, 2·10⁹, trial 1e5'
    """

    def written(match: re.Match[str]) -> str:
        raised = f"10{str(int(match[2])).translate(_RAISED)}"
        return raised if match[1] == "1" else f"{match[1]}·{raised}"

    return _POWER.sub(written, text)


def held_together(text: str) -> str:
    """Returns text in which no line breaks within a value: its name, sign, spread and unit stay together.

    >>> held_together("at ε = 1: 0.12 ± 0.03, 5 % less").replace("\N{NO-BREAK SPACE}", "_")
    'at ε_=_1: 0.12_±_0.03, 5_% less'
    """
    return _INNER_SPACE.sub("\N{NO-BREAK SPACE}", text)


def runs(text: str) -> list[Run]:
    """Returns text cut at pairs of backquotes; what stands between them is code, and is left as it is.

    >>> [(run.text, run.code) for run in runs("at -1 with `a: -1`")]
    [('at −1 with ', False), ('a: -1', True)]
    """
    parts = text.split("`") if text.count("`") % 2 == 0 else [text]
    found = [Run(part if number % 2 else typeset(part), bool(number % 2)) for number, part in enumerate(parts)]
    return [run for run in found if run.text]
