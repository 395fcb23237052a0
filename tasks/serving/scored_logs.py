"""Opens the files of a log to be scored: as the model's description reads them, but labels and times may be absent."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from tasks.config.dataset import Dataset
from tasks.logs.files import RawFile
from tasks.logs.formats import LOG_FORMATS, LogReader
from tasks.runtime.errors import UserError


def features_only(dataset: Dataset, columns: Sequence[str] | None = None) -> Dataset:
    """Returns the description of a log's features, without labels, times and ``keep_rows``.

    ``columns`` replaces the columns of text without a header.
    """
    features = {*dataset.integer_columns, *dataset.categorical_columns}
    return dataset.model_copy(
        update={
            "labels": {},
            "time_column": None,
            "time_format": None,
            "in_time_order": None,
            "keep_rows": {},
            "path_columns": tuple(name for name in dataset.path_columns if name in features),
            "columns": dataset.columns if columns is None else tuple(columns),
        }
    )


def open_scored(file: RawFile, content: Path, dataset: Dataset, columns: Sequence[str] | None = None) -> LogReader:
    """Opens a file for its features.

    Text without a header may lack the columns of labels and of times. Rows are chosen by ``keep_rows`` if the file has
    its columns, unless these are labels.

    Args:
        file: The file.
        content: Its content, decompressed.
        dataset: The model's description of its log.
        columns: The columns of text without a header, if they are not those of the description.

    Raises:
        UserError: The file lacks a feature, or cannot be read.
    """
    opener = LOG_FORMATS[dataset.format].open
    if columns is not None and dataset.columns is None:
        raise UserError("columns can only be given for text without a header: other files name their columns")
    reader = _first_fit(file, content, dataset, columns)
    outcomes = {*dataset.label_columns, *dataset.time_columns}
    kept = {name: values for name, values in dataset.keep_rows.items() if name not in outcomes}
    if kept:
        paths = tuple(name for name in dataset.path_columns if name in {*kept, *reader.dataset.path_columns})
        choosing = reader.dataset.model_copy(update={"keep_rows": kept, "path_columns": paths})
        # A log of rows that are not chosen from yet does not have the columns to choose by.
        with contextlib.suppress(UserError):
            return opener(file, content, choosing)
    return reader


def _first_fit(file: RawFile, content: Path, dataset: Dataset, columns: Sequence[str] | None) -> LogReader:
    """Opens a file with the description's columns or, if they do not fit, without those of labels and times."""
    opener = LOG_FORMATS[dataset.format].open
    try:
        return opener(file, content, features_only(dataset, columns))
    except UserError as error:
        if dataset.columns is None or columns is not None:
            raise
        refused = error
    fitting: dict[tuple[str, ...], LogReader] = {}
    for absent in _absent_together(dataset):
        left = tuple(name for name in dataset.columns if name not in absent)
        with contextlib.suppress(UserError):
            fitting[left] = opener(file, content, features_only(dataset, left))
    if not fitting:
        raise refused
    if len(fitting) > 1:
        first, second, *_ = ([name for name in dataset.columns if name not in left] for left in fitting)
        raise UserError(
            f"{file.path} has fewer columns than the model's description, and it may be {', '.join(first)} or "
            f"{', '.join(second)} that it lacks: name its columns in order with --columns"
        )
    return next(iter(fitting.values()))


def _absent_together(dataset: Dataset) -> list[set[str]]:
    """Returns the sets of columns that a log without outcomes may lack."""
    features = {*dataset.integer_columns, *dataset.categorical_columns}
    labels = {*dataset.label_columns}
    events = {name for following in dataset.following for name in (following.event, following.event_time)} - features
    times = {dataset.time_column} if dataset.time_column else set()
    sets = [labels, events, labels | events, times, labels | times, events | times, labels | events | times]
    return [absent for number, absent in enumerate(sets) if absent and absent not in sets[:number]]
