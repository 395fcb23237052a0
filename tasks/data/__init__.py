"""Prepared data: from raw logs to encoded, memory-mapped splits.

What belongs here: parsing under Dask, the chronological split, labels from later events, vocabularies, encoding, and
the files of a prepared folder. How a log looks on disk belongs to ``tasks.logs``; the data card to ``tasks.reporting``.

Doors: ``preparation`` (prepares a log) and ``prepared`` (opens a prepared folder, described by ``schema``). Nights and
released models also use ``parts`` (parsed files, made of ``parsed_blocks``), ``encoding`` (their labels), ``features``
(a value as a model's input), ``splits``, ``vocabulary``, ``stable_hash`` and ``statistics``.
"""
