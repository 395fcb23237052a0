"""What a measurement is a measurement of: asked of a child, so that the process that asks need not start JAX."""

from __future__ import annotations

from typing import Any

import dask.system
import jax


def describe_machine() -> dict[str, Any]:
    return {"device": jax.devices()[0].device_kind, "cpus": dask.system.CPU_COUNT, "jax": jax.__version__}
