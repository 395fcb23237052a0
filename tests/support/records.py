"""Mechanism records and stored trials, for tests of accounting."""

from __future__ import annotations

from dp_core.accounting.mechanism import MechanismRecord
from dp_core.labels.record import LabelRecord
from tasks.runtime.home import write_json
from tasks.training.trial import Trial


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


def store(
    trial: Trial,
    ran: MechanismRecord | LabelRecord | None,
    *,
    verdict: str | None = "passed",
    test_loss: float | None = 0.2,
) -> Trial:
    """Writes the record and the audit's verdict that training a mechanism leaves; no audit if ``verdict`` is None."""
    mechanism = None if ran is None else ran.to_json()
    written = {"trial": trial.model_dump(mode="json"), "mechanism": mechanism, "test_loss": test_loss}
    write_json(trial.folder / "record.json", written)
    if verdict is not None:
        write_json(trial.folder / "audit.json", {"verdict": verdict})
    return trial
