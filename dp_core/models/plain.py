"""The networks of this room in NumPy, for released models: predictions without JAX, for any number of rows.

Each function takes the parameters by the names of ``parameters.npz``, such as ``hidden_0/kernel``, and the inputs of
the Flax module. It computes the same logits, up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Parameters = Mapping[str, np.ndarray]
Network = Callable[[Parameters, Mapping[str, Any], np.ndarray, np.ndarray], np.ndarray]

# Rows that are computed at once: their layers stay in the processor's cache.
_ROWS_AT_ONCE = 4096


def predict_logits(
    spec: Mapping[str, Any], parameters: Parameters, integers: np.ndarray, categoricals: np.ndarray
) -> np.ndarray:
    """Returns one logit (or log intensity) per row, as float32.

    Args:
        spec: The model spec as JSON: its name and numbers.
        parameters: The released parameters.
        integers: float32 of shape (rows, integer columns), NaN where missing.
        categoricals: Token ids of shape (rows, categorical columns).

    Raises:
        ValueError: No network of that name is known here.
    """
    if spec["name"] not in NETWORKS:
        raise ValueError(f"no network is called {spec['name']!r}; known: {', '.join(NETWORKS)}")
    network, rows = NETWORKS[spec["name"]], len(integers)
    logits = np.empty(rows, np.float32)
    for start in range(0, rows, _ROWS_AT_ONCE):
        piece = slice(start, start + _ROWS_AT_ONCE)
        logits[piece] = network(parameters, spec, integers[piece], categoricals[piece])
    return logits


def _mlp(parameters: Parameters, spec: Mapping[str, Any], integers: np.ndarray, categoricals: np.ndarray) -> np.ndarray:
    return _output(parameters, _hidden(parameters, spec, _inputs(parameters, integers, categoricals)))


def _piecewise_mlp(
    parameters: Parameters, spec: Mapping[str, Any], integers: np.ndarray, categoricals: np.ndarray
) -> np.ndarray:
    spacing, missing = np.float32(spec["spacing"]), np.isnan(integers)
    # The knots of ``piecewise.py``, which imports JAX.
    knots = np.float32(-1.5) + spacing * np.arange(int(np.ceil(16.5 / spec["spacing"] - 1e-9)) + 1, dtype=np.float32)
    places = np.clip(integers, np.float32(-1.5), np.float32(15))[:, :, None]
    hats = np.maximum(0, 1 - np.abs(places - knots) / spacing)
    hats = np.where(missing[:, :, None], np.float32(0), hats).reshape(len(integers), integers.shape[1] * len(knots))
    inputs = [hats, missing.astype(np.float32), *_embedded(parameters, categoricals)]
    return _output(parameters, _hidden(parameters, spec, np.concatenate(inputs, axis=1)))


def _dcn_v2(
    parameters: Parameters, spec: Mapping[str, Any], integers: np.ndarray, categoricals: np.ndarray
) -> np.ndarray:
    first = _inputs(parameters, integers, categoricals)
    crossed = first
    for index in range(spec["cross_layers"]):
        crossed = first * _dense(parameters, f"cross_{index}", crossed) + crossed
    return _output(parameters, np.concatenate([crossed, _hidden(parameters, spec, first)], axis=1))


def _dlrm(
    parameters: Parameters, spec: Mapping[str, Any], integers: np.ndarray, categoricals: np.ndarray
) -> np.ndarray:
    numbers = np.maximum(_dense(parameters, "bottom", _with_indicators(integers)), 0)
    embedded = _embedded(parameters, categoricals)
    projected = [_dense(parameters, f"projection_{index}", vector) for index, vector in enumerate(embedded)]
    stacked = np.stack([numbers, *projected], axis=1)
    products = stacked @ stacked.swapaxes(1, 2)
    left, right = np.tril_indices(stacked.shape[1], -1)
    return _output(parameters, _hidden(parameters, spec, np.concatenate([numbers, products[:, left, right]], axis=1)))


# The networks that released models may have, by the names of their specs.
NETWORKS: dict[str, Network] = {"mlp": _mlp, "piecewise_mlp": _piecewise_mlp, "dcn_v2": _dcn_v2, "dlrm": _dlrm}


def _inputs(parameters: Parameters, integers: np.ndarray, categoricals: np.ndarray) -> np.ndarray:
    return np.concatenate([_with_indicators(integers), *_embedded(parameters, categoricals)], axis=1)


def _with_indicators(integers: np.ndarray) -> np.ndarray:
    missing = np.isnan(integers)
    return np.concatenate([np.where(missing, np.float32(0), integers), missing.astype(np.float32)], axis=1)


def _embedded(parameters: Parameters, categoricals: np.ndarray) -> list[np.ndarray]:
    return [parameters[f"embedding_{column}/table"][categoricals[:, column]] for column in range(categoricals.shape[1])]


def _hidden(parameters: Parameters, spec: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    for index in range(len(spec["hidden_layers"])):
        x = np.maximum(_dense(parameters, f"hidden_{index}", x), 0)
    return x


def _output(parameters: Parameters, x: np.ndarray) -> np.ndarray:
    return _dense(parameters, "output", x)[:, 0]


def _dense(parameters: Parameters, name: str, x: np.ndarray) -> np.ndarray:
    output = x @ parameters[f"{name}/kernel"]
    bias = parameters.get(f"{name}/bias")
    return output if bias is None else output + bias
