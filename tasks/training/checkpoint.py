"""Checkpoints: the saved state of a run that may be interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.audit.step_log import StepLog
from tasks.runtime.home import read_json, whole_directory, write_json
from tasks.training.finished import CurvePoint


class Mark(TypedDict):
    """A state of the run: the number of steps so far, and the digest of the state."""

    step: int
    state: str


@dataclasses.dataclass
class Progress:
    """What a run has done so far.

    Attributes:
      steps: The number of steps that updated the model.
      sampling: The counts of all batches; None before the first one.
      included_canaries: Which canaries are in the training data; drawn once per run.
      sampling_entropy: What seeds the order of an epoch's examples or the noisy labels, where one draw must last for
        the whole run.
      label_sum: The noisy sum of labels that the initial bias was computed from, drawn once per run.
      started: When the first attempt began, in seconds since 1970.
      seconds: The time spent, over all attempts.
      recent_losses: The training losses since the last evaluation.
      curve: The losses at each evaluation.
      log: What the device reported of each step, against what was sampled.
      attempts: The state that each attempt began with: the first, and one for each interruption.
      saves: The states that were saved in checkpoints.
    """

    steps: int = 0
    sampling: SamplingCounts | None = None
    included_canaries: list[bool] | None = None
    sampling_entropy: list[int] | None = None
    label_sum: int | None = None
    started: float = dataclasses.field(default_factory=time.time)
    seconds: float = 0.0
    recent_losses: list[float] = dataclasses.field(default_factory=list)
    curve: list[CurvePoint] = dataclasses.field(default_factory=list)
    log: StepLog = dataclasses.field(default_factory=StepLog)
    attempts: list[Mark] = dataclasses.field(default_factory=list)
    saves: list[Mark] = dataclasses.field(default_factory=list)


def digest(state: Any) -> str:
    """Returns a hash of all arrays of a state."""
    hashed = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(state):
        hashed.update(np.ascontiguousarray(leaf).tobytes())
    return hashed.hexdigest()


class Checkpoint:
    """Saves an unfinished run at intervals, and restores the newest save.

    Each save is a folder ``<name>.<steps>``. It is complete before the earlier one is deleted.
    """

    def __init__(self, folder: Path, every_seconds: float) -> None:
        self._folder = folder
        self._every_seconds = every_seconds
        self._last = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._every_seconds

    def save(self, state: Any, progress: Progress, *, write: bool = True) -> None:
        """Saves a state. If several processes train together, only one of them must ``write``."""
        self._last = time.monotonic()
        progress.saves.append({"step": progress.steps, "state": digest(state)})
        if not write:
            return
        earlier = self._saved()
        with whole_directory(self._folder.with_name(f"{self._folder.name}.{progress.steps}")) as folder:
            arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
            np.savez(folder / "state.npz", **arrays)
            counts = progress.sampling and progress.sampling.to_json()
            rest = dataclasses.asdict(dataclasses.replace(progress, sampling=None))
            write_json(folder / "progress.json", {**rest, "sampling": counts})
        for folder in earlier:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self, fresh: Any) -> tuple[Any, Progress]:
        """Returns the newest saved state (as NumPy arrays) and its progress, or ``fresh`` and no progress."""
        saved = self._saved()
        if not saved:
            return fresh, Progress()
        leaves, structure = jax.tree.flatten(fresh)
        with np.load(saved[-1] / "state.npz") as file:
            stored = [file[f"leaf_{index}"] for index in range(len(leaves))]
        stored_progress = read_json(saved[-1] / "progress.json")
        counts, log = stored_progress.pop("sampling"), StepLog(**stored_progress.pop("log"))
        sampling = counts and SamplingCounts.from_json(counts)
        progress = Progress(**stored_progress, sampling=sampling, log=log)
        return jax.tree.unflatten(structure, stored), progress

    def discard(self) -> None:
        for folder in self._saved():
            shutil.rmtree(folder, ignore_errors=True)

    def _saved(self) -> list[Path]:
        found = self._folder.parent.glob(f"{self._folder.name}.*")
        return sorted(found, key=lambda folder: int(folder.suffix[1:]))
