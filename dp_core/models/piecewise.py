"""The paper's network with integers as piecewise-linear bases, which suits clipped gradients.

A log-transformed integer enters the paper's network as it is, a number up to 15. The gradient of the first layer's
weights is proportional to it, so a few large integers make up most of an example's gradient norm, and clipping leaves
little for everything else. Here an integer is a vector of hat functions at public knots instead: it falls between two
knots, and is the weights with which they interpolate it (degree-1 B-splines; compare the piecewise-linear encoding of
Gorishniy et al., 2022, "On Embeddings for Numerical Features in Tabular Deep Learning", whose knots are quantiles of
the data). Its norm is between 0.7 and 1 whatever the integer is. A linear layer on it is any piecewise-linear function
of the logarithm. The knots are constants, so they cost no privacy.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.models.mlp import AdModel

# The knots' range on the scale of sign(x)·log(1 + |x|): from -3 to three million. Beyond it the bases are constant.
_FIRST_KNOT, _LAST_KNOT = -1.5, 15.0


class PiecewiseMLP(AdModel):
    """The paper's network on hat functions of the integers.

    Attributes:
        spacing: The distance between knots.
    """

    spacing: float = 1.5

    def inputs(self, integers: jax.Array, categoricals: jax.Array) -> jax.Array:
        """Concatenates the integers' bases, the indicators of missing ones and the embeddings."""
        missing = jnp.isnan(integers)
        known = jnp.where(missing, 0.0, integers)
        places = jnp.clip(known, _FIRST_KNOT, _LAST_KNOT)[:, :, None]
        hats = jnp.maximum(0.0, 1.0 - jnp.abs(places - jnp.asarray(knots(self.spacing))) / self.spacing)
        # A missing value has no place between the knots.
        hats = jnp.where(missing[:, :, None], 0.0, hats).reshape(len(integers), -1)
        return jnp.concatenate([hats, missing.astype(hats.dtype), *self.embedded(categoricals)], axis=-1)


def knots(spacing: float) -> np.ndarray:
    """Returns the knots, float32.

    >>> knots(5.5).tolist()
    [-1.5, 4.0, 9.5, 15.0]
    """
    steps = int(np.ceil((_LAST_KNOT - _FIRST_KNOT) / spacing - 1e-9))
    return (_FIRST_KNOT + spacing * np.arange(steps + 1)).astype(np.float32)
