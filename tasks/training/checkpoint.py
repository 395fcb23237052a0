"""Checkpoints: the saved state of a run that may be interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
import time
import zipfile
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

from dp_core.audit.sampling_counts import SamplingCounts
from dp_core.audit.step_log import StepLog
from tasks.integrity.manifest import check_folder, write_manifest
from tasks.owners.attempts import Attempts, Interruption
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, owners_alone, read_json, whole_directory, write_json
from tasks.runtime.progress import say
from tasks.training.finished import CurvePoint

UNFINISHED = ".unfinished"
# Ends the name of the file beside a run's saves that says how far each attempt came.
ATTEMPTS = ".attempts"
# How many saves of a run are kept.
KEPT = 2
_STATE, _PROGRESS = "state.npz", "progress.json"


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
      attempts: The state that each attempt began with: the first, and one for each interruption after a save.
      interruptions: The attempts that did not end the run, and what they ran in vain.
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
    interruptions: list[Interruption] = dataclasses.field(default_factory=list)


def digest(state: Any) -> str:
    """Returns a hash of all arrays of a state."""
    hashed = hashlib.blake2b(digest_size=16)
    for leaf in jax.tree.leaves(state):
        hashed.update(np.ascontiguousarray(leaf).tobytes())
    return hashed.hexdigest()


class Checkpoint:
    """Saves an unfinished run at intervals, and restores the newest save that is whole.

    Each save is a folder ``<name>.<steps>`` with a manifest, complete before an earlier one is deleted. The two newest
    are kept: if one is damaged, the run continues from the other.

    The format is NumPy's and JSON with our manifest, as of all other results, rather than orbax: a save is one folder
    that is renamed, so that every damage is found by the same check, and NumPy alone reads it.

    Args:
      folder: The path of the saves, without the number of steps.
      every_seconds: The time between saves.
      secret: Whether only the owner may read the saves. Whoever reads those of a secret run may subtract noise.
    """

    def __init__(self, folder: Path, every_seconds: float, *, secret: bool = True) -> None:
        self._folder = folder
        self._every_seconds = every_seconds
        self._secret = secret
        self.attempts = Attempts(folder.with_name(f"{folder.name}{ATTEMPTS}"))
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
        final = self._folder.with_name(f"{self._folder.name}.{progress.steps}")
        # A temporary folder is its owner's alone, so nobody reads a file of it before its mode is set.
        with whole_directory(final, mode=0o700 if self._secret else 0o755) as folder:
            arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
            np.savez(folder / _STATE, **arrays)
            counts = progress.sampling and progress.sampling.to_json()
            rest = dataclasses.asdict(dataclasses.replace(progress, sampling=None))
            write_json(folder / _PROGRESS, {**rest, "sampling": counts})
            write_manifest(folder)
            if self._secret:
                for path in folder.iterdir():
                    path.chmod(0o600)
        for folder in [path for path in earlier if path != final][: -(KEPT - 1)]:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self, fresh: Any) -> tuple[Any, Progress]:
        """Returns the newest whole state (as NumPy arrays) and its progress, or ``fresh`` and no progress.

        A damaged save is said and deleted: a later save may have its name.
        """
        saved = self._saved()
        for folder in reversed(saved):
            try:
                return _read(folder, fresh)
            except UserError as error:
                say(f"the checkpoint {folder} is not used: {str(error).partition('. ')[0]}")
                shutil.rmtree(folder, ignore_errors=True)
        if saved:
            say(f"no checkpoint of {self._folder.name} is whole: its training starts from the beginning")
        return fresh, Progress()

    def discard(self) -> None:
        """Deletes all saves, also those that a killed process had not written whole."""
        self.attempts.discard()
        half_written = self._folder.parent.glob(f".{self._folder.name}.*")
        for folder in [*self._saved(), *half_written]:
            shutil.rmtree(folder, ignore_errors=True)

    def _saved(self) -> list[Path]:
        found = self._folder.parent.glob(f"{self._folder.name}.*")
        return sorted((path for path in found if path.suffix[1:].isdecimal()), key=lambda path: int(path.suffix[1:]))


def _read(folder: Path, fresh: Any) -> tuple[Any, Progress]:
    """Reads a save. Raises ``UserError`` if it is damaged, or of a state that is not made like ``fresh``."""
    if check_folder(folder, fully=True) is None:
        raise UserError(f"{folder} has no manifest")
    leaves, structure = jax.tree.flatten(fresh)
    try:
        with np.load(folder / _STATE, allow_pickle=False) as file:
            stored = [file[f"leaf_{index}"] for index in range(len(leaves))]
        values = read_json(folder / _PROGRESS)
        counts, log = values.pop("sampling"), StepLog(**values.pop("log"))
        progress = Progress(**values, sampling=counts and SamplingCounts.from_json(counts), log=log)
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise UserError(f"another version wrote it ({type(error).__name__})") from None
    if any(found.shape != np.shape(leaf) for found, leaf in zip(stored, leaves, strict=True)):
        raise UserError("its arrays have other shapes than the model's")
    return jax.tree.unflatten(structure, stored), progress


def checkpoint_of(key: str, every_seconds: float = 60.0, *, secret: bool = True) -> Checkpoint:
    """Returns the checkpoint of the trial with a key."""
    # Evidence, and the state of a run that is not finished, are not private.
    return Checkpoint(owners_alone(home() / "trials") / UNFINISHED / key, every_seconds, secret=secret)
