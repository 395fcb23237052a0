"""The digest of a model's parameters, by which a file of them is compared with what was released."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np


def parameters_digest(arrays: Mapping[str, np.ndarray]) -> str:
    """Returns a hash of arrays with their names, shapes and types. Their order does not matter.

    >>> one, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
    >>> parameters_digest({"a": one, "b": zero}) == parameters_digest({"b": zero, "a": one})
    True
    >>> parameters_digest({"a": one}) == parameters_digest({"a": zero})
    False
    """
    hashed = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hashed.update(repr((name, array.dtype.str, array.shape)).encode())
        hashed.update(array.tobytes())
    return hashed.hexdigest()
