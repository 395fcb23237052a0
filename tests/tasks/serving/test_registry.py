"""Names, versions and aliases in a real MLflow store."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tasks.runtime.errors import UserError
from tasks.runtime.tracking import open_client, tracking_uri
from tasks.serving.packaging import log_model
from tasks.serving.registry import champion, local_model, register, set_alias, set_champion, versions
from tasks.serving.released import ReleasedModel
from tests.tasks.serving.conftest import Made
from tests.tasks.serving.tiny_log import finish, secret_trial


@pytest.fixture(scope="module")
def uris(made: Made, run_id: str) -> list[str]:
    """Logs two models to one run."""
    second = finish(secret_trial(made.prepared, seed=1), made.prepared)
    return [log_model(one, made.prepared, made.dataset, mlflow_run=run_id) for one in (made.finished, second)]


@pytest.fixture(scope="module")
def registered(uris: list[str]) -> list[str]:
    assert champion("clicks") is None
    assert [register(uri, "clicks", {"night": f"{i}"}) for i, uri in enumerate(uris)] == [1, 2]
    set_champion("clicks", 1)
    return uris


def test_a_model_is_registered_once(registered: list[str]) -> None:
    assert register(registered[0], "clicks") == 1
    assert [(one.version, one.model_uri, one.tags) for one in versions("clicks")] == [
        (2, registered[1], {"night": "1"}),
        (1, registered[0], {"night": "0"}),
    ]


def test_the_champion_moves(registered: list[str]) -> None:
    set_champion("clicks", 2)
    now = champion("clicks")
    assert now is not None
    assert (now.version, now.aliases) == (2, ("champion",))
    set_alias("clicks", "challenger", 1)
    set_champion("clicks", 1)
    assert [one.aliases for one in versions("clicks")] == [(), ("challenger", "champion")]


@pytest.mark.parametrize(
    "reference",
    ["clicks@champion", "clicks/1", "models:/clicks/1", "models:/clicks@champion", "logged", "folder", "run"],
)
def test_every_reference_leads_to_the_files(
    registered: list[str], made: Made, run_id: str, module_home: Path, reference: str
) -> None:
    set_champion("clicks", 1)
    folder = local_model("clicks/1")
    given = {"logged": registered[0], "folder": str(folder), "run": f"runs:/{run_id}/model"}.get(reference, reference)
    found = local_model(given)
    assert found.is_relative_to(module_home)
    assert (found / "MLmodel").exists()
    # The run has two models called "model", and the newest one counts.
    assert found == (local_model("clicks/2") if reference == "run" else folder)
    assert ReleasedModel.load(folder).guarantee["public_name"] == made.finished.public_name


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("click@champion", r"no registered model is called 'click' \(did you mean 'clicks'\?\); there are: clicks"),
        ("clicks/7", "clicks has no version 7; it has: 1, 2"),
        ("clicks@best", r"clicks has no alias 'best'.*its versions are: 1, 2"),
        (f"models:/m-{'0' * 32}", "has no model m-000"),
        ("runs:/0123/model", "has no run 0123"),
        ("nothing/at/all", "is not a model: give NAME@champion, NAME/3"),
        ("clicks", "is not a model: give NAME@champion"),
        ("it's/1", "no registered model is called"),
    ],
)
def test_what_does_not_exist_is_said(registered: list[str], reference: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        local_model(reference)


def test_what_cannot_be_registered(registered: list[str], run_id: str) -> None:
    with pytest.raises(UserError, match="only a model that was logged can be registered"):
        register(f"runs:/{run_id}/model", "clicks")
    with pytest.raises(UserError, match="a model cannot be called 'a/b'"):
        register(registered[0], "a/b")
    with pytest.raises(UserError, match="clicks has no version 9"):
        set_champion("clicks", 9)
    with pytest.raises(UserError, match=r"run .* has no model 'x'; it has: model"):
        local_model(f"runs:/{run_id}/x")


def test_nothing_of_mlflows_default_store_is_touched(registered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "MLFLOW_TRACKING_URI" not in os.environ
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking_uri())
    assert register(registered[0], "under_another_name") == 1
    assert os.environ["MLFLOW_TRACKING_URI"] == tracking_uri()
    open_client().delete_registered_model("under_another_name")


def test_models_follow_a_home_that_was_moved(
    registered: list[str], module_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(module_home, tmp_path / "moved")
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "moved"))
    found = local_model("clicks/2")
    assert found.is_relative_to((tmp_path / "moved").resolve())
    set_champion("clicks", 2)
    assert local_model("clicks@champion") == found
