"""What training runs on: devices, processes, and how a batch is cut to fit."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils

from dp_core.memory import rows_at_once
from dp_core.microbatches import make_microbatches
from dp_core.models import AdModel
from dp_core.physical_batches import PhysicalShape, physical_shape
from dp_core.placement import Placement
from dp_core.sampling import Sampler
from tasks.batches import steps_per_dispatch
from tasks.config import Hardware
from tasks.encoded import Prepared
from tasks.errors import UserError
from tasks.home import home


class BatchPlan(NamedTuple):
    """How batches come to the device: in which physical batches, and how many steps at a time."""

    shape: PhysicalShape
    steps_per_dispatch: int


def join_processes(coordinator: str, processes: int, process: int) -> None:
    """Makes this process one of several that train every trial together, each with its own devices.

    All must see the same home folder, or copies of its plan and prepared data; the first writes.
    """
    if not 0 <= process < processes:
        raise UserError(f"--process must be from 0 to {processes - 1}, got {process}")
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except RuntimeError as error:
        raise UserError(f"could not join {processes} processes at {coordinator}: {error}") from None


def is_first_process() -> bool:
    return jax.process_index() == 0


def first_processes(value: Any) -> Any:
    """The first process's value, in all of them."""
    return value if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(value)


def use_compilation_cache() -> None:
    """Compiled programs are kept below the home folder, for other processes and later runs."""
    jax.config.update("jax_compilation_cache_dir", str(home() / "cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def choose_placement(hardware: Hardware) -> Placement:
    seen = len(jax.devices())
    devices = seen if hardware.devices == "all" else hardware.devices
    if devices > seen:
        raise UserError(f"hardware.devices: {devices} devices were asked for, but JAX sees {seen}")
    if jax.process_count() > 1 and devices != seen:
        raise UserError(f"hardware.devices: several processes train on all their {seen} devices together")
    return Placement(devices, hardware.tables)


def plan_batches(
    hardware: Hardware, model: AdModel, params: Any, prepared: Prepared, sampler: Sampler, placement: Placement
) -> BatchPlan:
    if hardware.physical_batch_size == "auto":
        columns = {"integers": len(prepared.integer_columns), "categoricals": len(prepared.categorical_columns)}
        # Processes may have unequal memory, but must cut batches alike.
        rows = int(first_processes(rows_at_once(model, params, **columns))) * placement.devices
    else:
        rows = hardware.physical_batch_size
    shape = physical_shape(
        sampler.max_batch_size,
        largest_rows=rows,
        microbatches=make_microbatches(sampler.microbatch_size),
        devices=placement.devices,
    )
    dense = sum(value.size for path, value in flatten_dict(params).items() if path[-1] != "table")
    return BatchPlan(shape, steps_per_dispatch(shape, dense))
