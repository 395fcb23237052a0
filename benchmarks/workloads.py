"""What is trained in a benchmark: a model and random examples for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.models import AdModel, CategoricalFeature
from dp_core.signals import Batch

# Criteo's vocabularies, which make the paper's model 10,908,057 parameters large.
_CRITEO_VOCABULARIES = (
    *(1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207),
    *(27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934),
)


class Workload(NamedTuple):
    """A model and the number of its integer features."""

    model: AdModel
    integers: int

    @property
    def categoricals(self) -> int:
        return len(self.model.features)

    def batch_shapes(self, pieces: int, rows: int) -> Batch:
        """A step's batch in physical batches, described without its contents."""

        def described(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct((pieces, rows, *shape), dtype)

        tokens = described(self.categoricals, dtype=jnp.int32)
        return Batch(described(self.integers), tokens, described(), described())

    def random_batch(self, batch_size: int, pieces: int, rows: int, seed: int = 0) -> Batch:
        """Examples in physical batches, padded at the end where these hold more. A seed's examples are always the same.

        Tokens are as unevenly distributed as those of logs: the k-th is 1/k as frequent as the first.
        """
        rng = np.random.default_rng(seed)
        sizes = np.array([feature.vocabulary_size for feature in self.model.features])
        tokens = np.minimum((sizes + 1.0) ** rng.random((batch_size, self.categoricals)) - 1, sizes - 1)

        def cut(values: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
            padding = [(0, pieces * rows - batch_size)] + [(0, 0)] * (values.ndim - 1)
            return np.pad(values.astype(dtype), padding).reshape(pieces, rows, *values.shape[1:])

        return Batch(
            integers=cut(rng.standard_normal((batch_size, self.integers))),
            categoricals=cut(tokens, np.int32),
            labels=cut(rng.random(batch_size) < 0.25),
            mask=cut(np.ones(batch_size)),
        )


def _workload(vocabularies: tuple[int, ...], integers: int, hidden_layers: tuple[int, ...]) -> Workload:
    features = tuple(CategoricalFeature(size, int(2 * size**0.25)) for size in vocabularies)
    return Workload(AdModel(features, hidden_layers), integers)


WORKLOADS = {
    "paper": _workload(_CRITEO_VOCABULARIES, 13, (598,) * 4),
    # To try the benchmark itself.
    "small": _workload((1000, 30), 4, (32,)),
}
