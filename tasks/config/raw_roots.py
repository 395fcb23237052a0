"""Which files a run may read that came through the servers of ``make up``.

Whoever may trigger a run in the Airflow UI could otherwise read any file that the server can: the page of a report, the
data card and the quarantine repeat parts of a log. ``make run`` is started by someone with a shell, and may read what
that person may read.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.logs.files import DAY, find_files
from tasks.runtime.home import REPORTS_AT

if TYPE_CHECKING:
    from tasks.config.loading import Config


def under_servers() -> bool:
    """Returns whether this process was started by ``make up``: the API server, or a task of its scheduler."""
    return bool(os.environ.get(REPORTS_AT))


def allowed_roots(config: Config) -> list[Path]:
    """Returns the folders that runs of the servers may read: ``raw_roots``, or those of the datasets' own ``raw``.

    A dataset that names a file allows the file; one with a pattern, the folder before the first ``*``.
    """
    if config.raw_roots:
        return [Path(root).expanduser().resolve() for root in config.raw_roots]
    own = (item for dataset in config.datasets.values() for item in dataset.raw or ())
    return list(dict.fromkeys(root for item in own if (root := _fixed_part(item)) != Path("/")))


def outside_roots(config: Config, raw: str) -> str | None:
    """Returns why a raw log may not be read by a run of the servers; None if it may.

    Links and ``..`` are followed first, in the roots too. What is outside is not looked at: the answer does not tell
    whether it exists. Raises ``UserError`` if the log is inside and its files cannot be read.
    """
    roots = allowed_roots(config)
    if ".." in Path(raw).parts and glob.has_magic(raw):
        return f"{raw} has both a pattern and ..: write it without .."
    try:
        inside = _is_inside(_fixed_part(raw), roots)
    except (OSError, RuntimeError, ValueError):  # a path that cannot be, such as ~nobody/log
        inside = False
    if not inside:
        return _refusal(raw, roots)
    return next((_refusal(raw, roots, path) for path in _files(raw) if not _is_inside(path, roots)), None)


def _files(raw: str) -> Iterator[Path]:
    return (file.path for file in find_files([raw]))


def _fixed_part(raw: str) -> Path:
    """Returns the part of a path before its first pattern, resolved."""
    path = Path(raw.replace(DAY, "*")).expanduser().absolute()
    if path.exists() or not glob.has_magic(str(path)):
        return path.resolve()
    return next(parent for parent in path.parents if not glob.has_magic(str(parent))).resolve()


def _is_inside(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _refusal(raw: str, roots: list[Path], leads_to: Path | None = None) -> str:
    where = f"{raw} leads to {leads_to}, which" if leads_to is not None else raw
    allowed = ", ".join(map(str, roots)) or "none yet"
    return (
        f"{where} is outside of the folders that runs of these servers may read ({allowed}). To allow it, add its "
        "folder to `raw_roots` in pipelines.yaml, for example `raw_roots: [/data/logs]`; `make run` without servers "
        "may read any file that you may"
    )
