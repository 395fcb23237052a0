"""Lets the embedded MLflow store follow its home folder.

MLflow stores the folder of artifacts as an absolute path, for each experiment, run, model and version of a registered
model, and makes a relative one absolute. In a home that was moved or copied, these paths still lead to the old place.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path


def adopt_artifacts(store: Path) -> None:
    """Corrects the stored paths of an embedded store's artifacts to ``store / "artifacts"``, where they are now.

    ``store`` is the folder of ``mlflow.db``. Does nothing if there is no database yet, or if its paths are right.
    """
    database = store / "mlflow.db"
    if not database.exists():
        return
    here = (store / "artifacts").as_uri()
    with contextlib.closing(sqlite3.connect(database, timeout=60)) as connection:
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if not {"experiments", "runs"} <= tables:
            return
        for table, column, key in (
            ("experiments", "artifact_location", "experiment_id"),
            ("runs", "artifact_uri", "run_uuid"),
            ("logged_models", "artifact_location", "model_id"),
            ("model_versions", "storage_location", "rowid"),
        ):
            if table not in tables:
                continue
            stored = connection.execute(f"SELECT {key}, {column} FROM {table}").fetchall()
            moved = [(f"{here}/{inside}", row) for row, path in stored if (inside := _inside(path, here)) is not None]
            if moved:
                connection.executemany(f"UPDATE {table} SET {column} = ? WHERE {key} = ?", moved)
        connection.commit()


def _inside(path: str | None, here: str) -> str | None:
    """Returns a path's part below the artifacts of a store that is elsewhere, or None.

    >>> _inside("file:///old/var/mlflow/artifacts/relative_loss/1f/artifacts", "file:///new/mlflow/artifacts")
    'relative_loss/1f/artifacts'
    >>> _inside("file:///new/mlflow/artifacts/relative_loss", "file:///new/mlflow/artifacts")
    """
    if path is None or not path.startswith("file:") or path.startswith(f"{here}/"):
        return None
    before, mark, inside = path.rpartition("/mlflow/artifacts/")
    return inside if mark and before else None
