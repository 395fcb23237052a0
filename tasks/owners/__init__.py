"""Who makes what in the home folder: one process an output at a time, and what dead processes left is swept up.

All ownership is a lock of the operating system (``flock``), which ends with its process however that ends. So no lock
is ever stale, and what nobody holds is provably nobody's.

Doors: ``locks`` (one process makes an output, the others wait), ``held`` (files and folders that a process works on),
``runs`` (which run this process belongs to), ``sweeping`` (tidies up after processes that were killed) and ``attempts``
(how far each attempt at a training came).
"""
