"""What is trained in a measurement: a model and examples for it, described so that another process can make them."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dp_core.models import AdModel, CategoricalFeature, ModelName, make_model
from dp_core.signals import Batch
from tasks.encoded import Prepared, open_prepared

_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


class Workload(ABC):
    """A model, the task that it is trained for, and examples. Equal descriptions are the same workload."""

    task: str

    @property
    @abstractmethod
    def model(self) -> AdModel: ...

    @property
    @abstractmethod
    def integers(self) -> int:
        """The number of integer features."""

    @property
    def categoricals(self) -> int:
        return len(self.model.features)

    @abstractmethod
    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """Integers, tokens and labels of so many examples."""

    def batch_shapes(self, pieces: int, rows: int) -> Batch:
        """A step's batch in physical batches, described without its contents."""

        def described(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct((pieces, rows, *shape), dtype)

        tokens = described(self.categoricals, dtype=jnp.int32)
        return Batch(described(self.integers), tokens, described(), described())

    def random_batch(self, batch_size: int, pieces: int, rows: int, seed: int = 0) -> Batch:
        """Examples in physical batches, padded at the end where these hold more. A seed's are always the same."""
        integers, tokens, labels = self._examples(batch_size, np.random.default_rng(seed))

        def cut(values: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
            padding = [(0, pieces * rows - batch_size)] + [(0, 0)] * (values.ndim - 1)
            return np.pad(values.astype(dtype), padding).reshape(pieces, rows, *values.shape[1:])

        return Batch(cut(integers), cut(tokens, np.int32), cut(labels), cut(np.ones(batch_size)))

    def to_json(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **asdict(self)}  # type: ignore[call-overload]  # all are dataclasses


@dataclass(frozen=True)
class RandomWorkload(Workload):
    """The paper's network over vocabularies of given sizes, and examples without meaning."""

    vocabularies: tuple[int, ...]
    integer_columns: int
    hidden_layers: tuple[int, ...]
    task: str = "pctr"

    @property
    def integers(self) -> int:
        return self.integer_columns

    @property
    def model(self) -> AdModel:
        features = (CategoricalFeature(size, int(2 * size**0.25)) for size in self.vocabularies)
        return AdModel(tuple(features), self.hidden_layers)

    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """Tokens are as unevenly distributed as those of logs: the k-th is 1/k as frequent as the first."""
        sizes = np.array(self.vocabularies)
        tokens = np.minimum((sizes + 1.0) ** rng.random((number, len(sizes))) - 1, sizes - 1)
        return rng.standard_normal((number, self.integers)), tokens, rng.random(number) < 0.25


@dataclass(frozen=True)
class PreparedWorkload(Workload):
    """The model that trials on prepared data train, and random rows of that data's training part."""

    prepared: str
    task: str
    name: ModelName
    hidden_layers: tuple[int, ...]
    cross_layers: int | None = None
    interaction_dimension: int | None = None

    @property
    def model(self) -> AdModel:
        numbers = {"cross_layers": self.cross_layers, "interaction_dimension": self.interaction_dimension}
        columns = _opened(self.prepared).categorical_columns
        features = [CategoricalFeature(column.vocabulary_size, column.embedding_dimension) for column in columns]
        return make_model(
            self.name,
            features,
            hidden_layers=self.hidden_layers,
            **{name: number for name, number in numbers.items() if number is not None},
        )

    @property
    def integers(self) -> int:
        return len(_opened(self.prepared).integer_columns)

    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """No row twice; ``number`` is at most that of the training part."""
        split = _opened(self.prepared).split("train", self.task)
        return split.take(np.sort(rng.choice(len(split), number, replace=False)))


@functools.lru_cache(maxsize=1)
def _opened(path: str) -> Prepared:
    return open_prepared(Path(path))


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (RandomWorkload, PreparedWorkload)}


def workload_from_json(described: Mapping[str, Any]) -> Workload:
    """What ``to_json`` described."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in described.items()}
    kind = _KINDS[str(values.pop("kind"))]
    workload: Workload = kind(**values)
    return workload
