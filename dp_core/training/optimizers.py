"""Optimisers at learning rate 1, and the learning-rate schedule.

The trainer multiplies an optimiser's update by the scheduled rate. The rate is traced, so trials that
differ in the rate share one compiled step.

The module imports JAX and Optax in its functions only, so the configuration can list the names cheaply.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

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
        update: ``(moments, gradient, params, step) -> (moments, direction)`` with ``moments`` of shape
            (moments, coordinates), and ``step`` counted from 1. The parameters move by the learning rate times
            ``direction``.
    """

    initial: tuple[float, ...]
    update: Callable[[np.ndarray, np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


# momentum -> the oracle.
OptimizerOracleMaker = Callable[[float], OptimizerOracle]
ORACLES: dict[str, OptimizerOracleMaker] = {}


def register_optimizer(name: str, make: OptimizerMaker, *, oracle: OptimizerOracleMaker | None = None) -> None:
    """Registers an optimiser under a name that a configuration can use.

    An optimiser sees noisy sums only, so by post-processing any optimiser keeps the guarantee.

    Args:
        name: The value of ``optimizer:`` in ``pipelines.yaml``.
        make: Returns the optimiser at learning rate 1, given the configured momentum. Its update must
            scale linearly with the learning rate.
        oracle: Returns an independent implementation, given the same momentum. Without one the audit runs the
            optimiser itself, in 64 bits and outside of the compiled step.

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


def cosine_decay(learning_rate: ArrayLike, step: ArrayLike, total_steps: ArrayLike) -> jax.Array:
    """Returns the learning rate at a step, as a float32 scalar.

    Half a cosine, without warm-up: ``learning_rate`` at step 0, half of it halfway and 0 at
    ``total_steps``. All arguments may be traced.

    >>> [round(float(cosine_decay(0.1, step, 10)), 3) for step in (0, 5, 10)]
    [0.1, 0.05, 0.0]
    """
    import jax.numpy as jnp

    done = jnp.asarray(step, jnp.float32) / jnp.asarray(total_steps, jnp.float32)
    return 0.5 * jnp.asarray(learning_rate, jnp.float32) * (1 + jnp.cos(jnp.pi * done))


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
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        if momentum == 0:
            return moments, -gradient
        velocity = momentum * moments[0] + gradient
        return velocity[None], -velocity

    return OptimizerOracle((0.0,) if momentum else (), update)


def _adam_oracle(*, initial: float, stability: float, yogi: bool = False, weight_decay: float = 0.0) -> OptimizerOracle:
    """Adam (Kingma and Ba, 2015), AdamW (Loshchilov and Hutter, 2019) and Yogi (Zaheer et al., 2018)."""

    def update(
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int
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
        moments: np.ndarray, gradient: np.ndarray, params: np.ndarray, step: int
    ) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        total = moments[0] + gradient**2
        return total[None], -gradient / np.sqrt(total + 1e-7)

    return OptimizerOracle((0.1,), update)


register_optimizer("sgd", _sgd, oracle=_sgd_oracle)
for _name, _oracle in (
    ("yogi", _adam_oracle(initial=1e-6, stability=1e-3, yogi=True)),
    ("adagrad", _adagrad_oracle()),
    ("adam", _adam_oracle(initial=0.0, stability=1e-8)),
    ("adamw", _adam_oracle(initial=0.0, stability=1e-8, weight_decay=1e-4)),
):
    register_optimizer(_name, _of_optax(_name), oracle=functools.partial(_whatever_momentum, _oracle))
