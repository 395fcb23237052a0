"""Every trial has noise and batches of its own; initial parameters and LabelDP's responses follow from the seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dp_core.sampling import make_sampler
from dp_core.training.generators import generator_of
from dp_core.training.noise import add_gaussian
from tasks.data.prepared import Prepared
from tasks.training import randomness, trial
from tasks.training.noisy_labels import draw_labels
from tasks.training.randomness import Randomness
from tests.support.trials import label_trial, make_prepared, make_trial

# One change of each kind that a sweep makes, and some that it does not.
CHANGES: list[dict[str, Any]] = [
    {"l2_clip_norm": 2.0},
    {"noise_multiplier": 1.5},
    {"epsilon": 2.0},
    {"learning_rate": 0.2},
    {"optimizer": "adam"},
    {"batch_size": 200},
    {"epochs": 3},
    {"sampler": "balls_in_bins"},
    {"clipping": "automatic"},
    {"accountant": "RDP"},
    {"task": "pconvs"},
    {"seed": 1},
    {"evaluations": 4},
    {"canaries": 10},
    {"data_fingerprint": "other"},
]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder: Path = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder))
        return make_prepared(folder / "raw")


def words(key: jax.Array) -> tuple[int, ...]:
    return tuple(np.asarray(jax.random.key_data(key)).tolist())


def test_no_two_trials_share_noise_or_batches(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Randomness.for_trial(make_trial(prepared, **change)) for change in ({}, *CHANGES)]
    monkeypatch.setattr(randomness, "TRAINING_VERSION", trial.TRAINING_VERSION + 1)
    found.append(Randomness.for_trial(make_trial(prepared)))
    assert len({words(each.noise_key) for each in found}) == len(found)
    assert len({each.sampling_entropy for each in found}) == len(found)


def test_a_seeded_trial_repeats_its_randomness(prepared: Prepared) -> None:
    first, second = (Randomness.for_trial(make_trial(prepared)) for _ in range(2))
    assert words(first.noise_key) == words(second.noise_key)
    assert first.sampling_entropy == second.sampling_entropy
    assert len(first.sampling_entropy) * 32 >= 128
    assert generator_of(first.noise_key).summands == 1


def test_secret_randomness_is_long_and_never_repeats(prepared: Prepared) -> None:
    first, second = (Randomness.for_trial(make_trial(prepared, randomness="secret")) for _ in range(2))
    assert jax.random.key_data(first.noise_key).nbytes * 8 == 256
    assert not set(words(first.noise_key)) & set(words(second.noise_key))
    assert len(first.sampling_entropy) * 32 >= 128
    assert not set(first.sampling_entropy) & {*second.sampling_entropy, *words(first.noise_key)}
    assert first.label_entropy is None
    assert generator_of(first.noise_key).summands == 4


def test_the_noise_of_two_trials_does_not_cancel(prepared: Prepared) -> None:
    """The attack of the issue: 2·g₈ − g₁₆ of two trials with one seed and clip norms 8 and 16 has full noise.

    Its variance is the sum of both, (2·8)² + 16², to five standard errors; about one seed in a million fails
    (fixed here). With a common key it would be 0.
    """
    n = 20_000
    sums = {
        clip_norm: np.asarray(
            add_gaussian(
                jax.random.fold_in(Randomness.for_trial(make_trial(prepared, l2_clip_norm=clip_norm)).noise_key, 0),
                {"kernel": jnp.zeros(n)},
                jnp.float32(clip_norm),
            )["kernel"],
            np.float64,
        )
        for clip_norm in (8.0, 16.0)
    }
    combined = 2 * sums[8.0] - sums[16.0]
    assert abs(combined.var() / 512 - 1) < 5 * (2 / n) ** 0.5
    assert stats.kstest(combined / 512**0.5, "norm").pvalue > 1e-5


def test_the_batches_of_two_trials_are_independent(prepared: Prepared) -> None:
    """At q = 0.1, two independent batches of 2,400 examples share 24 ± 4.9; within five deviations in all."""
    samplers = [
        make_sampler(
            examples=2400,
            expected_batch_size=240,
            steps=50,
            target_delta=1e-5,
            entropy=Randomness.for_trial(make_trial(prepared, l2_clip_norm=clip_norm)).sampling_entropy,
        )
        for clip_norm in (8.0, 16.0)
    ]
    shared = sum(len(np.intersect1d(*(each.batch(step).indices for each in samplers))) for step in range(50))
    assert abs(shared - 50 * 24) < 5 * (50 * 2400 * 0.01 * 0.99) ** 0.5


def test_label_trials_that_train_differently_share_one_draw(prepared: Prepared) -> None:
    labels = np.asarray(prepared.split("train", "pcvr").labels)
    changes: list[dict[str, Any]] = [{}, {"learning_rate": 0.2}, {"optimizer": "adam"}, {"epochs": 3}]
    other: list[dict[str, Any]] = [{"seed": 1}, {"epsilon": 3.0}]

    def draw(change: dict[str, Any]) -> str:
        made = label_trial(prepared, **change)
        entropy = Randomness.for_trial(made).label_entropy
        assert entropy is not None
        return draw_labels(made, labels, entropy).record.draw

    assert len({draw(change) for change in changes}) == 1
    assert len({draw(change) for change in (changes[0], *other)}) == 3
