"""Nightly retrains: days of data, the sliding window, data checks, the steps of a night, the champion, the pages.

Doors: ``record`` (a night's record, the id of its DAG), ``steps`` and ``training_steps`` (what the DAG calls), ``due``
(which nights are due), ``running`` (nights from the command line), ``champions`` (the history of the alias),
``kept_heads`` (whether the ledger is the one that nights know), ``budgets`` (whether data has one)
and ``pages``. The models themselves are served by ``tasks.serving``, and what they cost is in ``tasks.ledger``.
"""
