"""Axes of a plot: their range, their ticks, and the scale from a value to its place in pixels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tasks.reporting.typesetting import with_powers


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Returns about ``count`` round numbers between two numbers.

    >>> ticks(0, 0.37)
    [0.0, 0.1, 0.2, 0.3]
    """
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.999 * rough)
    digits = max(0, -math.floor(math.log10(step)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, digits) for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Returns at most about seven round numbers between two positive numbers, for a log axis.

    >>> log_ticks(0.002, 3), log_ticks(0.15, 3), log_ticks(0.21, 0.29)
    ([0.01, 0.1, 1.0], [0.2, 0.5, 1.0, 2.0], [0.22, 0.24, 0.26, 0.28])
    >>> log_ticks(150, 45000)
    [200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    decades = math.log10(high / low)
    for factors, step in (((1.0,), math.ceil(decades / 6)), ((1.0, 2.0, 5.0), 1)):
        found = [
            round(factor * 10.0**power, 1 - power)
            for power in powers
            if power % step == 0
            for factor in factors
            if low <= factor * 10.0**power <= high
        ]
        # Powers of ten alone are too few for an axis of about two decades or less.
        if len(found) > 2 and (decades > 2 or len(factors) > 1):
            return found
    return ticks(low, high)


def number_text(value: float) -> str:
    """Returns the text of a number on an axis.

    >>> number_text(0.25), number_text(20000), number_text(2e-7), number_text(1e9)
    ('0.25', '20,000', '2·10⁻⁷', '10⁹')
    """
    if value == 0 or 1e-4 <= abs(value) < 1e7:
        return f"{value:,.10g}"
    digits, power = f"{value:.6e}".split("e")
    return with_powers(f"{digits.rstrip('0').rstrip('.')}e{power}")


def extent(values: Sequence[float], *, log: bool) -> tuple[float, float]:
    """Returns the smallest and the largest value, widened if they are equal."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return (low / 2, high * 2) if log else (low - 1, high + 1)


def heights(values: Sequence[float], *, log: bool, from_zero: bool = False) -> tuple[float, float]:
    """Returns the range of a y axis, with a margin around the values.

    It starts at zero if ``from_zero``, and otherwise unless that would leave half of the height or more empty. A log
    axis ignores values that are not positive.
    """
    if log:
        low, high = extent([value for value in values if value > 0], log=True)
        return low / (high / low) ** 0.1, high * (high / low) ** 0.15
    low, high = min(values), max(values)
    if from_zero or not 0 < high - low < high / 2:
        low, high = min(low, 0.0), max(high, 0.0)
    span = (high - low) or 1.0
    return low - 0.1 * span * (low != 0), high + 0.15 * span


def scale(axis: tuple[float, float], places: tuple[float, float], *, log: bool) -> Callable[[float], float]:
    """Returns the function from a value to its place. A log axis puts values that are not positive at its start.

    >>> scale((1, 100), (0, 8), log=True)(10), scale((0, 10), (8, 0), log=False)(5)
    (4.0, 4.0)
    """
    (low, high), (first, last) = axis, places
    if log:
        length = math.log(high / low)
        return lambda value: first + (last - first) * (math.log(value / low) / length if value > 0 else 0.0)
    return lambda value: first + (last - first) * (value - low) / (high - low)
