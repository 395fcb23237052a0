"""The registry of exhibits: what each one shows, and what a pipeline must provide for it.

The configuration checks pipelines against these declarations, and the report step finds the function that makes an
exhibit here. To add one, put a module into this package that calls ``register_exhibit``, or call it from anywhere
before the configuration is loaded. DAG parsing loads the configuration, so a module that registers an exhibit imports
heavy libraries (JAX, SciPy, a plotting library) inside its functions.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tasks.reporting.exhibits.common import Exhibit


@dataclass(frozen=True)
class ExhibitSpec:
    """What an exhibit is made from.

    Attributes:
        name: The value of ``exhibit`` in ``pipelines.yaml``.
        make: Returns the exhibit. Takes a ``Sweep`` if the exhibit needs ``tasks``, otherwise a ``Measurement``.
        needs: The part of a grid that the exhibit shows: trained ``tasks``, noise ``curves`` or ``speed``.
        columns: The ``columns`` that a pipeline must give, in this order, or ``"any"``.
        several_tasks: Whether the exhibit can show more than one task.
        several_mechanisms: Whether the exhibit can show DP-SGD and LabelDP side by side.
        claims_price: Whether the exhibit's numbers are claimed to be the price of privacy (``tasks.reporting.price``).
        two_recipes: Whether the exhibit can show two recipes of DP-SGD side by side (``paper_recipe``).
    """

    name: str
    make: Callable[..., Exhibit]
    needs: Literal["tasks", "curves", "speed"] = "tasks"
    columns: tuple[str, ...] | Literal["any"] = ()
    several_tasks: bool = False
    several_mechanisms: bool = False
    two_recipes: bool = False
    claims_price: bool = False

    def __post_init__(self) -> None:
        # A pipeline's columns are a tuple, and a list never equals one.
        if isinstance(self.columns, list):
            object.__setattr__(self, "columns", tuple(self.columns))


EXHIBITS: dict[str, ExhibitSpec] = {}


def register_exhibit(spec: ExhibitSpec) -> None:
    """Makes an exhibit available to pipelines.

    Raises:
        ValueError: Another exhibit already has this name.
    """
    if EXHIBITS.setdefault(spec.name, spec) != spec:
        raise ValueError(f"an exhibit named {spec.name!r} is already registered")


def exhibits() -> Mapping[str, ExhibitSpec]:
    """Returns every registered exhibit by its name."""
    _register_ours()
    return EXHIBITS


@functools.cache
def _register_ours() -> None:
    package = __name__.rpartition(".")[0]
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        importlib.import_module(module.name)
