"""Speed and memory of training steps, measured on this machine.

Everything is measured in child processes. Training itself, and how it chooses the size of physical batches, is in
``tasks/training``.

Doors: ``throughput.measure_throughput`` (the throughput pipeline), ``child.run_child``, ``programs`` and ``workloads``
(benchmarks), ``results`` (types of what is measured).
"""
