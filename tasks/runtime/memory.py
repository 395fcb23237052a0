"""Memory of this machine: how much is free, and how the process keeps what it frees."""

from __future__ import annotations

import ctypes
import resource
import sys
from pathlib import Path

import jax

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Assumed free where no limit is visible.
_UNKNOWN = 4 * 2**30


def keep_freed_memory() -> None:
    """Makes malloc reuse memory that this process freed, instead of returning it to the system.

    XLA's CPU client allocates its temporary buffers at every call. By default glibc maps such large blocks anew each
    time, and the page faults take as long as a whole step of a 10M-parameter model. No effect with other C libraries.
    """
    if sys.platform.startswith("linux"):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(_M_MMAP_THRESHOLD, 2**30)
            mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


def available_memory() -> int:
    """Returns the free bytes of this process's first device.

    On a CPU that is the tightest of the process's resource limits, its cgroup's limit and the machine's free memory.
    """
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return min(_free_limits(), default=_UNKNOWN)


def _free_limits() -> list[int]:
    limits = []
    usage = _kernel_bytes("/proc/self/status", "VmData:")
    for kind in (resource.RLIMIT_DATA, resource.RLIMIT_AS):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            limits.append(max(limit - usage, 0))
    free = _kernel_bytes("/proc/meminfo", "MemAvailable:")
    if free:
        limits.append(free)
    try:
        group = Path("/sys/fs/cgroup")
        limits.append(int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no cgroup, or one without a limit ("max")
    return limits


def _kernel_bytes(path: str, name: str) -> int:
    """Returns an entry of a table in /proc, which is in kilobytes, in bytes; 0 if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)
