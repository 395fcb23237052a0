"""When something outside fails: a disk, the memory, a database, a server.

Here is what a person is told, and how a run goes on without an MLflow server. Which errors may pass when the same is
tried again is in ``tasks.runtime.errors``.

Doors: ``told`` (an error as a sentence), ``limits`` (of memory) and ``unlogged`` (runs that MLflow has not got).
"""
