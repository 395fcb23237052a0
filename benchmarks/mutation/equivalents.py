"""Equivalent mutants: those that change nothing that anyone could observe, each with its reason."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from benchmarks.mutation.operators import Mutant

LIST = Path(__file__).with_name("equivalent.json")


class StaleEquivalentError(ValueError):
    """The list names a mutant that is not run any more, or one that a test kills."""


def read_equivalents(path: Path = LIST) -> dict[tuple[str, str, str, str], str]:
    """Returns the reasons, by ``Mutant.key``. The file lists objects with path, function, text, operator and reason."""
    entries = json.loads(path.read_text(encoding="utf-8"))
    reasons = {(one["path"], one["function"], one["text"], one["operator"]): one["reason"] for one in entries}
    if len(reasons) < len(entries):
        raise StaleEquivalentError(f"{path.name} lists a mutant twice")
    return reasons


def reasons_by_id(mutants: Iterable[Mutant], reasons: dict[tuple[str, str, str, str], str]) -> dict[str, str]:
    """Returns the reason of each mutant that is listed, by its id.

    Args:
        mutants: All mutants that are run.
        reasons: What ``read_equivalents`` returned.

    Raises:
        StaleEquivalentError: If a listed mutant is not among them: its line has changed, or it is not chosen.
    """
    ids = {mutant.key: mutant.id for mutant in mutants}
    for key in reasons:
        if key not in ids:
            path, function, text, operator = key
            raise StaleEquivalentError(
                f"equivalent.json lists {operator} of {text!r} in {function or 'the module'} of {path}, "
                "which is not among the mutants that are run: remove the entry"
            )
    return {ids[key]: reason for key, reason in reasons.items()}
