"""Fuzzers that go on for some minutes: the same property as in a test, with new examples until the time is up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import hypothesis

# What `make fuzz` sets; by default short, so that the fuzzers themselves are tried quickly.
MINUTES = float(os.environ.get("FUZZ_MINUTES", "0.2"))
_AT_ONCE = 100


def fuzz(check: Callable[..., None], **strategies: Any) -> None:
    """Calls ``check`` with examples of the strategies until the minutes are over, and prints how many there were."""
    calls = 0

    def counted(**values: Any) -> None:
        nonlocal calls
        calls += 1
        check(**values)

    counted.__name__ = check.__name__
    until = time.monotonic() + 60 * MINUTES
    settings = hypothesis.settings(
        max_examples=_AT_ONCE,
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    while time.monotonic() < until:
        settings(hypothesis.given(**strategies)(counted))()
    print(f"{calls:,} examples in {MINUTES:g} minutes")
