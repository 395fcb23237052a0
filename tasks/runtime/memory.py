"""How much memory there is, and how many rows of a batch are good to compute at once."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dp_core.models import AdModel
from dp_core.signals import Batch, backward

# On a CPU a piece's layer signals should stay near its caches: a batch of 8,192 of the paper's model
# runs a fifth faster in pieces of this size than at once.
_CPU_WORKING_SET = 24 * 2**20
# The share of the free memory that the signals of one piece may take; parameters, gradients and the
# optimiser need the rest.
_SHARE_FOR_SIGNALS = 0.25
_FEWEST_ROWS, _MOST_ROWS = 64, 2**17

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Lets this process reuse memory that it freed instead of asking the system for it anew.

    XLA's CPU client allocates its temporary buffers at every call. By default glibc maps such large
    blocks freshly, and the page faults take as long as a whole step of a 10M-parameter model does.
    Does nothing where the C library is another.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, 2**30)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def rows_at_once(model: AdModel, params: Any, *, integers: int, categoricals: int, available: int | None = None) -> int:
    """How many rows of a batch to compute in one piece, from the memory there is.

    ``available`` bytes is what the device has free, unless given.
    """
    per_row = bytes_per_row(model, params, integers=integers, categoricals=categoricals)
    budget = int(_SHARE_FOR_SIGNALS * (available_memory() if available is None else available))
    if jax.default_backend() == "cpu":
        budget = min(budget, _CPU_WORKING_SET)
    return min(max(budget // per_row, _FEWEST_ROWS), _MOST_ROWS)


def bytes_per_row(model: AdModel, params: Any, *, integers: int, categoricals: int) -> int:
    """What one example's layer inputs and output gradients take."""
    one = np.ones(1, np.float32)
    row = Batch(np.zeros((1, integers), np.float32), np.zeros((1, categoricals), np.int32), one, one)

    def arrays(params: Any, batch: Batch) -> Any:
        signals, losses = backward(model, params, batch, lambda logits, labels: logits - labels)
        return [layer[1:] for layer in signals.values()], losses

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(arrays, params, row)))


def available_memory() -> int:
    """Bytes that this process's first device has free, by the tightest of the limits that can be seen."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return min(_free_limits(), default=4 * 2**30)


def _free_limits() -> list[int]:
    limits = []
    usage = _kilobytes("/proc/self/status", "VmData:")
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            limits.append(max(limit - usage, 0))
    free = _kilobytes("/proc/meminfo", "MemAvailable:")
    if free:
        limits.append(free)
    try:
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no control group, or one without a limit ("max")
    return limits


def _kilobytes(path: str, name: str) -> int:
    """A line of a kernel table, in bytes; 0 where there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)
