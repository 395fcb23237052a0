"""Runs tests on mutated code, in a copy of the checkout. The checkout itself is never changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.mutation import ordering
from tasks.runtime.home import write_json

# A mutant whose tests take longer is killed: tests are chosen to take at most half as long on correct code.
TIMEOUT = 60.0
BUDGET = 25.0

_LEFT_OUT = shutil.ignore_patterns(".*", "var", "__pycache__")
_PLUGIN = "mutation_ordering"


class BrokenTestsError(RuntimeError):
    """Tests fail without any mutation, so what they say of mutants means nothing."""


class Outcome(NamedTuple):
    """What became of the tests.

    Attributes:
        passed: Whether all of them passed.
        by: The first that failed, or "timeout".
        seconds: How long it took.
    """

    passed: bool
    by: str
    seconds: float


class Workshop:
    """A copy of the checkout, in which one file at a time is mutated.

    Attributes:
        root: The checkout.
        copy: Its copy.
        answers: A JSON file of earlier outcomes, by the hash of the question: the code, the tests and their files.
    """

    def __init__(self, root: Path, copy: Path, answers: Path) -> None:
        self.root, self.copy, self.answers = root, copy, answers
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
                outcome = self._pytest([test], {"MUTATION_RECORD": str(record)}, timeout=20 * TIMEOUT)
                if not outcome.passed:
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
                self._remember(question, list(self._pytest(tests, settings, timeout=TIMEOUT)))
        return Outcome(*self.known[question])

    def _remember(self, question: str, answer: Any) -> None:
        self.known[question] = answer
        write_json(self.answers, self.known)

    def _hash(self, tests: Sequence[str]) -> str:
        """Returns a hash of tests: of their names and of the files that hold them."""
        files = sorted({test.partition("::")[0] for test in tests})
        contents = [hashlib.sha256((self.root / file).read_bytes()).hexdigest() for file in files]
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

    def _pytest(self, tests: Sequence[str], settings: Mapping[str, str], *, timeout: float) -> Outcome:
        """Runs pytest in a new process: JAX must not be forked after its start."""
        began = time.monotonic()
        # Answers of the accountant that a mutant left behind would be taken for those of the next.
        shutil.rmtree(self.copy / "var", ignore_errors=True)
        mutated = "MUTATION_SECONDS" in settings
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("MUTATION_")},
            **settings,
            "DP_ADS_HOME": str(self.copy / "var"),
            "PYTHONPATH": str(self.copy),
            "PYTHONDONTWRITEBYTECODE": "1" if mutated else "",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", _PLUGIN, *tests]
        with subprocess.Popen(
            command,
            cwd=self.copy,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
                return Outcome(False, "timeout", timeout)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        by = failed[1] if failed else output.strip().rpartition("\n")[2]
        return Outcome(process.returncode == 0, "" if process.returncode == 0 else by, time.monotonic() - began)
