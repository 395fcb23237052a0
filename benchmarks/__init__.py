"""Benchmarks and mutation tests, behind numbers in the documentation.

They are ``make bench``, ``make bench-prepare``, ``make walk`` and ``make mutants``. Each is a command of its own
(``make bench`` runs two, ``noise`` and ``clipping``). What they share with the throughput pipeline (programs, timing,
child processes) is in ``tasks/speed``.
"""
