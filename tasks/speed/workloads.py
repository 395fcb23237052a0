"""Workloads of measurements: a model with examples, in a form that can be sent to a child process."""

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

from dp_core.clipping.signals import Batch
from dp_core.models.mlp import AdModel
from dp_core.models.spec import CategoricalFeature, MLPSpec, ModelSpec, as_model_spec
from tasks.data.prepared import Prepared, open_prepared

_Columns = tuple[np.ndarray, np.ndarray, np.ndarray]


class Workload(ABC):
    """A model, its task and a source of examples. Workloads with equal fields are equal."""

    task: str

    @property
    @abstractmethod
    def model(self) -> AdModel: ...

    @property
    @abstractmethod
    def integers(self) -> int:
        """Number of integer features."""

    @property
    def categoricals(self) -> int:
        return len(self.model.features)

    @abstractmethod
    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """Returns the integers, tokens and labels of ``number`` examples."""

    def batch_shapes(self, pieces: int, rows: int) -> Batch:
        """Returns the shapes and types of a step's batch, in physical batches."""

        def described(*shape: int, dtype: Any = jnp.float32) -> Any:
            return jax.ShapeDtypeStruct((pieces, rows, *shape), dtype)

        tokens = described(self.categoricals, dtype=jnp.int32)
        return Batch(described(self.integers), tokens, described(), described())

    def random_batch(self, batch_size: int, pieces: int, rows: int, seed: int = 0) -> Batch:
        """Returns examples in physical batches, padded at the end. The same seed gives the same examples."""
        integers, tokens, labels = self._examples(batch_size, np.random.default_rng(seed))

        def cut(values: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
            padding = [(0, pieces * rows - batch_size)] + [(0, 0)] * (values.ndim - 1)
            return np.pad(values.astype(dtype), padding).reshape(pieces, rows, *values.shape[1:])

        return Batch(cut(integers), cut(tokens, np.int32), cut(labels), cut(np.ones(batch_size)))

    def to_json(self) -> dict[str, Any]:
        values: dict[str, Any] = asdict(self)  # type: ignore[call-overload]  # all are dataclasses
        if "spec" in values:
            values["spec"] = values["spec"].model_dump(mode="json")
        return {"kind": type(self).__name__, **values}


@dataclass(frozen=True)
class RandomWorkload(Workload):
    """The paper's network over vocabularies of given sizes, with random examples."""

    vocabularies: tuple[int, ...]
    integer_columns: int
    hidden_layers: tuple[int, ...]
    task: str = "pctr"

    @property
    def integers(self) -> int:
        return self.integer_columns

    @property
    def model(self) -> AdModel:
        features = [CategoricalFeature(size, int(2 * size**0.25)) for size in self.vocabularies]
        return MLPSpec(hidden_layers=self.hidden_layers).build(features)

    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """Draws tokens as skewed as those of logs: the k-th is 1/k as frequent as the first."""
        sizes = np.array(self.vocabularies)
        tokens = np.minimum((sizes + 1.0) ** rng.random((number, len(sizes))) - 1, sizes - 1)
        return rng.standard_normal((number, self.integers)), tokens, rng.random(number) < 0.25


@dataclass(frozen=True)
class PreparedWorkload(Workload):
    """The model that trials on prepared data train, with random rows of its training split."""

    prepared: str
    task: str
    spec: ModelSpec

    @property
    def model(self) -> AdModel:
        return self.spec.build(_opened(self.prepared).features())

    @property
    def integers(self) -> int:
        return len(_opened(self.prepared).integer_columns)

    def _examples(self, number: int, rng: np.random.Generator) -> _Columns:
        """Draws rows without replacement; ``number`` is at most the size of the training split."""
        split = _opened(self.prepared).split("train", self.task)
        return split.take(np.sort(rng.choice(len(split), number, replace=False)))


@functools.lru_cache(maxsize=1)
def _opened(path: str) -> Prepared:
    return open_prepared(Path(path))


_KINDS: dict[str, type[Any]] = {kind.__name__: kind for kind in (RandomWorkload, PreparedWorkload)}


def workload_from_json(described: Mapping[str, Any]) -> Workload:
    """Returns the workload that ``to_json`` described."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in described.items()}
    if "spec" in values:
        values["spec"] = as_model_spec(values["spec"])
    kind = _KINDS[str(values.pop("kind"))]
    workload: Workload = kind(**values)
    return workload
