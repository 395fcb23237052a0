"""Memory of a training step: its measured peak, and the largest batch that fits under a cap."""

from __future__ import annotations

import functools
import gc
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from tasks.speed.programs import (
    Form,
    MethodName,
    Program,
    compile_step,
    hyperparameters,
    initial_state,
    make_program,
    planned_bytes,
)
from tasks.speed.workloads import Workload

_STEPS = 3


def measure_peak(program: Program) -> int | None:
    """Returns the peak growth of this process in bytes while it creates a program's arrays and runs it.

    Call it in a process that does nothing else and has not called ``keep_freed_memory``, which would leave freed
    blocks in the threads' arenas. Returns None where the kernel does not report the peak.
    """
    if not sys.platform.startswith("linux"):
        return None
    workload = program.workload
    compiled = compile_step(program)
    make_state = jax.jit(lambda: initial_state(program)).lower().compile()
    key, numbers = jax.random.key(0), hyperparameters(program.batch_size)
    batches = workload.random_batch(program.batch_size, program.pieces, program.rows)
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak, which includes compiling
    except OSError:
        return None
    before = _resident("VmRSS")
    state, on_device = make_state(), jax.tree.map(lambda leaf: jax.device_put(leaf, may_alias=False), batches)
    for _ in range(_STEPS):
        # Wait for each step: a queued one would already hold its temporaries.
        state, _ = jax.block_until_ready(compiled(state, on_device, np.int32(program.pieces), key, numbers))
    return _resident("VmHWM") - before


def largest_batch_size(
    workload: Workload,
    method: MethodName,
    form: Form,
    *,
    cap_bytes: int,
    physical_batch_size: int | None = None,
    known_sizes: Sequence[int] = (),
) -> int:
    """Returns the largest power of two for which XLA plans at most ``cap_bytes`` for a step without noise.

    Only compiles. Returns 0 if even a batch of one example does not fit. ``known_sizes`` are two batch sizes that are
    in JAX's compilation cache: they save time and do not change the result.
    """

    def program(batch_size: int) -> Program:
        return make_program(
            workload, method, form, noise=False, batch_size=batch_size, physical_batch_size=physical_batch_size
        )

    @functools.cache
    def planned(batch_size: int) -> int:
        return planned_bytes(compile_step(program(batch_size)))

    # The planned memory is linear in the batch size (in physical batches, once there are several). Two sizes locate
    # the cap approximately, which saves compiling most of the powers of two in between.
    unit = 64 if form == "whole" else 8 * program(2**20).rows
    small, large = known_sizes or (unit, 8 * unit)
    bytes_a_row = max((planned(large) - planned(small)) / (large - small), 1e-9)
    estimate = small + (cap_bytes - planned(small)) / bytes_a_row
    size = 2 ** int(math.log2(max(estimate, 1)))
    while size and planned(size) > cap_bytes:
        size //= 2
    while size and planned(2 * size) <= cap_bytes:
        size *= 2
    return size


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
