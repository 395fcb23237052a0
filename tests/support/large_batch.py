"""Steps of a large logical batch of the paper's model under a memory limit, run by ``test_large_batch.py``.

Prints what it measured as JSON: ``python -m tests.support.large_batch LOGICAL_BATCH_SIZE MEMORY_LIMIT_BYTES``.
"""

from __future__ import annotations

import json
import resource
import sys
import time


def main(batch_size: int, limit: int) -> None:
    # Set before anything is allocated. An allocation beyond the limit fails and ends the process.
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))

    import jax
    import numpy as np

    from benchmarks.workloads import WORKLOADS
    from dp_core.clipping.layers import initial_parameters
    from dp_core.training.method import Method
    from dp_core.training.physical_batches import physical_shape
    from dp_core.training.step import Hyperparameters, Steps, as_traced, make_trainer
    from tasks.runtime.memory import keep_freed_memory
    from tasks.training.hardware import rows_at_once

    keep_freed_memory()
    workload = WORKLOADS["paper"]
    columns = {"integers": workload.integers, "categoricals": workload.categoricals}
    row = workload.random_batch(1, 1, 1)
    params = initial_parameters(workload.model, np.random.default_rng(0), row.integers[0], row.categoricals[0])
    rows = rows_at_once(workload.model, params, **columns)
    shape = physical_shape(batch_size, largest_rows=rows)
    batch = workload.random_batch(batch_size, *shape)
    trainer = make_trainer(Method(workload.model, "pctr", "sgd", 0.9, True))
    hyper = as_traced(Hyperparameters(0.01, 100, batch_size, l2_clip_norm=1.0, noise_multiplier=1.0))
    state = trainer.init(params, hyper)
    steps = Steps(jax.tree.map(lambda leaf: leaf[None], batch), np.array([shape.pieces], np.int32), np.int32(1))
    began = time.monotonic()
    for _ in range(2):
        state, reports = trainer.run(state, steps, jax.random.key(0), hyper)
    result = {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(params)),
        "steps": int(state.step),
        "loss": float(reports.loss[0]),
        "physical_batches": shape.pieces,
        "seconds": time.monotonic() - began,
        "peak_resident_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
