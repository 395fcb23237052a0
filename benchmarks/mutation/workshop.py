"""Runs tests on mutated code, in a copy of the checkout. The checkout itself is never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks.mutation import ordering
from benchmarks.mutation.nursery import LIBRARIES, Nursery
from tasks.runtime.home import write_json

# Seconds of processor time. A mutant whose tests take longer than the first is killed: on correct code, tests are
# chosen to take at most the second.
TIMEOUT, BUDGET = 60, 25.0
# If a process waits for something that never comes, it takes no processor time.
_LONGEST_WAIT = 6 * TIMEOUT

_LEFT_OUT = shutil.ignore_patterns(".*", "var", "__pycache__")
_PLUGIN = "mutation_ordering"
_NO_TESTS = "no tests"


class BrokenTestsError(RuntimeError):
    """Tests fail without any mutation, so what they say of mutants means nothing."""


class Outcome(NamedTuple):
    """What became of the tests.

    Attributes:
        passed: Whether all of them passed.
        by: The first that failed, or "timeout".
        seconds: Processor time.
    """

    passed: bool
    by: str
    seconds: float


class Workshop:
    """A copy of the checkout, in which one file at a time is mutated.

    Attributes:
        copy: The copy. The checkout may change while mutants run.
        answers: A JSON file of earlier outcomes, by the hash of the question: the code, the tests and their files.
        nursery: What runs pytest.
    """

    def __init__(self, root: Path, copy: Path, answers: Path, nursery: Nursery) -> None:
        self.copy, self.answers, self.nursery = copy, answers, nursery
        self.known: dict[str, Any] = json.loads(answers.read_text()) if answers.exists() else {}
        shutil.copytree(root, copy, ignore=_LEFT_OUT)
        shutil.copyfile(str(ordering.__file__), copy / f"{_PLUGIN}.py")

    def seconds_of(self, tests: Sequence[str]) -> dict[str, float]:
        """Returns how long each test takes, on the code as it is.

        Raises:
            BrokenTestsError: If one fails.
        """
        found: dict[str, float] = {}
        for test in tests:
            question = f"seconds {self._hash([test])}"
            if question not in self.known:
                record = self.copy / "recorded.json"
                record.unlink(missing_ok=True)
                outcome = self._pytest([test], {"MUTATION_RECORD": str(record)}, timeout=10 * TIMEOUT)
                # A module need not have doctests.
                if not outcome.passed and outcome.by != _NO_TESTS:
                    raise BrokenTestsError(f"{test} fails without any mutation: {outcome.by}")
                self._remember(question, json.loads(record.read_text()))
            found |= self.known[question]
        return found

    def check(self, tests: Sequence[str], seconds: Mapping[str, float]) -> None:
        """Runs tests without any mutation, in the way in which mutants are run.

        Raises:
            BrokenTestsError: If one fails.
        """
        outcome = self.outcome(tests, seconds)
        if not outcome.passed:
            raise BrokenTestsError(f"{outcome.by} fails without any mutation, when the quickest tests run first")

    def outcome(
        self, tests: Sequence[str], seconds: Mapping[str, float], path: str = "", source: bytes = b""
    ) -> Outcome:
        """Runs tests against a mutated file, the quickest first, until one fails.

        Args:
            tests: Files, or single tests.
            seconds: How long each test takes; the slowest may be left out (``BUDGET``).
            path: The file that is mutated, if any.
            source: What stands in it.
        """
        question = hashlib.sha256(f"{path} {self._hash(tests)} {BUDGET}".encode() + source).hexdigest()
        if question not in self.known:
            order = self.copy / "seconds.json"
            order.write_text(json.dumps(seconds))
            with self._mutated(path, source):
                settings = {"MUTATION_SECONDS": str(order), "MUTATION_BUDGET": str(BUDGET)}
                # Quick tests have a mutant that never ends sooner.
                timeout = min(TIMEOUT, 12 + 3 * math.ceil(sum(seconds.values())))
                self._remember(question, list(self._pytest(tests, settings, timeout=timeout)))
        return Outcome(*self.known[question])

    def _remember(self, question: str, answer: Any) -> None:
        self.known[question] = answer
        write_json(self.answers, self.known)

    def _hash(self, tests: Sequence[str]) -> str:
        """Returns a hash of tests: of their names and of the files that hold them."""
        files = sorted({test.partition("::")[0] for test in tests})
        contents = [hashlib.sha256((self.copy / file).read_bytes()).hexdigest() for file in files]
        return hashlib.sha256(json.dumps([list(tests), contents]).encode()).hexdigest()

    @contextlib.contextmanager
    def _mutated(self, path: str, source: bytes) -> Iterator[None]:
        if not path:
            yield
            return
        file = self.copy / path
        correct, times = file.read_bytes(), file.stat()
        try:
            file.write_bytes(source)
            # Python takes a compiled file for this one if the time and the size agree.
            os.utime(file, (times.st_atime, times.st_mtime + 3600))
            yield
        finally:
            file.write_bytes(correct)
            os.utime(file, (times.st_atime, times.st_mtime))

    def _pytest(self, tests: Sequence[str], settings: Mapping[str, str], *, timeout: int) -> Outcome:
        # Answers of the accountant that a mutant left behind would be taken for those of the next.
        shutil.rmtree(self.copy / "var", ignore_errors=True)
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MUTATION_")},
            **settings,
            "DP_ADS_HOME": str(self.copy / "var"),
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "1" if "MUTATION_SECONDS" in settings else "",
        }
        status, output, seconds = self.nursery.run_pytest(
            ["-x", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, *tests],
            folder=self.copy,
            environment=environment,
            seconds=timeout,
            wait=_LONGEST_WAIT,
        )
        if status == 0:
            return Outcome(True, "", seconds)
        if status in (-signal.SIGKILL, -signal.SIGXCPU):
            return Outcome(False, "timeout", seconds)
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            return Outcome(False, _NO_TESTS, seconds)
        if status in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
            raise BrokenTestsError(f"pytest did not run: {output[-1000:]}")
        failed = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", output, re.MULTILINE)
        return Outcome(False, failed[1] if failed else output.strip().rpartition("\n")[2], seconds)


@contextlib.contextmanager
def open_workshop(root: Path, answers: Path, libraries: Sequence[str] = LIBRARIES) -> Iterator[Workshop]:
    """Makes a workshop in a temporary folder, and removes it at the end.

    Args:
        root: The checkout.
        answers: Where outcomes are kept.
        libraries: What tests import that no mutant changes.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Compiled programs are found by their whole text, so a mutated one is never taken for another.
        kept = {
            "JAX_COMPILATION_CACHE_DIR": f"{folder}/programs",
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        with Nursery(libraries, kept) as nursery:
            yield Workshop(root, Path(folder).resolve() / "copy", answers, nursery)
