"""Limits of memory that the system sets for this process, and whether a run can work under them."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from pathlib import Path

from tasks.runtime.errors import UserError

# XLA, Arrow and the threads of each reserve addresses for about 3.8 GB, a fourth of which a small run uses. With fewer,
# libraries abort, or wait for a thread that never started.
LEAST_ADDRESSES = 4 * 10**9
_MEMORY = Path("/sys/fs/cgroup")


def check_limits() -> None:
    """Raises ``UserError`` if a limit on addresses is so low that libraries would abort or hang."""
    for kind, name in ((resource.RLIMIT_AS, "-v"), (resource.RLIMIT_DATA, "-d")):
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY and limit < LEAST_ADDRESSES:
            raise UserError(
                f"not enough memory: this shell limits a process to {limit / 1e6:,.0f} MB of addresses, and a run "
                f"reserves at least {LEAST_ADDRESSES / 1e6:,.0f} MB, most of which it never uses. Lift the limit with "
                f"`ulimit {name} unlimited`; to limit the memory that is used, use a control group"
            )


def limits() -> list[str]:
    """Returns the limits of memory of this process, as texts."""
    found = [(resource.getrlimit(kind)[0], "addresses") for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    texts = [f"{limit / 1e6:,.0f} MB of {what}" for limit, what in found if limit != resource.RLIM_INFINITY]
    group = min(_group_limits(), default=None)
    return texts + ([f"{group / 1e6:,.0f} MB for its control group"] if group is not None else [])


def _group_limits() -> Iterator[int]:
    """Yields the limits of the control groups that this process is in, of either version of them."""
    try:
        groups = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for group in groups:
        _, kinds, path = group.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root, file = (_MEMORY / "memory", "memory.limit_in_bytes") if kinds else (_MEMORY, "memory.max")
        # In a container the path is that of the host.
        for folder in (root / path.lstrip("/"), root):
            try:
                text = (folder / file).read_text().strip()
            except OSError:
                continue
            # Version 1 says "no limit" with the largest number that it can hold.
            if re.fullmatch(r"\d+", text) and int(text) < 1 << 60:
                yield int(text)
            break
