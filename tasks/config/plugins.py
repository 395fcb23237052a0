"""Plug-ins: modules of the user's own that register models, clip factors, log formats or exhibits.

``plugins: [my_models]`` in ``pipelines.yaml`` imports ``my_models`` before the rest of the file is checked, so that the
file may use what the module registers. Every step loads the configuration first, and so does the DAG file that Airflow
parses, so a plug-in is registered in every process of ours. The workers of a Dask cluster do not load the
configuration: they must find the module of a log format on their own Python path.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.models.spec import MODELS
from dp_core.training.optimizers import OPTIMIZERS
from tasks.config.yaml_lines import Problem
from tasks.logs.formats import LOG_FORMATS
from tasks.reporting.exhibits.registry import EXHIBITS, exhibits

_REGISTRIES: tuple[dict[str, Any], ...] = (MODELS, CLIP_FACTORS, OPTIMIZERS, LOG_FORMATS, EXHIBITS)


def import_plugins(raw: Any, folder: Path) -> Iterator[Problem]:
    """Imports the modules that the file lists under ``plugins``; yields what goes wrong.

    Args:
        raw: The parsed file. A malformed list is left to the validation of the file.
        folder: The folder of the file. Modules are found there and on the Python path.
    """
    listed = raw.get("plugins") if isinstance(raw, dict) else None
    names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
    if names and str(folder) not in sys.path:
        sys.path.append(str(folder))
    if names:
        exhibits()  # registers ours first, so that a plug-in that takes one of their names is the one that fails
    for number, name in enumerate(names):
        try:
            with _undone_on_failure():
                importlib.import_module(name)
        except (Exception, SystemExit) as error:  # whatever a plug-in's own code raises
            yield ("plugins", number), f"cannot import {name!r}: {_reason(error, name, folder)}"


@contextlib.contextmanager
def _undone_on_failure() -> Iterator[None]:
    """Removes what the block has registered if it fails, so that the next attempt meets the same error."""
    before = [dict(registry) for registry in _REGISTRIES]
    try:
        yield
    except BaseException:
        for registry, entries in zip(_REGISTRIES, before, strict=True):
            registry.clear()
            registry.update(entries)
        raise


def _reason(error: BaseException, name: str, folder: Path) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module {error.name!r} in {folder} or on the Python path"
    if isinstance(error, SystemExit):
        return "it calls sys.exit()"
    return f"{type(error).__name__}: {error}"
