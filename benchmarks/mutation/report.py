"""The page of the mutants: ``docs/mutants.md``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from benchmarks.mutation.equivalents import StaleEquivalentError
from benchmarks.mutation.operators import Mutant

INTRODUCTION = """# Mutants

For the engineer who wants to know what the tests would notice.

`make mutants` changes one operator, constant, condition or argument of the code that privacy rests on, and runs the
tests of that module. If they pass, the audit judges trainings by the changed code. A mutant that passes both has
survived: it needs a test, or a reason why it changes nothing that anyone could observe
(`benchmarks/mutation/equivalent.json`). The mutants are chosen by chance with a fixed seed, in every function about
equally many. The command wrote this page.
"""


class Result(NamedTuple):
    """What became of a mutant.

    Attributes:
        mutant: The mutant.
        verdict: What killed it, "tests" or "audit", or "survived".
        by: The test that noticed, or "timeout".
        seconds: Processor time of its tests.
    """

    mutant: Mutant
    verdict: str
    by: str
    seconds: float


def page(results: Sequence[Result], equivalents: Mapping[str, str]) -> str:
    """Returns the page, in Markdown.

    Args:
        results: What became of each mutant.
        equivalents: The reasons of the equivalent ones, by id.

    Raises:
        StaleEquivalentError: If a mutant that is listed as equivalent was killed.
    """
    counts: dict[str, Counter[str]] = {}
    for result in results:
        verdict = result.verdict
        if result.mutant.id in equivalents:
            if verdict != "survived":
                raise StaleEquivalentError(f"{result.mutant.id} is listed as equivalent, but {result.by} notices it")
            verdict = "equivalent"
        counts.setdefault(result.mutant.path, Counter())[verdict] += 1
    columns = ("tests", "audit", "equivalent", "survived")
    rows = {f"`{path}`": [found.total(), *(found[name] for name in columns)] for path, found in counts.items()}
    rows["**all**"] = [sum(numbers) for numbers in zip(*rows.values(), strict=True)]
    table = [
        "| module | mutants | killed by its tests | killed by the audit | equivalent | survived |",
        "|---|---:|---:|---:|---:|---:|",
        *("| " + " | ".join([name, *map(str, numbers)]) + " |" for name, numbers in rows.items()),
    ]
    timeouts = sum(result.by == "timeout" for result in results)
    parts = [INTRODUCTION, "\n".join(table) + "\n"]
    parts.append(
        f"All took {sum(result.seconds for result in results) / 60:.0f} minutes of processor time, the median mutant "
        f"{sorted(result.seconds for result in results)[len(results) // 2]:.1f} s.\n"
        f"{timeouts} of the killed ones ran out of time (60 s, or less where the tests are quick).\n"
    )
    parts += _listed("Killed by the audit", {r.mutant: f"by `{r.by}`" for r in results if r.verdict == "audit"})
    named = {result.mutant: equivalents[result.mutant.id] for result in results if result.mutant.id in equivalents}
    parts += _listed("Equivalent", named)
    left = [r.mutant for r in results if r.verdict == "survived" and r.mutant.id not in equivalents]
    parts += _listed("Survived", dict.fromkeys(left, "nothing noticed it"))
    return "\n".join(parts)


def _listed(title: str, mutants: Mapping[Mutant, str]) -> list[str]:
    if not mutants:
        return []
    lines = [f"- `{mutant.id}`, in `{mutant.text}`: {text}" for mutant, text in mutants.items()]
    return [f"## {title}\n", "\n".join(lines) + "\n"]
