"""Prepared data: from raw logs to encoded, memory-mapped splits.

What belongs here: parsing under Dask, the chronological split, labels from later events, vocabularies, encoding, and
the files of a prepared folder. How a log looks on disk belongs to ``tasks.logs``; the data card to ``tasks.reporting``.

Doors: ``preparation`` (prepares a log) and ``prepared`` (opens a prepared folder, described by ``schema``).
"""
