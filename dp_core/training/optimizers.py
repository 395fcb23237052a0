"""Optimisers at learning rate 1, and the learning-rate schedule.

The trainer multiplies an optimiser's update by the scheduled rate. The rate is traced, so trials that
differ in the rate share one compiled step.

The module imports JAX and Optax in its functions only, so the configuration can list the names cheaply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jax
    import optax
    from jax.typing import ArrayLike

# momentum -> an optimiser at learning rate 1. Only SGD uses the momentum.
OptimizerMaker = Callable[[float], "optax.GradientTransformation"]
OPTIMIZERS: dict[str, OptimizerMaker] = {}


def register_optimizer(name: str, make: OptimizerMaker) -> None:
    """Registers an optimiser under a name that a configuration can use.

    An optimiser sees noisy sums only, so by post-processing any optimiser keeps the guarantee.

    Args:
        name: The value of ``optimizer:`` in ``pipelines.yaml``.
        make: Returns the optimiser at learning rate 1, given the configured momentum. Its update must
            scale linearly with the learning rate.

    Raises:
        ValueError: If the name is taken or not an identifier.
    """
    if not name.isidentifier():
        raise ValueError(f"an optimizer's name must be an identifier, got {name!r}")
    if name in OPTIMIZERS:
        raise ValueError(f"optimizer {name!r} is registered already; choose another name")
    OPTIMIZERS[name] = make


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


register_optimizer("sgd", _sgd)
for _name in ("yogi", "adagrad", "adam", "adamw"):
    register_optimizer(_name, _of_optax(_name))
