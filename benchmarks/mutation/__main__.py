"""``make mutants``: runs every chosen mutant against its tests and the audit, and writes ``docs/mutants.md``."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.mutation.equivalents import StaleEquivalentError, read_equivalents, reasons_by_id
from benchmarks.mutation.operators import Mutant
from benchmarks.mutation.report import Result, page
from benchmarks.mutation.targets import AUDIT, TARGETS, Target, chosen
from benchmarks.mutation.workshop import BrokenTestsError, Workshop, open_workshop
from tasks.runtime.home import home

CHECKOUT = Path(__file__).resolve().parent.parent.parent
PAGE = CHECKOUT / "docs" / "mutants.md"


def run_target(workshop: Workshop, target: Target, mutants: Sequence[Mutant], audit: Sequence[str]) -> list[Result]:
    """Runs mutants of a module against its tests, and those that survive against the audit."""
    tests = target.files(workshop.copy)
    seconds = workshop.seconds_of(tests)
    workshop.check(tests, seconds)
    audit_seconds = workshop.seconds_of(audit)
    workshop.check(audit, audit_seconds)
    source = (workshop.copy / target.path).read_bytes()
    results = []
    for mutant in mutants:
        changed = mutant.applied(source)
        outcome, judge = workshop.outcome(tests, seconds, target.path, changed), "tests"
        taken = outcome.seconds
        if outcome.passed:
            outcome, judge = workshop.outcome(audit, audit_seconds, target.path, changed), "audit"
            taken += outcome.seconds
        verdict = "survived" if outcome.passed else judge
        results.append(Result(mutant, verdict, outcome.by, taken))
        print(f"{verdict:8} {taken:5.1f} s  {mutant.id}  {outcome.by}", flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="run modules whose path contains this, and write no page")
    parser.add_argument("--list", action="store_true", help="list the chosen mutants and what they change")
    options = parser.parse_args(arguments)
    targets = {target: chosen(target, CHECKOUT) for target in TARGETS}
    mutants = [mutant for found in targets.values() for mutant in found]
    if options.list:
        for mutant in mutants:
            if options.only in mutant.id:
                old = (CHECKOUT / mutant.path).read_bytes()[mutant.start : mutant.end].decode()
                print(f"{mutant.id}\n    {mutant.text}\n    {old} -> {mutant.replacement}")
        print(f"{len(mutants)} mutants")
        return 0
    began = time.monotonic()
    results: list[Result] = []
    try:
        reasons = reasons_by_id(mutants, read_equivalents())
        with open_workshop(CHECKOUT, home() / "cache" / "mutants.json") as workshop:
            for target, found in targets.items():
                if options.only in target.path:
                    results += run_target(workshop, target, found, AUDIT)
        text = page(results, reasons)
    except (StaleEquivalentError, BrokenTestsError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; what was found is kept", file=sys.stderr)
        return 130
    survived = [result for result in results if result.verdict == "survived" and result.mutant.id not in reasons]
    if not options.only:
        PAGE.write_text(text, encoding="utf-8")
    print(f"{len(results)} mutants, {len(survived)} survived, in {time.monotonic() - began:.0f} s")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
