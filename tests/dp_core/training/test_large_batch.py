"""The paper's batch of 65,536 on the paper's model of 10.9M parameters, under 4 GiB."""

from __future__ import annotations

import json
import math
import subprocess
import sys

GIB = 2**30


def test_a_batch_of_65536_runs_under_four_gibibytes() -> None:
    """The kernel enforces the limit on the process's allocations. Without physical batches the layer signals
    alone would take more than half of it, and vmap's per-example gradients 2.8 TB."""
    command = [sys.executable, "-m", "tests.support.large_batch", "65536", str(4 * GIB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    measured = json.loads(done.stdout)
    assert measured["parameters"] == 10_908_057
    assert measured["steps"] == 2
    assert math.isfinite(measured["loss"])
    assert measured["physical_batches"] > 8
    assert measured["peak_resident_bytes"] < 4 * GIB
