"""Measurements in processes of their own: ``run_child`` here, ``python -m tasks.speed.child`` there.

What is measured in one process leaves threads, arenas and compiled programs behind that the next
measurement should not find, and the process that asks for it need not start JAX.
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

from tasks.errors import UserError
from tasks.home import CHECKOUT, read_json, write_json
from tasks.progress import say_error

_PACKAGES = ("tasks", "benchmarks")
_KILLED = -9


def run_child(target: str, environment: Mapping[str, str], **request: Any) -> Any:
    """Calls ``target`` in a new process: ``module:function`` of one of our packages, JSON-able in and out.

    What it prints is printed here, line by line. It does not outlive the call.
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
            raise UserError(f"measuring {request} was killed: most likely the machine ran out of memory")
        if child.returncode:
            raise UserError(f"measuring {request} failed, see above")
        return read_json(answer)


def find_target(target: str) -> Callable[..., Any]:
    """The function ``module:function``; a ``ValueError`` if it is none of ours.

    >>> find_target("tasks.home:short_hash").__name__
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
