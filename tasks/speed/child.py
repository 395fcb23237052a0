"""Runs a measurement in a child process: ``run_child`` in the parent, ``python -m tasks.speed.child`` in the child.

A measurement leaves threads, malloc arenas and compiled programs behind that would distort the next one. And the
parent need not start JAX.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tasks.config.loading import load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT, read_json, write_json
from tasks.runtime.progress import say_error

_PACKAGES = ("tasks", "benchmarks")
_KILLED = -9


def run_child(target: str, environment: Mapping[str, str], **request: Any) -> Any:
    """Calls a function in a new process and returns its result.

    Args:
        target: ``module:function`` in ``tasks`` or ``benchmarks``.
        environment: Environment variables of the process.
        **request: Keyword arguments of the function, JSON-able, as its result must be.

    The output of the child is printed line by line. The child does not outlive the call.
    """
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"
        command = [sys.executable, "-m", "tasks.speed.child", target, json.dumps(request), str(answer)]
        child = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        with child:
            try:
                for line in child.stdout or ():
                    print(line, end="", flush=True)
            except BaseException:
                child.kill()
                raise
        if child.returncode == _KILLED:
            raise UserError(f"the process measuring {request} was killed; most likely the machine ran out of memory")
        if child.returncode:
            raise UserError(f"measuring {request} failed; the reason is above")
        return read_json(answer)


def find_target(target: str) -> Callable[..., Any]:
    """Returns the function ``module:function``. Raises ``ValueError`` if it is not in our packages.

    >>> find_target("tasks.runtime.home:short_hash").__name__
    'short_hash'
    >>> find_target("os:system")
    Traceback (most recent call last):
    ValueError: 'os:system' is not a function of tasks, benchmarks
    """
    module, _, name = target.partition(":")
    if module.split(".")[0] not in _PACKAGES:
        raise ValueError(f"{target!r} is not a function of {', '.join(_PACKAGES)}")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def _main(target: str, request: str, answer: str) -> int:
    try:
        load_config()  # imports the plug-ins, which may have registered the model to measure
        result = find_target(target)(**json.loads(request))
    except KeyboardInterrupt:
        return 130
    except UserError as error:
        say_error(str(error))
        return 2
    write_json(Path(answer), result)
    return 0


if __name__ == "__main__":
    sys.exit(_main(*sys.argv[1:]))
