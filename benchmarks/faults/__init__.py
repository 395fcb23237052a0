"""Faults of the machine, injected into real runs: rot of files and full disks (``make rot``, ``make full-disk``).

Each prints counts of what came of its faults, and exits with status 1 if there was a wrong table or a traceback.
"""
