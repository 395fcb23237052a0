"""The ledger: what every release tells about each day's data, added up, and refused before it is too much.

Doors: ``book`` (``Ledger``, ``Release``, ``OverBudget``), ``release`` (mechanisms as JSON), ``chain.Head``, ``budget``,
``entries`` and ``spent`` (what the book answers with), ``forecast`` (nights that have not been), ``cost`` (what a night
costs) and ``page`` (the page of a nightly entry).

The other modules: ``chain`` and its anchor notice rows that were changed, ``store`` keeps rows in SQLite or PostgreSQL,
``composition`` works out ε, and ``heat_map`` draws.

Not here: the mathematics (``dp_core.accounting``), and when a night reserves and commits (``tasks.nights``).
"""
