"""More planted bugs: those that concern few steps, few examples, certain batches, or the source of the randomness."""

from __future__ import annotations

from typing import Any

from tests.planted.bugs import ADAPTIVE, FACTORS, LOOP, NOISED, NOISES, ONE_PASS, SETUP, STEP, TRAIN, Bug

SECRET: dict[str, Any] = {"randomness": "secret"}

EXAMPLES = "is not the oracle's (clipping, sum or scale)"
NOISE = "is not the oracle's (noise or its scale)"
GIVEN = "ran with another method, noise key or numbers"
CHANGED = "the state was changed outside of the compiled program"

FOR_TRIAL = "tasks.training.randomness:Randomness.for_trial"
NOISY_UPDATE, ADD_GAUSSIAN = f"{STEP}:noisy_update", f"{NOISES}:add_gaussian"
SUM, TRAIN_LOOP = f"{STEP}:sum_gradients", f"{LOOP}:_train"
DEVIATION = "deviation = hyper.noise_multiplier * hyper.sensitivity * state.l2_clip_norm"
CLIP_NORM = "l2_clip_norm=state.l2_clip_norm"
SEEDED_KEY, SECRET_KEY = "return cls(_threefry_key(key_words),", "return cls(chacha_key(key_words),"
DRAWN = "drawn = np.frombuffer(os.urandom(4 * (CHACHA_KEY_WORDS + _SAMPLING_WORDS)), np.uint32)"
QUEUED = "in_flight.append((dispatch, reports))"


def _unless(condition: str) -> str:
    """Returns the factors, without clipping where the condition holds."""
    return f"{FACTORS}; factors = jnp.where({condition}, share * mask, factors)"


MORE_BUGS: dict[str, Bug] = {
    # Few examples, or certain batches.
    "large integers are not clipped": Bug(ONE_PASS, FACTORS, _unless("batch.integers[:, 0] > 6.89"), EXAMPLES),
    "one example in a hundred is not clipped": Bug(
        ONE_PASS, FACTORS, _unless("(batch.integers[:, 0] * 1000 % 100).astype(int) == 7"), EXAMPLES
    ),
    "batches of 90 to 100 rows are not clipped": Bug(
        ONE_PASS, FACTORS, _unless("(jnp.sum(mask) > 90) & (jnp.sum(mask) < 100)"), EXAMPLES
    ),
    "row 60 is not clipped": Bug(ONE_PASS, FACTORS, _unless("jnp.arange(len(mask)) == 60"), EXAMPLES),
    "gradients just longer than the clip norm are not clipped": Bug(
        ONE_PASS, FACTORS, _unless("norms < 1.05 * l2_clip_norm"), EXAMPLES
    ),
    "gradients just longer than the clip norm are not counted": Bug(
        ONE_PASS,
        "first_of_group & (norms > l2_clip_norm)",
        "first_of_group & (norms > 1.05 * l2_clip_norm)",
        "times what the noisy count says",
        ADAPTIVE,
    ),
    # Few steps.
    "no clipping at every tenth step": Bug(
        SUM, CLIP_NORM, "l2_clip_norm=jnp.where(state.step % 10 == 7, 1e3, state.l2_clip_norm)", EXAMPLES
    ),
    "no clipping at the first step": Bug(
        SUM, CLIP_NORM, "l2_clip_norm=jnp.where(state.step == 0, 1e3, state.l2_clip_norm)", EXAMPLES
    ),
    "a clip norm that grows": Bug(
        SUM, CLIP_NORM, "l2_clip_norm=state.l2_clip_norm * (1 + 0.002 * state.step)", EXAMPLES
    ),
    "no noise at every tenth step": Bug(NOISY_UPDATE, DEVIATION, f"{DEVIATION} * (state.step % 10 != 7)", NOISE),
    "no noise at the last step": Bug(
        NOISY_UPDATE, DEVIATION, f"{DEVIATION} * (state.step < hyper.total_steps - 1)", NOISE
    ),
    "no noise in the middle of a dispatch": Bug(
        f"{STEP}:make_trainer",
        "noise_key, hyper)\n            return state, jax.tree.map(",
        "noise_key, hyper._replace(noise_multiplier=((index < 2) | (index > 5)) * hyper.noise_multiplier))\n"
        "            return state, jax.tree.map(",
        "does not add the noise of its key",
    ),
    # Noise.
    "noise one per cent too small": Bug(
        ADD_GAUSSIAN, NOISED, NOISED.replace("standard_deviation", "0.99 * standard_deviation"), "times the stated"
    ),
    "the same noise for two coordinates": Bug(
        ADD_GAUSSIAN,
        NOISED,
        "twice = jnp.repeat(noise.ravel()[::2], 2)[: noise.size].reshape(leaf.shape); "
        "noised.append(leaf + standard_deviation * twice)",
        "coordinates 1 apart",
    ),
    "secret noise repeats within a block": Bug(
        f"{NOISES}:_drawn",
        "for start in range(0, len(draws), generator.summands)",
        "for start in [0] * (len(draws) // generator.summands)",
        "coordinates 1 apart",
        SECRET,
    ),
    # Keys.
    "the same key for all trials": Bug(
        FOR_TRIAL, SEEDED_KEY, "return cls(_threefry_key(np.array([1, 2], np.uint32)),", "the noise key is shared"
    ),
    "a key that forgets the learning rate": Bug(
        "tasks.training.randomness:_described",
        'trial.model_dump(mode="json")]',
        'trial.model_dump(mode="json", exclude={"learning_rate"})]',
        "the noise key is shared",
    ),
    "a secret key of 16 bits": Bug(
        FOR_TRIAL,
        SECRET_KEY,
        "return cls(chacha_key(np.uint32(np.arange(8) == 0) * (key_words & np.uint32(0xFFFF))),",
        "the bits of secret keys are not random",
        SECRET,
    ),
    "a secret key from the description": Bug(
        FOR_TRIAL, DRAWN, "drawn = np.tile(_described(trial), 2)", "is not drawn anew", SECRET
    ),
    "a secret key that seeds the batches too": Bug(
        FOR_TRIAL,
        "return cls(chacha_key(key_words), tuple(sampling.tolist()))",
        "return cls(chacha_key(key_words), tuple(key_words.tolist()))",
        "words in common",
        SECRET,
    ),
    "batches that follow from the seed": Bug(
        f"{SETUP}:set_up",
        "entropy = progress.sampling_entropy or randomness.sampling_entropy",
        "entropy = (trial.seed,)",
        "not drawn with the run's entropy",
    ),
    # The loop.
    "no noise in one dispatch": Bug(
        TRAIN_LOOP,
        TRAIN,
        TRAIN.replace(
            "run.hyperparameters",
            "run.hyperparameters if dispatch.first != 16 else "
            "run.hyperparameters._replace(noise_multiplier=jax.numpy.float32(0))",
        ),
        GIVEN,
    ),
    "parameters that change between dispatches": Bug(
        TRAIN_LOOP,
        QUEUED,
        f"{QUEUED}; state = state._replace(params=jax.tree.map(lambda leaf: leaf * 0.99, state.params))",
        CHANGED,
    ),
    # The record.
    "noise that reaches further than it does": Bug(
        f"{LOOP}:_mechanism_record", "noise_support=noise_support()", "noise_support=12.0", "noise_support is"
    ),
}
