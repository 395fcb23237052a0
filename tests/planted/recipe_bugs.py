"""Planted bugs in the settings of better training: averages, weight decay, warm-up and private Adam."""

from __future__ import annotations

from typing import Any

from tests.planted.bugs import CLIPPING, FULL, NOISE, WHOLE, Bug

AVERAGING, ADAM = "dp_core.training.averaging", "dp_core.training.private_adam"
UPDATES, STEP, SIGNALS = "dp_core.training.updates", "dp_core.training.step", "dp_core.clipping.signals"

TAIL: dict[str, Any] = {"averaging": "tail", "averaging_share": 0.6}
EXPONENTIAL: dict[str, Any] = {"averaging": "exponential", "averaging_share": 0.05}
CORRECTED: dict[str, Any] = {"optimizer": "adam_corrected", "learning_rate": 0.01}
SCALED: dict[str, Any] = {"optimizer": "adam_scaled", "learning_rate": 0.01}
RATE: dict[str, Any] = {"initial_bias": "label_rate", "initial_bias_epsilon": 0.2}
LABEL_RATE, INITIAL = "dp_core.training.label_rate", "tasks.privacy.label_rate"
RELEASED = "what is released deviates"

RECIPE_BUGS: dict[str, Bug] = {
    "the last iterate is released in place of the average": Bug(
        f"{AVERAGING}:averaged", "lambda state, params: state.average", "lambda state, params: params", RELEASED, TAIL
    ),
    "the trial's folder gets the last iterate": Bug(
        "tasks.training.loop:_finish",
        "run.trainer.release(state)",
        "run.placement.whole(state).params",
        "the released parameters are not the tail average of the iterates",
        TAIL,
    ),
    "the tail begins too early": Bug(
        f"{AVERAGING}:iterate_weight", "- jnp.round(length)", "- jnp.round(1.3 * length)", "not the oracle's", TAIL
    ),
    "an average without the correction of its first steps": Bug(
        f"{AVERAGING}:iterate_weight", "/ -jnp.expm1(taken * kept)", "/ 1", "not the oracle's", EXPONENTIAL
    ),
    "weight decay of biases too": Bug(
        f"{UPDATES}:decayed", '"") == "kernel"', '"") in ("kernel", "bias")', "not the oracle's", {"weight_decay": 0.5}
    ),
    "no weight decay": Bug(
        f"{UPDATES}:decayed", "step - weight_decay * value if", "step if", "not the oracle's", {"weight_decay": 0.5}
    ),
    "a warm-up that starts at twice its rate": Bug(
        "dp_core.training.optimizers:cosine_decay",
        "(number + 1) / (rising",
        "(number + 2) / (rising",
        NOISE,
        {"warmup": 0.3},
    ),
    "the noise's variance without the batch size": Bug(
        f"{UPDATES}:dense_update",
        "noise_deviation = scale.standard_deviation / scale.expected_count",
        "noise_deviation = scale.standard_deviation",
        NOISE,
        CORRECTED,
    ),
    "the noise's deviation in place of its variance": Bug(
        f"{ADAM}:adam_corrected",
        "jnp.square(jnp.asarray(noise_deviation",
        "jnp.abs(jnp.asarray(noise_deviation",
        NOISE,
        CORRECTED,
    ),
    "gradients are scaled after they are clipped": Bug(
        f"{SIGNALS}:squared_norms", "if scales is None:", "if True:", CLIPPING, SCALED
    ),
    "gradients are clipped as if scaled, and not scaled": Bug(
        f"{STEP}:sum_gradients", "if scales is not None:", "if False:", FULL, SCALED
    ),
    "scales of single examples in place of noisy sums": Bug(
        f"{STEP}:train_step",
        "scales=rule.scales(caught)",
        "scales=jax.tree.map(lambda s: s * (1 + 0.1 * jnp.mean(batches.labels)), rule.scales(caught))",
        "not the oracle's",
        SCALED,
    ),
    "scales are refreshed with another noise": Bug(
        f"{ADAM}:adam_scaled", "variance / jnp.square(scale)", "variance", WHOLE, SCALED
    ),
    "a label rate without noise": Bug(
        f"{LABEL_RATE}:noisy_sum", "+ int(noise)", "", "the noise of the sum of labels has", RATE
    ),
    "noise for labels of at most 1 on counts": Bug(
        f"{LABEL_RATE}:noisy_sum",
        "noise_multiplier * largest_label(task)",
        "noise_multiplier",
        "the noise of the sum of labels has",
        {**RATE, "task": "pconvs"},
    ),
    "a label rate that is charged nothing": Bug(
        "tasks.training.loop:_mechanism_record",
        "label_rate_noise_multiplier=label_rate_noise(run.trial.initial_bias_epsilon, run.trial.target_delta)",
        "label_rate_noise_multiplier=None",
        "the record charges nothing for it",
        RATE,
    ),
    "the bias of the exact label rate": Bug(
        f"{INITIAL}:with_initial_bias", "total = float(noisy)", "total = float(np.sum(labels))", "which is not", RATE
    ),
    "the label rate is charged for more noise than it has": Bug(
        "tasks.training.loop:_mechanism_record",
        "label_rate_noise(run.trial.initial_bias_epsilon, run.trial.target_delta)",
        "100.0",
        "is charged for a noise multiplier of 100",
        RATE,
    ),
}
