"""The hardware that training runs on: devices, processes, and batch sizes that fit into memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np
from flax.traverse_util import flatten_dict
from jax.experimental import multihost_utils
from threadpoolctl import threadpool_limits

from dp_core.clipping.microbatches import make_microbatches
from dp_core.clipping.signals import Batch, backward
from dp_core.models.mlp import AdModel
from dp_core.sampling import Sampler
from dp_core.training.physical_batches import PhysicalShape, physical_shape
from dp_core.training.placement import Placement
from tasks.config.loading import Hardware
from tasks.data.prepared import Prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.runtime.memory import available_memory
from tasks.training.batches import steps_per_dispatch

# On a CPU, a physical batch's layer signals should stay near the caches: a batch of 8,192 of the paper's model runs a
# fifth faster in physical batches of this size than whole.
_CPU_WORKING_SET = 24 * 2**20
# Share of the free memory for the layer signals of one physical batch. The rest is for parameters, gradients and the
# optimizer.
_SHARE_FOR_SIGNALS = 0.25
_MIN_ROWS, _MAX_ROWS = 64, 2**17


class BatchPlan(NamedTuple):
    """How batches are sent to the device: the shape of a step's physical batches, and the steps per dispatch."""

    shape: PhysicalShape
    steps_per_dispatch: int


def join_processes(coordinator: str, processes: int, process: int) -> None:
    """Joins several processes that train every trial together, each on its own devices.

    All processes need the same home folder, or copies of its plan and prepared data. Only the first process writes.
    """
    if not 0 <= process < processes:
        raise UserError(f"--process must be between 0 and {processes - 1}, got {process}")
    try:
        jax.distributed.initialize(coordinator, processes, process)
    except RuntimeError as error:
        raise UserError(f"could not join {processes} processes at {coordinator}: {error}") from None


def is_first_process() -> bool:
    return jax.process_index() == 0


def first_processes(value: Any) -> Any:
    """Returns the first process's value in every process."""
    return value if jax.process_count() == 1 else multihost_utils.broadcast_one_to_all(value)


def use_compilation_cache() -> None:
    """Keeps compiled programs below the home folder, for other processes and later runs."""
    jax.config.update("jax_compilation_cache_dir", str(home() / "cache" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def use_one_blas_thread() -> None:
    """Limits NumPy's matrix products to one thread: threads of a product of ours would wait in a busy loop, on the
    cores that the device computes on."""
    threadpool_limits(1, user_api="blas")


def choose_placement(hardware: Hardware) -> Placement:
    """Returns the placement that ``hardware`` asks for. Raises ``UserError`` if there are too few devices."""
    seen = len(jax.devices())
    devices = seen if hardware.devices == "all" else hardware.devices
    if devices > seen:
        raise UserError(f"hardware.devices: asks for {devices} devices, but JAX sees {seen}")
    if jax.process_count() > 1 and devices != seen:
        raise UserError(f"hardware.devices: with several processes it must be `all`, their {seen} devices together")
    return Placement(devices, hardware.tables)


def plan_batches(
    hardware: Hardware, model: AdModel, params: Any, prepared: Prepared, sampler: Sampler, placement: Placement
) -> BatchPlan:
    """Returns the largest physical batches that fit into memory, or the configured ones."""
    if hardware.physical_batch_size == "auto":
        columns = {"integers": len(prepared.integer_columns), "categoricals": len(prepared.categorical_columns)}
        # All processes must cut batches the same way, even if their memory differs.
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


def rows_at_once(model: AdModel, params: Any, *, integers: int, categoricals: int, available: int | None = None) -> int:
    """Returns how many rows of a batch to compute at once on one device.

    Args:
        model: The model.
        params: Its parameters, or their shapes.
        integers: Number of integer features.
        categoricals: Number of categorical features.
        available: Free bytes of the device. Default: what is free now.
    """
    per_row = bytes_per_row(model, params, integers=integers, categoricals=categoricals)
    budget = int(_SHARE_FOR_SIGNALS * (available_memory() if available is None else available))
    if jax.default_backend() == "cpu":
        budget = min(budget, _CPU_WORKING_SET)
    return min(max(budget // per_row, _MIN_ROWS), _MAX_ROWS)


def bytes_per_row(model: AdModel, params: Any, *, integers: int, categoricals: int) -> int:
    """Returns the bytes of one example's layer inputs and output gradients."""
    one = np.ones(1, np.float32)
    row = Batch(np.zeros((1, integers), np.float32), np.zeros((1, categoricals), np.int32), one, one)

    def arrays(params: Any, batch: Batch) -> Any:
        signals, losses = backward(model, params, batch, lambda logits, labels: logits - labels)
        return [layer[1:] for layer in signals.values()], losses

    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(arrays, params, row)))
