"""What is mutated, how much of it, and which tests have to notice."""

from __future__ import annotations

import ast
import hashlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutation.operators import Mutant, mutants

SEED = "14"


class Target(NamedTuple):
    """A module whose mutants are run.

    Attributes:
        path: The module, relative to the checkout.
        number: How many of its mutants are chosen.
        tests: Test files about it besides the one that mirrors it.
    """

    path: str
    number: int
    tests: tuple[str, ...] = ()

    def files(self, root: Path) -> list[str]:
        """Returns what pytest is given: the module itself, for its doctests, and its test files."""
        path = Path(self.path)
        mirrored = str(Path("tests") / path.parent / f"test_{path.stem}.py")
        return [self.path, *([mirrored] if (root / mirrored).exists() else []), *self.tests]


_CORE = "tests/dp_core"
_ONE_PASS, _GROUPS = f"{_CORE}/clipping/test_one_pass.py", f"{_CORE}/clipping/test_microbatches.py"
_TWO_PASS, _STEP = f"{_CORE}/clipping/test_two_pass.py", f"{_CORE}/training/test_step.py"
_EPSILON, _RECORD = f"{_CORE}/accounting/test_epsilon.py", f"{_CORE}/accounting/test_mechanism.py"
_SAMPLED, _TAILS = f"{_CORE}/test_sampling_accounting.py", f"{_CORE}/accounting/test_noise_tails.py"

TARGETS = (
    Target("dp_core/clipping/one_pass.py", 10, (_GROUPS, _TWO_PASS)),
    Target("dp_core/clipping/factors.py", 9),
    Target("dp_core/clipping/layers.py", 11, (_TWO_PASS,)),
    Target("dp_core/clipping/microbatches.py", 10),
    Target("dp_core/clipping/adaptive.py", 6),
    Target("dp_core/clipping/signals.py", 6, (_TWO_PASS, _ONE_PASS)),
    Target("dp_core/training/noise.py", 10),
    Target("dp_core/training/generators.py", 9, (f"{_CORE}/training/test_noise.py",)),
    Target("dp_core/training/updates.py", 4),
    Target("dp_core/training/step.py", 11, (f"{_CORE}/training/test_updates.py",)),
    Target("dp_core/training/witness.py", 8, (f"{_CORE}/audit/test_step_log.py", _STEP)),
    Target("dp_core/training/physical_batches.py", 9),
    Target("dp_core/sampling.py", 14, (_SAMPLED, f"{_CORE}/test_dealt_epochs.py")),
    Target("dp_core/accounting/events.py", 7, (_SAMPLED,)),
    Target("dp_core/accounting/mechanism.py", 9),
    Target("dp_core/accounting/noise_split.py", 6, (_RECORD,)),
    Target("dp_core/accounting/noise_tails.py", 10),
    Target("dp_core/accounting/binomials.py", 5, (f"{_CORE}/test_sampling.py",)),
    Target("dp_core/accounting/loss_pmf.py", 10),
    Target("dp_core/accounting/mixture_pmf.py", 10, (f"{_CORE}/accounting/test_loss_pmf.py",)),
    Target("dp_core/accounting/privacy_loss.py", 7, (_EPSILON,)),
    Target("dp_core/accounting/epsilon.py", 9, (f"{_CORE}/accounting/test_epsilon_limits.py",)),
    Target("dp_core/partition_selection.py", 7),
    Target("dp_core/labels/randomized_response.py", 9),
)

_TRAINED = "tests/tasks/privacy/test_planted_bugs.py::test_the_correct_trainer_passes"
_PROBED = "tests/dp_core/audit/test_probe.py::test_a_correct_step_is_found_correct"
# What the audit is asked for mutants that survive their tests: steps and whole trainings that it must fail. They are
# with Poisson sampling, balls in bins, an adaptive clip norm, and microbatches.
AUDIT = (
    f"{_PROBED}[{{}}]",
    f"{_PROBED}[{{'microbatch_size': 4, 'sensitivity': 2.0}}]",
    *(f"{_TRAINED}[changes{number}]" for number in (0, 4, 7, 8)),
)


def chosen(target: Target, root: Path) -> list[Mutant]:
    """Returns the mutants of a module that are run: the same ones every time.

    Functions take turns, so a short function has as many mutants as a long one. Within a function, no place is taken
    twice before every other place was taken once. Chance decides otherwise, by a hash of the seed and the mutant's key,
    so that a line that moves keeps its mutants.
    """
    by_function: dict[str, list[Mutant]] = defaultdict(list)
    source = (root / target.path).read_bytes()
    for mutant in mutants(target.path, source):
        by_function[mutant.function].append(mutant)
    queues = [_in_turn(found) for found in by_function.values()]
    # The constants at the top of a module come last: they are mostly limits of effort.
    queues.sort(key=lambda queue: (queue[0].function == "", _chance(queue[0])))
    picked: list[Mutant] = []
    while len(picked) < target.number and any(queues):
        picked += [queue.pop(0) for queue in queues if queue]
    for mutant in picked[: target.number]:
        ast.parse(mutant.applied(source))
    return sorted(picked[: target.number], key=lambda mutant: (mutant.start, mutant.id))


def _in_turn(found: Sequence[Mutant]) -> list[Mutant]:
    ranked = sorted(found, key=_chance)
    turns: dict[int, int] = defaultdict(int)
    order = []
    for mutant in ranked:
        order.append((turns[mutant.start], _chance(mutant), mutant))
        turns[mutant.start] += 1
    return [mutant for *_, mutant in sorted(order, key=lambda entry: entry[:2])]


def _chance(mutant: Mutant) -> str:
    return hashlib.sha256("\n".join((SEED, *mutant.key)).encode()).hexdigest()
