"""Counts the modules on the walk, and finds those that a later step enters again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

SERVICES = {
    "tasks.runtime": "home folder, progress lines, Dask and MLflow, for every step",
    "tasks.integrity": "checksums of the files that steps hand on",
    "tasks.config": "a step runs in a process of its own, so each reads the settings",
}
"""Rooms that no row passes: the steps use them."""


class Need(NamedTuple):
    """The steps that must pass a module, or the modules of a room, and why."""

    steps: str
    reason: str


_ACCOUNTING = Need("plan audit report", "plan finds the noise, audit computes ε from what ran, report adds the choice")
_PAGES = Need("prepare report", "the data card and the report are pages with plots")
NEEDED = {
    "tasks.training.items": Need("plan train audit report", "types of what steps hand on, and the plan's file"),
    "tasks.training.trial": Need("plan train audit report", "type of a trial: plan makes it, the other steps read it"),
    "tasks.training.finished": Need("plan train audit report", "a trial's folder: found, written, judged, shown"),
    "tasks.data.prepared": Need("prepare plan train report", "encoded arrays: written, counted, trained on, described"),
    "tasks.privacy.cached_accounting": _ACCOUNTING,
    "tasks.privacy.accounting_sources": _ACCOUNTING,
    "dp_core.accounting.mechanism": Need(
        "train audit report", "record of what ran: train writes it, the others judge it"
    ),
    "dp_core.accounting.binomials": Need("plan train", "bound on a batch's size, for its noise and for its shape"),
    "dp_core.accounting": _ACCOUNTING,
    "dp_core.sampling": Need(
        "plan train audit report", "a sampler draws the batches and states its own accounting event"
    ),
    "dp_core.audit": Need("train audit", "measured on the program that runs, judged after it"),
    "dp_core.models.spec": Need(
        "prepare plan train audit report", "the model in a trial; the data card shows its size"
    ),
    "dp_core.models": Need("prepare train", "the data card counts the parameters of the network that train builds"),
    "dp_core.clipping.layers": Need("prepare train", "layers of that network"),
    "dp_core.clipping.factors": Need("plan train audit report", "the clip factor that the record of what ran names"),
    "tasks.reporting.plots": _PAGES,
    "tasks.reporting.axes": _PAGES,
    "tasks.reporting.svg": _PAGES,
    "tasks.reporting.page": _PAGES,
    "tasks.reporting.document": _PAGES,
}
"""Modules, or whole rooms, that several steps need. The first entry that fits a module holds."""


class Walk(NamedTuple):
    """A trace, reduced to what the figure shows.

    Attributes:
        steps: for each step, the modules that it passes in order of first entry.
        callers: for each step and module, how many other modules call the module.
        reads: for each file that steps share, how often a run opens it for reading.
    """

    steps: Mapping[str, Sequence[str]]
    callers: Mapping[tuple[str, str], int]
    reads: Mapping[str, int]

    @property
    def modules(self) -> list[str]:
        """All modules that the walk passes, services included, in order of first entry."""
        return list(dict.fromkeys(module for modules in self.steps.values() for module in modules))

    @property
    def entered_again(self) -> dict[str, list[str]]:
        """Modules that more than one step passes, with these steps; services are left out."""
        passed = {module: [step for step in self.steps if module in self.steps[step]] for module in self.modules}
        return {module: steps for module, steps in passed.items() if len(steps) > 1 and not is_service(module)}

    @property
    def without_need(self) -> dict[str, list[str]]:
        """Modules that are entered again, with the steps that need not enter them."""
        again = {
            module: [step for step in steps[1:] if not needs(step, module)]
            for module, steps in self.entered_again.items()
        }
        return {module: steps for module, steps in again.items() if steps}

    @property
    def shared_in_a_step(self) -> list[str]:
        """Modules that several modules of one step call; services are left out."""
        shared = dict.fromkeys(module for (_, module), number in self.callers.items() if number > 1)
        return [module for module in shared if not is_service(module)]


def walk(calls: Iterable[Sequence[str]], reads: Iterable[Sequence[Any]]) -> Walk:
    """Reduces recorded calls, each a step and the modules on its call stack, to a walk.

    A call back into a module that is still on the stack does not count: the module has not been left. Nor does what the
    settings call, such as a registry that checks a name: no row passes there.

    >>> plan = [("plan", "a"), ("plan", "a", "b"), ("plan", "a", "b", "a")]
    >>> found = walk([*plan, ("train", "c"), ("train", "c", "b")], [])
    >>> found.steps, found.entered_again
    ({'plan': ['a', 'b'], 'train': ['c', 'b']}, {'b': ['plan', 'train']})
    """
    steps: dict[str, dict[str, None]] = {}
    callers: dict[tuple[str, str], set[str]] = {}
    for step, *stack in calls:
        *outer, module = stack
        while_reading_settings = any(_is_in(name, "tasks.config") for name in outer) and not is_service(module)
        if module not in outer and not while_reading_settings:
            steps.setdefault(step, {})[module] = None
            callers.setdefault((step, module), set()).add(outer[-1] if outer else step)
    files: dict[str, int] = {}
    for _, name, number in reads:
        files[name] = files.get(name, 0) + number
    return Walk(
        steps={step: list(modules) for step, modules in steps.items()},
        callers={place: len(found) for place, found in callers.items()},
        reads=files,
    )


def needs(step: str, module: str) -> bool:
    """Returns whether a step has a reason to enter a module that an earlier step has entered.

    >>> needs("audit", "dp_core.accounting.epsilon"), needs("train", "dp_core.accounting.epsilon")
    (True, False)
    """
    need = next((need for name, need in NEEDED.items() if _is_in(module, name)), None)
    return is_service(module) or (need is not None and step in need.steps.split())


def is_service(module: str) -> bool:
    """Returns whether a module is in a room that no row passes."""
    return any(_is_in(module, room) for room in SERVICES)


def _is_in(module: str, place: str) -> bool:
    return module == place or module.startswith(place + ".")
