"""Checksums: what is read is what was written.

Here is how files carry checksums and how those are checked. What the files mean, and what to do without them, belongs
to the rooms that write them.

Doors: ``manifest`` (the checksums of a folder's files, written last) and ``sealed`` (JSON that carries its own).
"""
