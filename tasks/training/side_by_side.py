"""Several trials in one process: on the cores of a CPU small models train faster side by side than in turn.

Measured on two cores: threads gave 1.4 times the trials of one after the other; one program for several trials at once
(``vmap``) between 0.9 and 1.3 times, and it has to be compiled for each number of trials.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import jax

from tasks.config import Hardware

_T = TypeVar("_T")
_compiling, _compiled = threading.RLock(), set[Hashable]()


def trials_at_once(hardware: Hardware) -> int:
    """As many as there are cores on a plain CPU; elsewhere a trial has the devices to itself, unless told otherwise."""
    if jax.process_count() > 1:
        return 1
    if hardware.trials_at_once != "auto":
        return hardware.trials_at_once
    alone = jax.default_backend() != "cpu" or len(jax.devices()) > 1
    return 1 if alone else len(os.sched_getaffinity(0))


def side_by_side(function: Callable[[_T, Callable[[], bool]], None], items: Sequence[_T], *, at_once: int) -> None:
    """Calls the function with each item and a question: whether to stop, because another call failed.

    Raises the first error, when the calls that had begun have ended.
    """
    if at_once == 1 or len(items) == 1:
        for item in items:
            function(item, lambda: False)
        return
    stop, errors = threading.Event(), list[BaseException]()

    def call(item: _T) -> None:
        if stop.is_set():
            return
        try:
            function(item, stop.is_set)
        except BaseException as error:
            errors.append(error)
            stop.set()

    with ThreadPoolExecutor(at_once, thread_name_prefix="trial") as pool:
        calls = [pool.submit(call, item) for item in items]
        try:
            wait(calls)
        except BaseException:  # Ctrl-C: nothing new begins, and what runs is told
            stop.set()
            raise
    if errors:
        raise errors[0]


@contextlib.contextmanager
def first_alone(*program: Hashable) -> Iterator[None]:
    """Lets the first call of a program compile it while others that need the same wait, instead of compiling it too."""
    if program in _compiled:
        yield
        return
    with _compiling:
        yield
        _compiled.add(program)
