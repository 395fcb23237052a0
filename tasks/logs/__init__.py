"""Raw logs: finding files, reading them in blocks, drafting descriptions, and generating synthetic logs.

What belongs here: everything that knows how a log looks on disk. Turning rows into arrays belongs to ``tasks.data``.
A new format is a reader in this room and its registration in ``formats``.

Doors: ``formats`` (the registry and the reader protocol), ``files`` (the files of a log), ``rows`` (what a reader
returns), ``token_dictionaries`` (columns of tokens), ``text_values`` (numbers in text), ``placeholders`` (missing
values), ``draft`` (``python -m tasks describe``), ``synthetic`` (generated logs) and ``synthetic_days`` (generated logs
that come by days).
"""
