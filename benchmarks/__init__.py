"""Benchmarks, mutation tests and faults, behind numbers in the documentation, and the check of the locked packages.

They are ``make bench``, ``make bench-prepare``, ``make walk``, ``make mutants``, ``make rot``, ``make full-disk`` and
``make audit-lock``. Each is a
command of its own (``make bench`` runs two, ``noise`` and ``clipping``). What they share with the throughput pipeline
(programs, timing, child processes) is in ``tasks/speed``.
"""
