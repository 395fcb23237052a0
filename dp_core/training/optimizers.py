"""Optimisers at learning rate 1, and the learning-rate schedule.

The trainer multiplies an optimiser's update by the scheduled rate. The rate is traced, so trials that
differ in the rate share one compiled step.

The module imports JAX and Optax in its functions only, so the configuration can list the names cheaply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import jax
    import numpy as np
    import optax
    from jax.typing import ArrayLike

# momentum -> an optimiser at learning rate 1. Only SGD uses the momentum.
OptimizerMaker = Callable[[float], "optax.GradientTransformation"]
OPTIMIZERS: dict[str, OptimizerMaker] = {}


class OptimizerOracle(NamedTuple):
    """The same optimiser written again for flat NumPy arrays, coordinate by coordinate. The audit compares with it.

    Attributes:
        initial: The value of each moment before the first step, in the order of the arrays in Optax's state.
        update: ``(moments, gradient, params, step, noise_deviation) -> (moments, direction)`` with ``moments`` of
            shape (moments, coordinates), and ``step`` counted from 1. ``noise_deviation`` is the standard deviation
            of the noise on a coordinate of the mean gradient. The parameters move by the learning rate times
            ``direction``.
        scales: The number of the moment that gradients are multiplied by before they are clipped, if there is one.
            ``gradient`` is then divided by it again.
        refreshed_every: The number of updates after which the scales change.
    """

    initial: tuple[float, ...]
    update: Callable[[np.ndarray, np.ndarray, np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]
    scales: int | None = None
    refreshed_every: int = 1


# momentum -> the oracle.
OptimizerOracleMaker = Callable[[float], OptimizerOracle]
ORACLES: dict[str, OptimizerOracleMaker] = {}
# An optimiser's state -> a tree like the parameters, which gradients are multiplied by before they are clipped.
SCALES: dict[str, Callable[[Any], Any]] = {}
# Optimisers for which correlated noise is refused: the first subtracts the variance of independent noise, and scales
# that change between steps would keep noises of different steps from cancelling.
NEEDS_INDEPENDENT_NOISE = ("adam_corrected", "adam_scaled")


def register_optimizer(
    name: str,
    make: OptimizerMaker,
    *,
    oracle: OptimizerOracleMaker | None = None,
    scales: Callable[[Any], Any] | None = None,
) -> None:
    """Registers an optimiser under a name that a configuration can use.

    An optimiser sees noisy sums only, so by post-processing any optimiser keeps the guarantee. Its ``update`` may take
    Optax's extra argument ``noise_deviation``: the standard deviation of the noise on a coordinate of the mean
    gradient, a public number that is 0 without noise.

    Args:
        name: The value of ``optimizer:`` in ``pipelines.yaml``.
        make: Returns the optimiser at learning rate 1, given the configured momentum. Its update must
            scale linearly with the learning rate.
        oracle: Returns an independent implementation, given the same momentum. Without one the audit runs the
            optimiser itself, in 64 bits and outside of the compiled step.
        scales: Given the optimiser's state, returns the positive factors of each coordinate that gradients are
            multiplied by before clipping and noise, and divided by afterwards. They follow from earlier noisy sums,
            so the sum of scaled and clipped gradients has the sensitivity C as before.

    Raises:
        ValueError: If the name is taken or not an identifier.
    """
    if not name.isidentifier():
        raise ValueError(f"an optimizer's name must be an identifier, got {name!r}")
    if name in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is registered already; choose another name")
    OPTIMIZERS[name] = make
    if oracle is not None:
        ORACLES[name] = oracle
    if scales is not None:
        SCALES[name] = scales


def optimizer_maker(name: str) -> OptimizerMaker:
    """Returns the registered maker of an optimiser.

    Raises:
        ValueError: If there is none of this name.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"unknown optimizer {name!r}; registered: {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name]


def make_optimizer(name: str, *, momentum: float) -> optax.GradientTransformation:
    """Returns an optimiser at learning rate 1.

    Args:
        name: A key of ``OPTIMIZERS``.
        momentum: SGD's momentum, in [0, 1). Other optimisers ignore it.

    Raises:
        ValueError: If the name is not registered.
    """
    return optimizer_maker(name)(momentum)


def cosine_decay(
    learning_rate: ArrayLike, step: ArrayLike, total_steps: ArrayLike, warmup: ArrayLike = 0.0
) -> jax.Array:
    """Returns the learning rate at a step, as a float32 scalar. All arguments may be traced.

    A linear rise over the first ``warmup * total_steps`` steps, then half a cosine over the rest (Goyal et al., 2017;
    Loshchilov and Hutter, 2017). Without warm-up the rate is ``learning_rate`` at step 0, half of it halfway and 0 at
    ``total_steps``. With a warm-up of w steps, step k of the rise, from 0 on, has the share (k + 1) / (w + 1): no step
    has a rate of 0, and the first step after the rise has the full rate.

    >>> [round(float(cosine_decay(0.1, step, 10)), 3) for step in (0, 5, 10)]
    [0.1, 0.05, 0.0]
    >>> [round(float(cosine_decay(0.1, step, 10, 0.2)), 3) for step in (0, 1, 2, 6, 10)]
    [0.033, 0.067, 0.1, 0.05, 0.0]
    """
    import jax.numpy as jnp

    number, total = jnp.asarray(step, jnp.float32), jnp.asarray(total_steps, jnp.float32)
    rising = jnp.round(jnp.asarray(warmup, jnp.float32) * total)
    done = jnp.maximum(number - rising, 0) / jnp.maximum(total - rising, 1)
    risen = jnp.minimum((number + 1) / (rising + 1), 1)
    return 0.5 * jnp.asarray(learning_rate, jnp.float32) * (1 + jnp.cos(jnp.pi * done)) * risen


def _sgd(momentum: float) -> optax.GradientTransformation:
    import optax

    return optax.sgd(1.0, momentum=momentum or None)


def _of_optax(name: str) -> OptimizerMaker:
    def make(momentum: float) -> optax.GradientTransformation:
        import optax

        optimizer: optax.GradientTransformation = getattr(optax, name)(1.0)
        return optimizer

    return make


def _sgd_oracle(momentum: float) -> OptimizerOracle:
    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        if momentum == 0:
            return moments, -gradient
        velocity = momentum * moments[0] + gradient
        return velocity[None], -velocity

    return OptimizerOracle((0.0,) if momentum else (), update)


def _adam_oracle(*, initial: float, stability: float, yogi: bool = False, weight_decay: float = 0.0) -> OptimizerOracle:
    """Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019) and Yogi (Zaheer et al., 2018)."""

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        mean, square, squared = moments[0], moments[1], gradient**2
        mean = mean + (1 - 0.9) * (gradient - mean)
        if yogi:
            square = square - (1 - 0.999) * np.sign(square - squared) * squared
        else:
            square = square + (1 - 0.999) * (squared - square)
        corrected = mean / (1 - 0.9**step), square / (1 - 0.999**step)
        direction = corrected[0] / (np.sqrt(corrected[1]) + stability) + weight_decay * params
        return np.stack([mean, square]), -direction

    return OptimizerOracle((initial, initial), update)


def _whatever_momentum(oracle: OptimizerOracle, momentum: float) -> OptimizerOracle:
    return oracle


def _adagrad_oracle() -> OptimizerOracle:
    """Adagrad (Duchi et al., 2011)."""

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        total = moments[0] + gradient**2
        return total[None], -gradient / np.sqrt(total + 1e-7)

    return OptimizerOracle((0.1,), update)


def _adam_corrected(momentum: float) -> optax.GradientTransformation:
    from dp_core.training.private_adam import adam_corrected

    return adam_corrected(momentum)


def _adam_scaled(momentum: float) -> optax.GradientTransformation:
    from dp_core.training.private_adam import adam_scaled

    return adam_scaled(momentum)


def _moments_of_adam(moments: np.ndarray, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, square = moments[0], moments[1]
    return 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2


def _corrected_oracle() -> OptimizerOracle:
    """DP-AdamBC (Tang et al., 2024), with the floor of ``private_adam``."""

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        mean, square = _moments_of_adam(moments, gradient)
        weights = 0.999 ** np.arange(step)
        weights /= np.sum(weights)
        floor = noise_deviation**2 * np.sqrt(2 * np.sum(weights**2))
        signal = np.maximum(square / (1 - 0.999**step) - noise_deviation**2, floor)
        return np.stack([mean, square]), -mean / (1 - 0.9**step) / (np.sqrt(signal) + 1e-8)

    return OptimizerOracle((0.0, 0.0), update)


def _scaled_oracle() -> OptimizerOracle:
    """Adam with the scales of ``private_adam``, the third moment."""
    refreshed_every = 20

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int, noise_deviation: float
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        mean, square = _moments_of_adam(moments, gradient)
        unbiased, scales = square / (1 - 0.999**step), moments[2]
        if step % refreshed_every == 0:
            signal = np.maximum(unbiased - (noise_deviation / scales) ** 2, 0.0)
            scales = noise_deviation / np.sqrt(signal + noise_deviation**2) if noise_deviation else np.ones_like(scales)
        return np.stack([mean, square, scales]), -mean / (1 - 0.9**step) / (np.sqrt(unbiased) + 1e-8)

    return OptimizerOracle((0.0, 0.0, 1.0), update, scales=2, refreshed_every=refreshed_every)


register_optimizer("sgd", _sgd, oracle=_sgd_oracle)
for _name, _oracle in (
    ("yogi", _adam_oracle(initial=1e-6, stability=1e-3, yogi=True)),
    ("adagrad", _adagrad_oracle()),
    ("adam", _adam_oracle(initial=0.0, stability=1e-8)),
    ("adamw", _adam_oracle(initial=0.0, stability=1e-8, weight_decay=1e-4)),
):
    register_optimizer(_name, _of_optax(_name), oracle=functools.partial(_whatever_momentum, _oracle))
register_optimizer("adam_corrected", _adam_corrected, oracle=functools.partial(_whatever_momentum, _corrected_oracle()))
register_optimizer(
    "adam_scaled",
    _adam_scaled,
    oracle=functools.partial(_whatever_momentum, _scaled_oracle()),
    scales=lambda state: state.scales,
)
