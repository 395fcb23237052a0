"""Describes the machine, in a child process, so that the process that asks need not start JAX."""

from __future__ import annotations

import dask.system
import jax

from tasks.speed.results import Machine


def describe_machine() -> Machine:
    """Returns the kind of device, the number of CPUs and the version of JAX."""
    return {"device": jax.devices()[0].device_kind, "cpus": dask.system.CPU_COUNT, "jax": jax.__version__}
