"""The randomness of a run's noise and batches: from its seed, or from the operating system."""

from __future__ import annotations

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np

from tasks.training.hardware import first_processes
from tasks.training.trial import Trial


@dataclasses.dataclass(frozen=True)
class Randomness:
    """The key of a run's noise, and the entropy that seeds its batches and other draws."""

    noise_key: jax.Array
    sampling_entropy: tuple[int, ...]

    def coins(self, count: int) -> np.ndarray:
        """Returns fair coin tosses, from a stream that samplers do not use: theirs are (step,) and (epoch, 0)."""
        stream = np.random.SeedSequence(self.sampling_entropy, spawn_key=(0, 1))
        return np.random.default_rng(stream).random(count) < 0.5

    @classmethod
    def for_trial(cls, trial: Trial) -> Randomness:
        if trial.randomness == "seeded":
            return cls(jax.random.key(trial.seed), (trial.seed, 0))
        # Whoever knows the noise and batches can undo the protection, so they are stored nowhere. Steps that are
        # repeated after an interruption draw new ones. Several processes share the first one's draw.
        secret = np.asarray(first_processes(np.frombuffer(os.urandom(24), np.uint32)))
        return cls(jax.random.wrap_key_data(jnp.asarray(secret[:2])), tuple(int(word) for word in secret[2:]))
