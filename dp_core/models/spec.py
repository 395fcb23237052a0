"""Model specs: a network by its name and its own numbers, and the registry of all networks.

A spec is what the configuration, a trial, the trainer, the benchmarks and the data card share. It is a small
validated value: it can be listed, compared, hashed and written to JSON without importing JAX, and only ``build``
imports the network itself.

A new network is a module with a subclass of ``AdModel`` and a spec that builds it:

    @register_model
    class WideSpec(ModelSpec):
        name: Literal["wide"] = "wide"
        factors: PositiveInt = 8

        def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
            from my_project.wide import Wide

            return Wide(tuple(features), self.layers, factors=self.factors)

``model: wide`` or ``model: {name: wide, factors: 4}`` in ``pipelines.yaml`` then trains it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

if TYPE_CHECKING:
    from dp_core.models.mlp import AdModel


class CategoricalFeature(NamedTuple):
    """A categorical feature and the shape of its embedding table.

    Attributes:
        vocabulary_size: Number of rows of the table.
        dimension: Width of a row.
        slots: Number of input columns. Above 1 the feature is a set of tokens; unused slots hold ``layers.NO_TOKEN``.
    """

    vocabulary_size: int
    dimension: int
    slots: int = 1


class ModelSpec(BaseModel):
    """A network by its name and its own numbers.

    Subclasses fix ``name`` with a ``Literal``, add the network's own numbers as fields with defaults, and implement
    ``build``.

    Attributes:
        name: The name in ``pipelines.yaml``.
        hidden_layers: Widths of the fully connected layers. None stands for the widths of the profile; ``with_layers``
            fills them in.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    hidden_layers: tuple[PositiveInt, ...] | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """The widths of the fully connected layers.

        Raises:
            ValueError: They have not been filled in.
        """
        if self.hidden_layers is None:
            raise ValueError(f"the hidden layers of model {self.name!r} are not set")
        return self.hidden_layers

    @property
    def label(self) -> str:
        """A short name for tables: the model's name, with those of its own numbers that are not the defaults.

        >>> DCNv2Spec().label, DCNv2Spec(cross_layers=2).label
        ('dcn_v2', 'dcn_v2 (cross_layers 2)')
        """
        own = self.model_dump(exclude={"name", "hidden_layers"}, exclude_defaults=True)
        numbers = ", ".join(f"{name} {value}" for name, value in own.items())
        return f"{self.name} ({numbers})" if numbers else self.name

    def with_layers(self, default: Sequence[int]) -> ModelSpec:
        """Returns the spec with its hidden layers set: its own, or else ``default``."""
        return self if self.hidden_layers is not None else self.model_copy(update={"hidden_layers": tuple(default)})

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        """Builds the Flax module.

        Args:
            features: The categorical features, in the order of the input's columns.

        Returns:
            A module that maps integers (examples, integer columns) and tokens (examples, slots) to one logit (or log
            intensity) per example.
        """
        raise NotImplementedError

    def parameter_count(self, features: Sequence[CategoricalFeature], integers: int) -> int:
        """Returns the number of parameters of the built network, from the shapes that Flax infers.

        Args:
            features: The categorical features.
            integers: Number of integer columns.
        """
        import jax
        import numpy as np

        columns = sum(feature.slots for feature in features)
        inputs = np.zeros((1, integers), np.float32), np.zeros((1, columns), np.int32)
        shapes = jax.eval_shape(self.build(features).init, jax.random.key(0), *inputs)["params"]
        return sum(leaf.size for leaf in jax.tree.leaves(shapes))


_Spec = TypeVar("_Spec", bound=ModelSpec)

MODELS: dict[str, type[ModelSpec]] = {}


def register_model(spec: type[_Spec]) -> type[_Spec]:
    """Adds a subclass of ``ModelSpec`` to the registry under the default of its ``name``. Use as a decorator.

    Raises:
        ValueError: The class has no default name, or the name is taken.
    """
    name = spec.model_fields["name"].default
    if not isinstance(name, str):
        raise ValueError(f"{spec.__name__} needs a default name, for example: name: Literal['wide'] = 'wide'")
    if name in MODELS:
        raise ValueError(f"a model is already registered as {name!r}")
    if spec.build is ModelSpec.build:
        raise ValueError(f"{spec.__name__} must implement `build`")
    MODELS[name] = spec
    return spec


def as_model_spec(value: Any) -> ModelSpec:
    """Returns the spec for a name, or for a mapping of a name and the model's own numbers.

    Args:
        value: ``"dcn_v2"``, ``{"name": "dcn_v2", "cross_layers": 2}`` or a spec.

    Raises:
        ValueError: No model has that name, or the model has no such number.

    >>> as_model_spec({"name": "dcn_v2", "cross_layers": 2}).label
    'dcn_v2 (cross_layers 2)'
    """
    if isinstance(value, ModelSpec):
        return value
    given: Any = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise ValueError("should be a model's name, or {name: …} with the model's own numbers")
    if given["name"] not in MODELS:
        close = difflib.get_close_matches(given["name"], MODELS, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        raise ValueError(f"no model is called {given['name']!r}{hint}; known: {', '.join(MODELS)}")
    spec = MODELS[given["name"]]
    # YAML and JSON have lists; a spec has tuples, since it is hashed.
    plain = {key: tuple(item) if isinstance(item, list) else item for key, item in given.items()}
    try:
        return spec.model_validate(plain)
    except ValidationError as error:
        raise ValueError("; ".join(_explained(spec, detail) for detail in error.errors())) from None


def _explained(spec: type[ModelSpec], detail: Any) -> str:
    key = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"model {spec.model_fields['name'].default!r} has no {key}; it has: {', '.join(spec.model_fields)}"
    if detail["type"] == "tuple_type":
        return f"{key}: should be a list, got {detail['input']!r}"
    return f"{key}: {detail['msg'][0].lower()}{detail['msg'][1:]}, got {detail['input']!r}"


@register_model
class MLPSpec(ModelSpec):
    """The paper's network."""

    name: Literal["mlp"] = "mlp"

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        from dp_core.models.mlp import AdModel

        return AdModel(tuple(features), self.layers)


@register_model
class PiecewiseMLPSpec(ModelSpec):
    """The paper's network on hat functions of the log-transformed integers, ``spacing`` apart."""

    name: Literal["piecewise_mlp"] = "piecewise_mlp"
    spacing: Annotated[float, Field(ge=0.1, le=10)] = 1.5

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        from dp_core.models.piecewise import PiecewiseMLP

        return PiecewiseMLP(tuple(features), self.layers, spacing=self.spacing)


@register_model
class DCNv2Spec(ModelSpec):
    """DCN-v2, with ``cross_layers`` cross layers beside the fully connected ones."""

    name: Literal["dcn_v2"] = "dcn_v2"
    cross_layers: PositiveInt = 3

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        from dp_core.models.dcn_v2 import DCNv2

        return DCNv2(tuple(features), self.layers, cross_layers=self.cross_layers)


@register_model
class DLRMSpec(ModelSpec):
    """DLRM, with feature vectors projected to ``interaction_dimension`` before their dot products are taken."""

    name: Literal["dlrm"] = "dlrm"
    interaction_dimension: PositiveInt = 16

    def build(self, features: Sequence[CategoricalFeature]) -> AdModel:
        from dp_core.models.dlrm import DLRM

        return DLRM(tuple(features), self.layers, interaction_dimension=self.interaction_dimension)
