"""Benchmarks behind numbers in the documentation: ``make bench``, ``make bench-prepare``, ``make walk``.

Each is a command of its own (``make bench`` runs two, ``noise`` and ``clipping``). What they share with the throughput
pipeline (programs, timing, child processes) is in ``tasks/speed``.
"""
