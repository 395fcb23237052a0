"""The number of parameters that a model has on prepared data, remembered on disk.

Counting builds the network and so imports JAX, which takes longer than writing the data card that shows the count.
"""

from __future__ import annotations

import inspect
from pathlib import Path

from dp_core.models.spec import ModelSpec
from tasks.data.prepared import Prepared
from tasks.runtime.home import CHECKOUT, home, read_json, short_hash, write_json

# The code that decides the shapes of a network's parameters.
_SOURCES = ("dp_core/models", "dp_core/clipping/layers.py")


def model_size(spec: ModelSpec, prepared: Prepared) -> int:
    """Returns the number of parameters of the network that ``spec`` builds on ``prepared``."""
    features, integers = prepared.features(), len(prepared.integer_columns)
    question = [spec.model_dump(mode="json"), features, integers]
    path = home() / "cache" / "model_size" / f"{short_hash([question, _source_hash(spec)])}.json"
    if path.exists():
        return int(read_json(path, alone=True)["parameters"])
    count = spec.parameter_count(features, integers)
    write_json(path, {"question": question, "parameters": count})
    return count


def _source_hash(spec: ModelSpec) -> str:
    files = [CHECKOUT / source for source in _SOURCES]
    modules = [module for file in files for module in (sorted(file.glob("*.py")) if file.is_dir() else [file])]
    # A model that is registered from outside brings its own module.
    own = Path(inspect.getfile(type(spec)))
    return short_hash([module.read_text(encoding="utf-8") for module in dict.fromkeys([*modules, own])])
