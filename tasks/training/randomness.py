"""Where a run's noise and batches come from: its seed, or the operating system."""

from __future__ import annotations

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np

from tasks.hardware import first_processes
from tasks.trial import Trial


@dataclasses.dataclass(frozen=True)
class Randomness:
    noise_key: jax.Array
    sampling_entropy: tuple[int, ...]

    def coins(self, count: int) -> np.ndarray:
        """Fair coins, from a stream of their own: samplers spawn theirs by (step,) and by (epoch, 0)."""
        stream = np.random.SeedSequence(self.sampling_entropy, spawn_key=(0, 1))
        return np.random.default_rng(stream).random(count) < 0.5

    @classmethod
    def for_trial(cls, trial: Trial) -> Randomness:
        if trial.randomness == "seeded":
            return cls(jax.random.key(trial.seed), (trial.seed, 0))
        # Noise and batches are secret: whoever knows them can undo the protection. They are kept
        # nowhere; after an interruption the steps that are run again draw new ones.
        # Several processes draw the same batches and noise: the first one's.
        secret = np.asarray(first_processes(np.frombuffer(os.urandom(24), np.uint32)))
        return cls(jax.random.wrap_key_data(jnp.asarray(secret[:2])), tuple(int(word) for word in secret[2:]))
