"""Mechanism records for tests of accounting."""

from __future__ import annotations

from dp_core.accounting.mechanism import MechanismRecord


def record(**changes: object) -> MechanismRecord:
    values: dict[str, object] = {
        "sampler": "poisson",
        "examples": 100_000,
        "expected_batch_size": 1000,
        "max_batch_size": 1300,
        "steps": 500,
        "noise_multiplier": 1.0,
        "l2_clip_norm": 2.0,
    }
    return MechanismRecord(**{**values, **changes})  # type: ignore[arg-type]
