"""The walk: which modules a raw row passes on its way to a cell of the table, traced and drawn.

``trace`` runs the steps of a smoke run under a profiler hook and records every call that crosses from one module to
another. ``visits`` counts the modules and finds those that are entered again. ``figure`` draws the result into
``docs/``. The door is ``python -m benchmarks.walk`` (``make walk``).
"""
