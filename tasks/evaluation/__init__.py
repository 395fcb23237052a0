"""Evaluation of a finished trial's model beyond its losses: its segments, and the recalibration of its predictions.

Belongs here: which rows of a dataset a metric is of, and what is kept of it. The metrics themselves are in
``dp_core.evaluation``; tables and figures of them are in ``tasks.reporting``.

Doors: ``tested`` (what a record keeps of the test split), ``segments`` (metrics by the values of a column) and
``recalibrating`` (the shift of a model that is released).
"""
