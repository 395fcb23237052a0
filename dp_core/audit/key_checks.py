"""Key checks: whether the noise key and the entropy of the batches come from where they should.

Noise that somebody can guess, or that two runs share, protects nothing, whatever its distribution. The function that
makes a run's randomness is therefore called again. The key of a seeded run must be the same again, and another one for
every description that differs in one field. A secret run's must be new every time, with 256 bits that are all random.

What is kept are numbers of coincidences. The keys themselves are stored nowhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dp_core.audit.chances import binomial_chance

FALSE_ALARM_RATE = 1e-6
SECRET_KEY_WORDS = 8


class DrawnKey(NamedTuple):
    """Randomness of a run: the words of its noise key, and those of the entropy that seeds its batches."""

    noise: tuple[int, ...]
    sampling: tuple[int, ...]


class KeyEvidence(NamedTuple):
    """What was measured of a run's randomness.

    Attributes:
        secret: Whether the run is secret.
        noise_words: Number of words of its noise key.
        made_again: Whether the function returned the run's randomness again. It must for a seeded run only.
        others: How often it was called for others: with other descriptions, or again for a secret run.
        same_noise: How many of these and the run had a noise key that another one had.
        same_sampling: How many had the sampling entropy of another one.
        shared_words: How many words of the run's noise key are also in its sampling entropy.
        bits_p_value: Probability that random keys have a bit as far from one half; 1 for a seeded run.
        other_batches: Whether the sampler was seeded with something else than the run's entropy.
    """

    secret: bool
    noise_words: int
    made_again: bool
    others: int
    same_noise: int
    same_sampling: int
    shared_words: int
    bits_p_value: float
    other_batches: bool

    def defects(self) -> list[str]:
        """Returns what is wrong; a correct run is blamed with probability ``FALSE_ALARM_RATE`` at most."""
        who = "another draw" if self.secret else "a trial with another description"
        wrong = {
            "the noise key of a secret run has fewer than 256 bits": self.secret
            and self.noise_words < SECRET_KEY_WORDS,
            "the randomness of a secret run is not drawn anew": self.secret and self.made_again,
            "the randomness of a seeded run does not follow from its description": not self.secret
            and not self.made_again,
            f"the noise key is shared with {who} ({self.same_noise:,} of {self.others:,})": self.same_noise > 0,
            f"the entropy of the batches is shared with {who} ({self.same_sampling:,} of {self.others:,})": (
                self.same_sampling > 0
            ),
            f"noise key and entropy of the batches have {self.shared_words} words in common": self.shared_words > 0,
            f"the bits of secret keys are not random (p = {self.bits_p_value:.1e})": self.bits_p_value
            < FALSE_ALARM_RATE,
            "the batches were not drawn with the run's entropy": self.other_batches,
        }
        return [what for what, found in wrong.items() if found]


def compare_keys(
    own: DrawnKey, again: DrawnKey, others: Sequence[DrawnKey], *, secret: bool, sampler_entropy: Sequence[int]
) -> KeyEvidence:
    """Measures a run's randomness against other draws of the same function.

    Args:
        own: The run's.
        again: What the function returns for the same trial.
        others: What it returns for trials that differ in one field, or again and again for a secret one.
        secret: Whether the run is secret.
        sampler_entropy: What the run's sampler was seeded with.
    """
    every = [own, *others]
    return KeyEvidence(
        secret=secret,
        noise_words=len(own.noise),
        made_again=own == again,
        others=len(others),
        same_noise=len(every) - len({key.noise for key in every}),
        same_sampling=len(every) - len({key.sampling for key in every}),
        shared_words=len(set(own.noise) & set(own.sampling)) if len(own.sampling) > 1 else 0,
        bits_p_value=_chance_of_bits(others) if secret else 1.0,
        other_batches=tuple(sampler_entropy) != own.sampling,
    )


def _chance_of_bits(keys: Sequence[DrawnKey]) -> float:
    """Returns the probability that some bit of random keys is set as seldom or as often, over all bits."""
    words = np.array([[*key.noise, *key.sampling] for key in keys], np.uint32)
    bits = np.unpackbits(words.view(np.uint8), axis=1)
    return float(min(1.0, binomial_chance(bits.sum(axis=0), len(keys), 0.5).min() * bits.shape[1]))
