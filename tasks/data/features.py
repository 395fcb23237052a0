"""What a value of a log becomes as a model's input, without a look at other rows: log transform and hash bucket.

It is also part of released models, so it imports nothing of ours but the hash.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tasks.data.stable_hash import stable_hash


def log_transform(values: np.ndarray) -> np.ndarray:
    """Returns sign(x)·log(1 + |x|) as float32; a missing value stays NaN."""
    return np.copysign(np.log1p(np.abs(values)), values).astype(np.float32)


def bucket_ids(column: str, tokens: pa.Array, buckets: int) -> np.ndarray:
    """Returns the ids of a column's tokens in a ``hash`` vocabulary, from 1 to ``buckets``."""
    return (stable_hash(column, tokens) % np.uint64(buckets)).astype(np.int32) + np.int32(1)
