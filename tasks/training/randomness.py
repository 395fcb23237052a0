"""The randomness of a run's noise and batches: from its description, or from the operating system."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.audit.key_checks import DrawnKey
from dp_core.training.generators import CHACHA_KEY_WORDS, chacha_key
from tasks.runtime.errors import UserError
from tasks.training.hardware import first_processes
from tasks.training.trial import TRAINING_VERSION, Trial

_THREEFRY_KEY_WORDS = 2
_SAMPLING_WORDS = 8


@dataclasses.dataclass(frozen=True)
class Randomness:
    """The key of a run's noise, and the entropy that seeds its batches and other draws.

    Attributes:
        noise_key: A Threefry key if the run is seeded, a ChaCha20 key if it is secret. The generator and the form of
            the noise follow from it (``dp_core.training.generators``).
        sampling_entropy: Seeds the batches and the coins of canaries.
        label_entropy: Seeds the responses of LabelDP. None if they are drawn from ``sampling_entropy``.
    """

    noise_key: jax.Array
    sampling_entropy: tuple[int, ...]
    label_entropy: tuple[int, ...] | None = None

    def coins(self, count: int) -> np.ndarray:
        """Returns fair coin tosses, from a stream that samplers do not use: theirs are (step,) and (epoch, 0)."""
        stream = np.random.SeedSequence(self.sampling_entropy, spawn_key=(0, 1))
        return np.random.default_rng(stream).random(count) < 0.5

    def drawn(self) -> DrawnKey:
        """Returns the words of the key and of the entropy, for the audit."""
        words = np.asarray(jax.random.key_data(self.noise_key)).ravel()
        return DrawnKey(tuple(words.tolist()), tuple(self.sampling_entropy))

    @classmethod
    def for_trial(cls, trial: Trial) -> Randomness:
        """Returns the randomness of a trial. No two different trials share noise or batches.

        With shared noise, a linear combination of two trials' first steps has none, and no ε holds for the two
        together. A seeded trial's randomness is therefore a hash of its whole description, the seed included. Only the
        responses of LabelDP follow from the seed: trials that differ in how they train are meant to share one draw of
        them, which is then counted once (``tasks.training.noisy_labels``). Initial parameters follow from the seed too.

        A trial without a guarantee may share the batches of a seeded one (``sampled_like``), which has none either.

        Whoever knows the noise and batches can undo the protection, so those of a secret trial are stored nowhere.
        Steps that are repeated after an interruption draw new ones. Several processes share the first one's draw.
        """
        if trial.randomness == "seeded":
            key_words, sampling = np.split(_described(trial), [_THREEFRY_KEY_WORDS])
            if trial.sampled_like is not None:
                _, sampling = np.split(_described(_twin(trial)), [_THREEFRY_KEY_WORDS])
            return cls(_threefry_key(key_words), tuple(sampling.tolist()), (trial.seed, 0))
        drawn = np.frombuffer(os.urandom(4 * (CHACHA_KEY_WORDS + _SAMPLING_WORDS)), np.uint32)
        key_words, sampling = np.split(np.asarray(first_processes(drawn)), [CHACHA_KEY_WORDS])
        if trial.mechanism != "dp_sgd":
            # No noise is drawn. A key of this type selects the program that seeded trials have compiled already.
            return cls(_threefry_key(key_words[:_THREEFRY_KEY_WORDS]), tuple(sampling.tolist()))
        return cls(chacha_key(key_words), tuple(sampling.tolist()))


def _twin(trial: Trial) -> Trial:
    """Returns the trial whose batches a trial shares. Raises ``UserError`` unless neither has a guarantee to lose."""
    from tasks.training.finished import FinishedTrial

    twin = FinishedTrial.open(trial.sampled_like or "").trial
    if trial.epsilon is not None or twin.randomness != "seeded":
        raise UserError(
            f"{trial.label()} cannot share the batches of trial {trial.sampled_like}: only a trial without a guarantee "
            "can, and only those of a seeded one"
        )
    return twin


def changed_descriptions(trial: Trial) -> list[Trial]:
    """Returns copies of a trial that differ from it in one number or name each. They need not be valid trials."""
    changed = []
    for name, value in trial:
        if name in ("randomness", "mechanism") or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            # Doubled, so that it differs however large it is.
            changed.append(trial.model_copy(update={name: 2 * value + 1}))
        elif isinstance(value, str):
            changed.append(trial.model_copy(update={name: f"another {name}"}))
    return changed


def _threefry_key(words: np.ndarray) -> jax.Array:
    return jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")


def _described(trial: Trial) -> np.ndarray:
    """Returns the SHA-256 of the trial's description, as eight uint32 words: the same on every machine."""
    description = ["randomness", TRAINING_VERSION, trial.model_dump(mode="json")]
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).digest()
    return np.frombuffer(digest, "<u4").astype(np.uint32)
