"""A home with an MLflow store and a model that may be released, made once for the tests of a module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tasks.config.dataset import Dataset
from tasks.data.prepared import Prepared
from tasks.serving.released import ReleasedModel
from tasks.training.finished import FinishedTrial
from tests.tasks.serving.tiny_log import describe, finish, prepare_log, secret_trial


class Made(NamedTuple):
    """A released model with all that it was made of."""

    folder: Path
    prepared: Prepared
    dataset: Dataset
    finished: FinishedTrial

    @property
    def model(self) -> ReleasedModel:
        return ReleasedModel.load(self.folder / "model")


@pytest.fixture(scope="module")
def module_home(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[Path]:
    """Sets a fresh home with an MLflow store for the tests of a module, and returns it."""
    home = tmp_path_factory.mktemp("serving") / "home"
    (home / "mlflow").mkdir(parents=True)
    shutil.copy(empty_store, home / "mlflow")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(home))
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        yield home


@pytest.fixture(scope="module")
def made(module_home: Path) -> Made:
    """Makes a pCVR model of a text log with a threshold vocabulary."""
    from tasks.serving.packaging import save_model

    folder = module_home.parent
    prepared, dataset = prepare_log(folder / "raw"), describe("tsv")
    finished = finish(secret_trial(prepared), prepared)
    save_model(finished, prepared, dataset, folder / "model")
    return Made(folder, prepared, dataset, finished)


@pytest.fixture(scope="module")
def run_id(module_home: Path) -> str:
    """Makes an MLflow run that has ended."""
    from tasks.runtime.tracking import open_client

    client = open_client()
    experiment = client.create_experiment("trials", artifact_location=(module_home / "mlflow" / "artifacts").as_uri())
    run = client.create_run(experiment)
    client.set_terminated(run.info.run_id)
    return run.info.run_id
