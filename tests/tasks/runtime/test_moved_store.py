"""A home that was copied: its MLflow store writes into the copy, and the original stays as it was."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from tasks.config.loading import load_config
from tasks.config.selection import select
from tasks.data.prepared import Prepared
from tasks.runtime.moved_store import adopt_artifacts
from tasks.runtime.tracking import start_pipeline_run, tracking_uri
from tasks.training.items import ParentRun
from tests.support.trials import make_prepared


@pytest.fixture
def prepared(own_store: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def start(prepared: Prepared, tmp_path: Path, text: str) -> ParentRun:
    card = tmp_path / "card.html"
    card.write_text(text)
    config = load_config()
    return start_pipeline_run(config, select(config, {"profile": "smoke"}), text, {"tiny": prepared}, {"tiny": card})


def read_card(run: ParentRun) -> str:
    return Path(MlflowClient(tracking_uri()).download_artifacts(run["mlflow_run"], "data_cards/tiny.html")).read_text()


def test_a_copied_home_writes_nothing_into_the_original(
    own_home: Path, prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start(prepared, tmp_path, "of the original")
    before = files(own_home)
    copy = tmp_path / "a copy" / "home"
    shutil.copytree(own_home, copy)
    monkeypatch.setenv("DP_ADS_HOME", str(copy))
    second = start(prepared, tmp_path, "of the copy")
    assert files(own_home) == before
    assert (first["experiment"], read_card(second)) == (second["experiment"], "of the copy")

    # Artifacts of earlier runs are read from the copy too, even if the original is gone.
    shutil.rmtree(own_home)
    assert read_card(first) == "of the original"
    assert not own_home.exists()


def test_a_store_that_has_not_moved_is_left_alone(own_home: Path, prepared: Prepared, tmp_path: Path) -> None:
    start(prepared, tmp_path, "here")
    before = files(own_home)
    adopt_artifacts(own_home / "mlflow")
    assert files(own_home) == before


def test_a_home_without_a_store_has_nothing_to_correct(tmp_path: Path) -> None:
    adopt_artifacts(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mlflow.db").touch()
    adopt_artifacts(tmp_path)
    assert (tmp_path / "mlflow.db").read_bytes() == b""
