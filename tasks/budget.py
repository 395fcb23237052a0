"""Accounting with a memory on disk: the same question is worked out once."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dp_core import accounting, mechanism, sampling
from dp_core.accounting import EpsilonBound, calibrate_noise
from dp_core.mechanism import MechanismRecord
from dp_core.sampling import TRUNCATION_SHARE_OF_DELTA, poisson_event
from tasks.home import home, read_json, short_hash, write_json


def noise_multiplier_for(*, epsilon: float, delta: float, sampling_probability: float, steps: int) -> float:
    """The noise multiplier for a budget, leaving truncation its share of δ."""

    def calibrate() -> float:
        return calibrate_noise(
            lambda noise_multiplier: poisson_event(
                sampling_probability=sampling_probability, noise_multiplier=noise_multiplier, steps=steps
            ),
            target_epsilon=epsilon,
            target_delta=delta * (1 - TRUNCATION_SHARE_OF_DELTA),
        )

    return _remembered(["calibrate", epsilon, delta, sampling_probability, steps], calibrate)


def epsilon_of(record: MechanismRecord, delta: float) -> EpsilonBound:
    """ε of a mechanism as it was run."""
    question = ["epsilon", repr(record.event()), delta, record.truncation_delta()]
    return EpsilonBound(*_remembered(question, lambda: list(record.epsilon_bound(delta))))


def _remembered(question: list[Any], answer: Callable[[], Any]) -> Any:
    path = home() / "cache" / "accounting" / f"{short_hash([_accounting_version(), question])}.json"
    if path.exists():
        return read_json(path)["answer"]
    value = answer()
    if isinstance(value, list) and not math.isfinite(value[0]):
        return value  # JSON has no infinity, and this took no time
    write_json(path, {"question": question, "answer": value})
    return value


def _accounting_version() -> list[str]:
    """What an answer depends on besides the question: dp_accounting, and our code on top of it."""
    sources = [Path(str(module.__file__)).read_text() for module in (accounting, mechanism, sampling)]
    return [version("dp-accounting"), short_hash(sources)]
