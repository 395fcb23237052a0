"""The Makefile hands its variables to programs as they are."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_a_value_is_one_argument_whatever_is_in_it() -> None:
    given = {"RAW": "/data/bob's logs/*.csv", "EPSILONS": "1'; touch x; '", "PROFILE": "a b"}
    command = ["make", "--no-print-directory", "-n", "-o", ".venv/installed", "run"]
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in given.items())],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    words = shlex.split(done.stdout)
    assert {name: words[words.index(f"--{name.lower()}") + 1] for name in given} == given
    assert len(words) == words.index("run") + 1 + 2 * (len(given) + 1)
