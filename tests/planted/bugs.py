"""The catalogue of planted bugs, by the layer that they are in: what is changed, and what the audit must say.

Each leaves a record that is right by every number in it: only the evidence tells.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Bug(NamedTuple):
    """A bug.

    Attributes:
        where: The function, as ``planted.plant`` names it.
        old: A piece of its source.
        new: What is put there.
        says: A part of what the audit must find.
        changes: Fields of the trial.
        physical_batch_size: Rows of a physical batch.
    """

    where: str
    old: str
    new: str
    says: str
    changes: Mapping[str, Any] = MappingProxyType({})
    physical_batch_size: int | Literal["auto"] = "auto"


ADAM: dict[str, Any] = {"optimizer": "adam", "learning_rate": 0.01}
MICRO: dict[str, Any] = {"microbatch_size": 4, "sensitivity": "proven"}
ADAPTIVE: dict[str, Any] = {"clipping": "adaptive", "clip_quantile": 0.5}

OTHER_ROWS = "computed with other rows than were sampled"
MORE_ROWS = "computed with another number of rows than were sampled"
CLIPPING = "(gradients, clipping or their sum)"
FULL = "(clipping, layout or scale)"
NOISE = "(noise or its scale)"
WHOLE = "(noise, scale, optimiser or schedule)"
DEVIATION = "times the stated"
REPEATED = "three consecutive draws"
REPLAY = "are not what the program does with the stated noise key"

STEP, UPDATES, NOISES = "dp_core.training.step", "dp_core.training.updates", "dp_core.training.noise"
ONE_PASS, LAYERS = "dp_core.clipping.one_pass:add_clipped_gradients", "dp_core.clipping.layers"
LAYOUT, DISPATCH = "dp_core.training.physical_batches:lay_out", "tasks.training.batches:_dispatch"
LOOP, SETUP = "tasks.training.loop", "tasks.training.setup"
FACTORS = "factors = share * mask * clip_factor(clipping).traced(norms, l2_clip_norm)"
APPLY = "gradient_sum = add_gaussian(scale.noise_key, gradient_sum, scale.standard_deviation)"
NOISED = "noised.append(leaf + standard_deviation * noise)"
TRAIN = "run.trainer.run(state, dispatch.steps, run.randomness.noise_key, run.hyperparameters)"

BUGS: dict[str, Bug] = {
    # Layout: from the sampled examples to the rows of a batch.
    "the first example in every row": Bug(LAYOUT, "= sampled.indices\n", "= sampled.indices[:1]\n", OTHER_ROWS),
    "an example twice, another not at all": Bug(
        LAYOUT, "= sampled.indices\n", "= np.append(sampled.indices[:1], sampled.indices[:-1])\n", OTHER_ROWS
    ),
    "the last example is dropped": Bug(LAYOUT, "[: sampled.size] = 1", "[: sampled.size - 1] = 1", MORE_ROWS),
    "padding counts as examples": Bug(LAYOUT, "[: sampled.size] = 1", "[: sampled.size + 5] = 1", MORE_ROWS),
    "an example with double weight": Bug(
        LAYOUT, "[: sampled.size] = 1", "[: sampled.size] = 1 + (np.arange(sampled.size) == 7)", OTHER_ROWS
    ),
    "labels of other rows": Bug(
        DISPATCH, "labels=place(data.labels)", "labels=place(np.roll(data.labels, 1))", OTHER_ROWS
    ),
    "one batch for a whole dispatch, on the host": Bug(
        DISPATCH,
        "[sampler.batch(step) for step in steps]",
        "[sampler.batch(steps[0])] * len(steps)",
        "watched examples were in",
    ),
    "one batch for a whole dispatch, on the device": Bug(
        f"{STEP}:make_trainer", "leaf[index], steps.batches", "leaf[0], steps.batches", MORE_ROWS
    ),
    "a group spread over all rows": Bug(
        LAYOUT,
        "groups[used, rows] = first[start:stop] - start",
        "groups[used, rows] = 0 * first[start:stop]",
        OTHER_ROWS,
        MICRO,
    ),
    "only the first piece is summed": Bug(
        f"{STEP}:sum_gradients", "jax.lax.fori_loop(0, pieces,", "jax.lax.fori_loop(0, 1,", MORE_ROWS, {}, 40
    ),
    "the last piece is summed twice": Bug(
        f"{STEP}:sum_gradients",
        "else jax.lax.fori_loop(0, pieces, add_piece, nothing)",
        "else add_piece(pieces - 1, jax.lax.fori_loop(0, pieces, add_piece, nothing))",
        MORE_ROWS,
        {},
        40,
    ),
    # Gradients and norms.
    "norms without embeddings": Bug(
        f"{LAYERS}:_embedding_inner_product", "_dot(delta, delta2), 0.0", "0.0 * _dot(delta, delta2), 0.0", CLIPPING
    ),
    "norms without biases": Bug(f"{LAYERS}:_dense_inner_product", "_dot(a, a2) + 1", "_dot(a, a2)", CLIPPING),
    "embedding gradients twice as long": Bug(
        f"{LAYERS}:_add_embedding_gradient", ".add(delta)", ".add(2 * delta)", CLIPPING
    ),
    "embedding rows are set, not added": Bug(f"{LAYERS}:_add_embedding_gradient", ".add(delta)", ".set(delta)", FULL),
    "biases without gradients": Bug(
        f"{LAYERS}:_add_dense_gradient", "jnp.sum(delta, axis=0)", "0 * jnp.sum(delta, axis=0)", CLIPPING
    ),
    "group norms without cross terms": Bug(
        "dp_core.clipping.microbatches:group_norms",
        "over_group(_pairs(exact, groups, microbatches.largest))",
        "over_group(squared_norms(exact))",
        CLIPPING,
        MICRO,
    ),
    "groups divided by their square root": Bug(
        ONE_PASS, "1 / microbatches.size", "microbatches.size**-0.5", CLIPPING, MICRO
    ),
    "norms in half precision": Bug(
        ONE_PASS,
        "jnp.sqrt(squared_norms(signals, scales)), 1.0",
        "jnp.sqrt(squared_norms(signals, scales)).astype(jnp.bfloat16).astype(jnp.float32), 1.0",
        "not the oracle's",
    ),
    # Clip factors.
    "no clipping": Bug(ONE_PASS, FACTORS, "factors = share * mask", CLIPPING),
    "only row 0 is clipped": Bug(
        ONE_PASS,
        FACTORS,
        f"{FACTORS}; factors = jnp.where(jnp.arange(len(mask)) == 0, factors, share * mask)",
        CLIPPING,
    ),
    "the last row is not clipped": Bug(
        ONE_PASS, FACTORS, f"{FACTORS}; factors = factors.at[-1].set(share * mask[-1])", "not the oracle's"
    ),
    "very long gradients are not clipped": Bug(
        ONE_PASS, FACTORS, f"{FACTORS}; factors = jnp.where(norms > 3 * l2_clip_norm, share * mask, factors)", CLIPPING
    ),
    "clipped at one per cent more": Bug(
        ONE_PASS, FACTORS, FACTORS.replace("l2_clip_norm", "1.01 * l2_clip_norm"), CLIPPING
    ),
    "all clipped by the mean norm": Bug(
        ONE_PASS, FACTORS, FACTORS.replace("norms,", "jnp.full_like(norms, jnp.mean(norms)),"), CLIPPING
    ),
    "clipped by the first of two": Bug(
        ONE_PASS, FACTORS, FACTORS.replace("norms,", "jnp.repeat(norms[::2], 2),"), "not the oracle's"
    ),
    "the norm in place of its square root": Bug(
        ONE_PASS, "jnp.sqrt(squared_norms(signals, scales)), 1.0", "squared_norms(signals, scales), 1.0", CLIPPING
    ),
    # The sum and its scale.
    "divided by the realised batch size": Bug(
        f"{STEP}:train_step",
        "summed, noise_key, hyper",
        "summed, noise_key, hyper._replace(expected_batch_size=jnp.maximum(seen.rows, 1).astype(jnp.float32))",
        FULL,
    ),
    "divided by twice the expected count": Bug(
        f"{STEP}:noisy_update",
        "expected_count=expected_count,\n        learning",
        "expected_count=2 * expected_count,\n        learning",
        "not the oracle's",
    ),
    "a rate that does not decay": Bug(
        f"{STEP}:noisy_update",
        "cosine_decay(hyper.learning_rate, state.step, hyper.total_steps, hyper.warmup)",
        "hyper.learning_rate",
        "not the oracle's",
    ),
    # Noise.
    "no noise": Bug(f"{UPDATES}:dense_update", APPLY, "pass", NOISE),
    "no noise for Adam": Bug(
        f"{UPDATES}:make_update_rule",
        "if method.private and method.bands > 1:",
        "rule = rule if method.optimizer == 'sgd' else without_noise(rule)\n"
        "    if method.private and method.bands > 1:",
        NOISE,
        ADAM,
    ),
    "half of the noise": Bug(
        f"{NOISES}:add_gaussian", NOISED, NOISED.replace("standard_deviation", "0.5 * standard_deviation"), DEVIATION
    ),
    "noise three per cent too small": Bug(
        f"{NOISES}:add_gaussian", NOISED, NOISED.replace("standard_deviation", "0.97 * standard_deviation"), DEVIATION
    ),
    "no noise on biases": Bug(
        f"{NOISES}:add_gaussian",
        NOISED,
        "noised.append(leaf + standard_deviation * noise * (leaf.ndim > 1))",
        DEVIATION,
    ),
    "no noise on the last rows of a table": Bug(
        f"{NOISES}:add_gaussian",
        NOISED,
        "noised.append(leaf + standard_deviation * noise.at[-max(1, len(noise) // 4):].set(0.0))",
        DEVIATION,
    ),
    "one key for all arrays": Bug(
        f"{NOISES}:add_gaussian",
        NOISED,
        "noised.append(leaf + standard_deviation * jax.random.normal(key, leaf.shape))",
        REPEATED,
    ),
    "the same noise at every step": Bug(
        f"{NOISES}:add_gaussian",
        "leaves, structure = jax.tree.flatten(values)",
        "key = jax.random.key(0); leaves, structure = jax.tree.flatten(values)",
        REPEATED,
    ),
    "the same noise at two steps in a row": Bug(
        f"{STEP}:noisy_update",
        "jax.random.fold_in(noise_key, state.step)",
        "jax.random.fold_in(noise_key, state.step // 2)",
        NOISE,
    ),
    "noise in the first step of a dispatch only": Bug(
        f"{STEP}:make_trainer",
        "noise_key, hyper)\n            return state, jax.tree.map(",
        "noise_key, hyper._replace(noise_multiplier=(index == 0) * hyper.noise_multiplier))\n"
        "            return state, jax.tree.map(",
        NOISE,
    ),
    "uniform noise": Bug(
        f"{NOISES}:add_gaussian",
        NOISED,
        "noised.append(leaf + standard_deviation * 3**0.5 * (2 * jax.scipy.stats.norm.cdf(noise) - 1))",
        "the noise",
    ),
    "noise without tails": Bug(
        f"{NOISES}:add_gaussian",
        NOISED,
        "noised.append(leaf + standard_deviation * jnp.clip(noise, -3, 3))",
        "the noise",
    ),
    "noise without the clip norm": Bug(
        f"{STEP}:noisy_update",
        "hyper.noise_multiplier * hyper.sensitivity * state.l2_clip_norm",
        "hyper.noise_multiplier * hyper.sensitivity",
        NOISE,
    ),
    "noise for a sensitivity of 1": Bug(
        f"{STEP}:noisy_update",
        "hyper.noise_multiplier * hyper.sensitivity * state",
        "hyper.noise_multiplier * state",
        NOISE,
        MICRO,
    ),
    "noise divided by the batch size twice": Bug(
        f"{UPDATES}:dense_update",
        APPLY,
        APPLY.replace("scale.standard_deviation)", "scale.standard_deviation / scale.expected_count)"),
        NOISE,
    ),
    "noise stops after half of the run": Bug(
        f"{STEP}:noisy_update",
        "jnp.where(hyper.noise_multiplier > 0, deviation",
        "jnp.where((hyper.noise_multiplier > 0) & (state.step < hyper.total_steps / 2), deviation",
        WHOLE,
    ),
    "the count without noise": Bug(
        "dp_core.clipping.adaptive:next_clip_norm",
        "+ count_noise_multiplier *",
        "+ 0 * count_noise_multiplier *",
        "clip norm after",
        ADAPTIVE,
    ),
    # Optimiser and update.
    "the optimiser sees the sum without noise": Bug(
        f"{UPDATES}:dense_update", APPLY, "clean = gradient_sum; " + APPLY + "; gradient_sum = clean", NOISE, ADAM
    ),
    "momentum is forgotten": Bug(
        "dp_core.training.optimizers:_sgd", "momentum=momentum or None", "momentum=None", "not the oracle's"
    ),
    "the optimiser gets signs": Bug(
        f"{UPDATES}:dense_update",
        "optimizer.update(mean_gradient, state",
        "optimizer.update(jax.tree.map(jax.numpy.sign, mean_gradient), state",
        "not the oracle's",
    ),
    # The loop.
    "a noise key of its own in the loop": Bug(
        f"{LOOP}:_train", TRAIN, TRAIN.replace("run.randomness.noise_key", "jax.random.key(7)"), REPLAY
    ),
    "no noise in the loop": Bug(
        f"{LOOP}:_train",
        TRAIN,
        TRAIN.replace(
            "run.hyperparameters",
            "run.hyperparameters._replace(noise_multiplier=jax.numpy.float32(0))",
        ),
        REPLAY,
    ),
    "a larger clip norm in the loop": Bug(
        f"{SETUP}:set_up",
        "state = trainer.init(params, hyperparameters)\n    checkpoint",
        "state = trainer.init(params, hyperparameters._replace(l2_clip_norm=10 * hyperparameters.l2_clip_norm))\n"
        "    checkpoint",
        "not the initial one",
    ),
    # The record.
    "every other step is counted": Bug(
        f"{LOOP}:_mechanism_record", "steps=steps", "steps=steps // 2", "steps are recorded, but"
    ),
    "a noise multiplier that was not used": Bug(
        f"{LOOP}:_mechanism_record",
        "noise_multiplier=float(ran.noise_multiplier)",
        "noise_multiplier=2 * float(ran.noise_multiplier)",
        "are recorded",
    ),
    "half of the sampling probability": Bug(
        f"{LOOP}:_mechanism_record",
        "expected_batch_size=sampler.expected_batch_size",
        "expected_batch_size=sampler.expected_batch_size // 2",
        "examples were sampled over",
    ),
}
