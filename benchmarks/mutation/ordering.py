"""A pytest plugin: runs the quickest tests first, up to a budget, and records how long each test took.

It is copied beside the mutated code and reads its settings from the environment:

- ``MUTATION_SECONDS``: a JSON file of seconds by test. Tests run in that order; those that are not in it are left out.
- ``MUTATION_BUDGET``: the seconds that the tests may take together, by that file. The slowest are left out.
- ``MUTATION_RECORD``: a JSON file to write the seconds of the tests to, instead.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

_taken: dict[str, float] = {}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests, and drops those that the budget does not cover."""
    if "MUTATION_SECONDS" not in os.environ:
        return
    seconds = json.loads(Path(os.environ["MUTATION_SECONDS"]).read_text())
    left = float(os.environ["MUTATION_BUDGET"])
    kept: list[pytest.Item] = []
    for item in sorted((item for item in items if item.nodeid in seconds), key=lambda item: seconds[item.nodeid]):
        left -= seconds[item.nodeid]
        if left >= 0:
            kept.append(item)
    items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures processor time, with setup and teardown: what else runs on the machine must not change the order."""
    began = time.process_time()
    result = yield
    _taken[item.nodeid] = time.process_time() - began
    return result


def pytest_sessionfinish() -> None:
    if "MUTATION_RECORD" in os.environ:
        Path(os.environ["MUTATION_RECORD"]).write_text(json.dumps(_taken))
