"""A trial's arrays on disk: the finished model, and the state of a run that may be interrupted."""

from __future__ import annotations

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict

from tasks.home import read_json, whole_directory, write_json


def save_parameters(path: Path, params: Any) -> None:
    """Writes a model's parameters under their names, readable with numpy alone."""
    arrays: dict[str, Any] = {"/".join(key): np.asarray(value) for key, value in flatten_dict(params).items()}
    np.savez(path, **arrays)


@dataclasses.dataclass
class Progress:
    """What has been run so far: counted, step by step."""

    steps: int = 0
    # The size of every batch, and how many batches each watched example was in.
    batch_sizes: list[int] = dataclasses.field(default_factory=list)
    participations: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    # What a run that goes on must have in common with what was run: which canaries are in, and the
    # order of the examples, where an epoch deals them out.
    included_canaries: list[bool] | None = None
    sampling_entropy: list[int] | None = None
    seconds: float = 0.0
    recent_losses: list[float] = dataclasses.field(default_factory=list)
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)


class Checkpoint:
    """Saves an unfinished run now and then, and finds the newest save.

    Each save is a folder ``<name>.<steps>``, written whole before the earlier one goes.
    """

    def __init__(self, folder: Path, every_seconds: float) -> None:
        self._folder = folder
        self._every_seconds = every_seconds
        self._last = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._last >= self._every_seconds

    def save(self, state: Any, progress: Progress, *, write: bool = True) -> None:
        """Saves a state; of several processes only one is to ``write``."""
        self._last = time.monotonic()
        if not write:
            return
        earlier = self._saved()
        with whole_directory(self._folder.with_name(f"{self._folder.name}.{progress.steps}")) as folder:
            arrays: dict[str, Any] = {f"leaf_{i}": np.asarray(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}
            np.savez(folder / "state.npz", **arrays)
            counts = progress.participations.tolist()
            write_json(folder / "progress.json", {**dataclasses.asdict(progress), "participations": counts})
        for folder in earlier:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self, fresh: Any) -> tuple[Any, Progress]:
        """The newest saved state (as numpy arrays) and progress, or ``fresh`` and none."""
        saved = self._saved()
        if not saved:
            return fresh, Progress()
        leaves, structure = jax.tree.flatten(fresh)
        with np.load(saved[-1] / "state.npz") as file:
            stored = [file[f"leaf_{index}"] for index in range(len(leaves))]
        progress = Progress(**read_json(saved[-1] / "progress.json"))
        progress.participations = np.asarray(progress.participations, np.int64)
        return jax.tree.unflatten(structure, stored), progress

    def discard(self) -> None:
        for folder in self._saved():
            shutil.rmtree(folder, ignore_errors=True)

    def _saved(self) -> list[Path]:
        found = self._folder.parent.glob(f"{self._folder.name}.*")
        return sorted(found, key=lambda folder: int(folder.suffix[1:]))
