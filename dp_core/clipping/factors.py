"""Clip factors: the number that each gradient is multiplied by, given its norm.

A clip factor is registered once, under the name that ``clipping:`` has in ``pipelines.yaml``. The
registration carries everything that depends on the factor: the traced function that trains, the
oracle that the tests, the audit's probe and the naive ``vmap`` program compare it with, and the words
of the privacy statement. Registering another factor needs no change to this package.

The module imports neither JAX nor NumPy, so the configuration can list the names cheaply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import jax
    from jax.typing import ArrayLike

# The stabiliser γ of AUTO-S (Bu et al., 2023). Without it, automatic clipping would scale rounding
# errors of near-zero gradients up to the clip norm.
AUTOMATIC_STABILITY = 0.01


class ClipFactor(NamedTuple):
    """A way to bound the norm of a gradient by the clip norm C.

    Attributes:
        traced: ``(norms, l2_clip_norm) -> factors``, the JAX function that training compiles. Norms are
            float32, non-negative and of any shape; the factors have the same shape. It must satisfy
            ``factors * norms <= l2_clip_norm`` (to float32 rounding), and its value at a norm of zero must
            be finite. The privacy guarantee rests on this.
        oracle: The same function, written independently of ``traced``. It is called with NumPy float64
            arrays by the probe and with traced arrays by the naive programs, so it uses array operators
            and the functions of ``norms.__array_namespace__()`` only.
        statement: What happens to a gradient, as it reads in the privacy statement after "per-example
            gradients", for example "clipped to norm C".
        adaptive: Whether the clip norm follows a private quantile of the gradient norms
            (``adaptive.py``). Each step then releases a noisy count too, which the accounting charges for.
    """

    traced: Callable[[jax.Array, ArrayLike], jax.Array]
    oracle: Callable[[Any, Any], Any]
    statement: str
    adaptive: bool = False


CLIP_FACTORS: dict[str, ClipFactor] = {}


def register_clip_factor(
    name: str,
    *,
    traced: Callable[[jax.Array, ArrayLike], jax.Array],
    oracle: Callable[[Any, Any], Any],
    statement: str,
    adaptive: bool = False,
) -> ClipFactor:
    """Registers a clip factor under a name that a configuration can use.

    Args:
        name: The value of ``clipping:`` in ``pipelines.yaml``.
        traced: The function that training compiles; see ``ClipFactor``.
        oracle: An independent implementation of the same function; see ``ClipFactor``.
        statement: One line of text for the privacy statement.
        adaptive: Whether the clip norm adapts during training.

    Returns:
        The registration.

    Raises:
        ValueError: If the name is taken or not an identifier, if the oracle is ``traced`` itself, or if
            the statement is not one line that fits into a table cell.
        TypeError: If ``traced`` or ``oracle`` is not callable.
    """
    if not name.isidentifier():
        raise ValueError(f"a clip factor's name must be an identifier, got {name!r}")
    if name in CLIP_FACTORS:
        raise ValueError(f"clip factor {name!r} is registered already; choose another name")
    for part, function in (("traced", traced), ("oracle", oracle)):
        if not callable(function):
            raise TypeError(f"clip factor {name!r}: {part} must be a function of norms and clip norm, got {function!r}")
    if oracle is traced:
        raise ValueError(f"clip factor {name!r}: the oracle must be written independently of the traced function")
    if not statement.strip() or set(statement) & set("|\n"):
        raise ValueError(f"clip factor {name!r}: the statement must be one line of text without '|', got {statement!r}")
    CLIP_FACTORS[name] = ClipFactor(traced, oracle, statement, adaptive)
    return CLIP_FACTORS[name]


def clip_factor(name: str) -> ClipFactor:
    """Returns the clip factor that is registered under ``name``.

    >>> clip_factor("automatic").statement
    'scaled to norm C'

    Raises:
        ValueError: If there is none.
    """
    if name not in CLIP_FACTORS:
        raise ValueError(f"unknown clip factor {name!r}; registered: {', '.join(CLIP_FACTORS)}")
    return CLIP_FACTORS[name]


def _clip(norms: jax.Array, l2_clip_norm: ArrayLike) -> jax.Array:
    import jax.numpy as jnp

    return jnp.minimum(1.0, l2_clip_norm / jnp.maximum(norms, jnp.finfo(norms.dtype).tiny))


def _clip_oracle(norms: Any, l2_clip_norm: Any) -> Any:
    xp = norms.__array_namespace__()
    longer = norms > l2_clip_norm
    # The inner where() avoids a division by zero in the branch that is not taken.
    return xp.where(longer, l2_clip_norm / xp.where(longer, norms, 1.0), 1.0)


def _normalise(norms: jax.Array, l2_clip_norm: ArrayLike) -> jax.Array:
    import jax.numpy as jnp

    return jnp.asarray(l2_clip_norm) / (norms + AUTOMATIC_STABILITY)


def _normalise_oracle(norms: Any, l2_clip_norm: Any) -> Any:
    # The paper's γ is spelled out again: an oracle shares nothing with what it checks.
    return l2_clip_norm * (0.01 + norms) ** -1


# Gradients longer than C are scaled down to C (Abadi et al., 2016).
register_clip_factor("fixed", traced=_clip, oracle=_clip_oracle, statement="clipped to norm C")
# Every gradient is scaled to norm C, short ones up (AUTO-S of Bu et al., 2023).
register_clip_factor("automatic", traced=_normalise, oracle=_normalise_oracle, statement="scaled to norm C")
# As fixed, with a clip norm that moves from step to step (Andrew et al., 2021).
register_clip_factor("adaptive", traced=_clip, oracle=_clip_oracle, statement="clipped to norm C", adaptive=True)
