"""Building blocks of the command line's parser: a verb with its ``--json``, and types of arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a verb found: ``result`` for ``--json``, ``text`` to print without it, and the exit status."""

    result: Any
    text: str = ""
    status: int = 0


def add_verb(
    verbs: Any, name: str, action: Callable[[argparse.Namespace], Answer], text: str
) -> argparse.ArgumentParser:
    """Adds a verb; ``text`` says in its help what it does."""
    verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    verb.add_argument("--json", action="store_true", help="print the result as JSON; progress goes to standard error")
    verb.set_defaults(verb=action)
    return verb


def positive(kind: type) -> Callable[[str], Any]:
    """Returns the type of an argument that must be a positive number of a kind: ``int`` or ``float``."""
    expected = "a positive whole number" if kind is int else "a positive number"

    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected {expected}, got {text!r}")
        return value

    return parse


def list_of(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    """Returns the type of an argument with values of another type, separated by commas."""

    def parse_all(text: str) -> list[Any]:
        values = [parse(part.strip()) for part in text.split(",") if part.strip()]
        if not values:
            raise argparse.ArgumentTypeError(f"expected a comma-separated list, got {text!r}")
        return values

    return parse_all
