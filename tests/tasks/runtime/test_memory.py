"""Free memory and malloc settings."""

from __future__ import annotations

import subprocess
import sys

from tasks.runtime.memory import available_memory, keep_freed_memory


def test_a_resource_limit_of_the_process_counts() -> None:
    limit = 6 * 2**30
    script = f"""
import resource
resource.setrlimit(resource.RLIMIT_DATA, ({limit}, {limit}))
from tasks.runtime.memory import available_memory
print(available_memory())
"""
    free = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 0 < int(free.stdout) < limit
    assert available_memory() > 0


def test_keeping_freed_memory_is_harmless() -> None:
    keep_freed_memory()
    keep_freed_memory()
