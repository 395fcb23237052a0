"""Exhibits: the figures, tables and findings that a report shows.

An exhibit is a function from a run's results to an ``Exhibit``, and an ``ExhibitSpec`` that says which columns, grids
and tasks it needs; each has a module. ``comparison`` shows any sweep, with ``effects``, which ranks its settings. The
other exhibits each show tables or figures of the paper.
Belongs here: what to show and which claims to test. Does not belong here: how results are chosen (``results``), how
figures are drawn (``plots``), how a report is written (``page``, ``files``).

Doors: ``registry`` registers and lists exhibits; ``common`` has the types that they take and return, and the parts that
they share; ``relative_loss`` has the relative loss and ``recipes`` the comparison of two recipes, which are logged to
MLflow too; ``metrics``, ``reliability`` and ``segments`` are what every page of trained models has beside its exhibit.
"""
