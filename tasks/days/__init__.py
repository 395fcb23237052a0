"""Logs that come by days: what has been delivered, whether a new day is as usual, and the prepared data of a night.

How logs are read and encoded belongs to ``tasks.logs`` and ``tasks.data``; what a night does with its data belongs to
``tasks.nights``.

Doors: ``delivered`` (which days are there, and their files), ``deliveries`` (the register on disk), ``data_checks`` (a
new day against its window), ``checks_page`` (the page that shows it), ``window`` (the prepared data of a night),
``old_nights`` (deletes what is no longer needed) and ``shared_files`` (files that several datasets read).
"""
