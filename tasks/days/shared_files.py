"""Finds days that are in the registers of two datasets: the ledger would give their examples two budgets.

The ledger counts by the name of a dataset. Two datasets may well read the same files, for example with other
``keep_rows`` for another task. Then one of them says so with ``shares_budget_with``, and both spend one budget. A
dataset that was renamed names what it was called before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from tasks.config.loading import Config
from tasks.days.deliveries import DeliveredFile, deliveries, nights_that_used, registered_datasets


def found_elsewhere(config: Config, name: str, day: str, files: Iterable[DeliveredFile]) -> str | None:
    """Returns why the files of a day may not be used: one is in another budget, or in the same one on another day."""
    budget, wanted = config.budget_name(name), list(files)
    paths = {file["path"] for file in wanted}
    contents = {file["contents"]: file["path"] for file in wanted if file["rows"]}
    for other in registered_datasets():
        for theirs, mine, verb in _places(other, paths, contents) if other != name else ():
            where = f"{mine} {verb} in {theirs} of the dataset {other}"
            if config.budget_name(other) != budget:
                return (
                    f"{where}, which has a budget of its own in the ledger, so that its examples would have two. If "
                    f"they are the same log, write `shares_budget_with: {config.budget_name(other)}` in the dataset "
                    f"{name}"
                )
            if theirs != day:
                return f"{where}, which shares its budget: on two days, its examples would have the budget of both"
    return None


def _places(dataset: str, paths: Collection[str], contents: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yields the days of a dataset that have one of these files: the day, the file, and "is also" or "was".

    A day had a file if nights used it there before the day was delivered again without it.

    Args:
        dataset: The dataset.
        paths: The paths of the files.
        contents: The paths of those with rows by digest.
    """
    for day, delivered in deliveries(dataset).items():
        for file in delivered["files"]:
            if file["path"] in paths or file["contents"] in contents:
                yield day, file["path"] if file["path"] in paths else contents[file["contents"]], "is also"
        for digest, path in contents.items():
            if nights_that_used(delivered, "", [digest]):
                yield day, path, "was"


def _files(dataset: str) -> Iterator[tuple[str, DeliveredFile]]:
    for day, delivered in deliveries(dataset).items():
        for file in delivered["files"]:
            yield day, file


def budget_of_files(config: Config, name: str, paths: Iterable[str]) -> str | None:
    """Returns the budget of another dataset that has one of these files among its days; None if none has."""
    wanted = set(paths)
    for other in registered_datasets():
        if other != name and any(file["path"] in wanted for _, file in _files(other)):
            return config.budget_name(other)
    return None
