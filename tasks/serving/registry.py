"""Registered models in MLflow: names, versions, aliases, and where a model's files are.

A model is referred to as ``NAME@champion``, ``NAME@alias``, ``NAME/3``, ``models:/…``, ``runs:/…`` or by a folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from mlflow.artifacts import download_artifacts
from mlflow.exceptions import MlflowException

from tasks.config.sections import did_you_mean
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, whole_directory
from tasks.runtime.tracking import open_client, tracking_uri
from tasks.serving.guard import require_same, trial_called
from tasks.serving.released import ReleasedModel

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

CHAMPION = "champion"
_LOGGED = re.compile(r"models:/(m-[0-9a-f]{32})")
_VERSION = re.compile(r"(?:models:/)?(?P<name>[^/@:]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@:]+))")
_RUN = re.compile(r"runs:/(?P<run>[^/]+)/(?P<path>.+)")
_MISSING = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE", "NOT_FOUND")


class RegisteredVersion(NamedTuple):
    """A version of a registered model. ``created`` is in seconds since 1970."""

    name: str
    version: int
    model_uri: str
    run: str | None
    created: float
    aliases: tuple[str, ...]
    tags: dict[str, str]


def register(model_uri: str, name: str, tags: Mapping[str, str] | None = None) -> int:
    """Registers a logged model under a name, unless it is registered there already. Returns its version.

    Raises:
        UserError: It is not a model that ``tasks.serving.packaging`` logged, its files were changed, or its trial is
            not here or has no guarantee any more.
    """
    logged = _LOGGED.fullmatch(model_uri)
    if logged is None:
        raise UserError(f"only a model that was logged can be registered, as models:/m-…, not {model_uri!r}")
    if not re.fullmatch(r"[^/@:'\"%]+", name):
        raise UserError(f"a model cannot be called {name!r}: leave out / @ : ' \" and %")
    model = check_released(local_model(model_uri))
    if trial_called(model.guarantee["public_name"]) is None:
        raise UserError(
            f"{model_uri} names a trial that is not in {home() / 'trials'}, so that nothing tells whether its audit "
            "passed: register it where it was trained"
        )
    client, model_id = open_client(), logged.group(1)
    for version in _versions(name):
        if version.model_uri == model_uri:
            return version.version
    if not client.search_registered_models(f"name = '{name}'"):
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":  # another process was first
                raise
    run = client.get_logged_model(model_id).source_run_id
    with _as_default_store():
        created = client.create_model_version(name, model_uri, run_id=run, tags=dict(tags or {}), model_id=model_id)
    return int(created.version)


def check_released(folder: Path) -> ReleasedModel:
    """Opens a model's files. Raises ``UserError`` if it is none of ours, or if its trial has no guarantee any more."""
    model = ReleasedModel.load(folder)
    trial = trial_called(model.guarantee["public_name"])
    # The trial of a registered model may have been deleted since, or be elsewhere. Then the model's own record, which
    # only one with a guarantee has, must do.
    if trial is not None:
        require_same(model, trial)
    return model


def set_alias(name: str, alias: str, version: int) -> None:
    """Points an alias to a version. Raises ``UserError`` if there is no such version, or if it is none of ours."""
    check_released(local_model(f"{name}/{version}"))
    open_client().set_registered_model_alias(name, alias, str(version))


def set_champion(name: str, version: int) -> None:
    """Points the alias ``champion`` to a version. Raises ``UserError`` as ``set_alias`` does."""
    set_alias(name, CHAMPION, version)


def champion(name: str) -> RegisteredVersion | None:
    """Returns the version that is champion; None if the model has no champion, or if there is no such model."""
    return next((version for version in _versions(name) if CHAMPION in version.aliases), None)


def versions(name: str) -> list[RegisteredVersion]:
    """Returns all versions of a model, the newest first. Raises ``UserError`` if there is no such model."""
    found = _versions(name)
    if not found:
        known = [model.name for model in open_client().search_registered_models()]
        there = f"; there are: {', '.join(sorted(known))}" if known else ": nothing is registered yet"
        raise UserError(f"no registered model is called {name!r}{did_you_mean(name, known)}{there}")
    return found


def local_model(reference: str) -> Path:
    """Returns the folder of a model's files, which are downloaded first if they are on another machine.

    Raises ``UserError`` if nothing is called so, with what there is.
    """
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder.resolve()
    if logged := _LOGGED.fullmatch(reference):
        return _fetched(_location_of(logged.group(1)))
    if in_run := _RUN.fullmatch(reference):
        return _fetched(_location_in_run(in_run["run"], in_run["path"]))
    if registered := _VERSION.fullmatch(reference):
        name, version, alias = registered["name"], registered["version"], registered["alias"]
        found = _version(name, int(version)) if version else _aliased(name, alias)
        return local_model(found.model_uri) if _LOGGED.fullmatch(found.model_uri) else _fetched(found.model_uri)
    raise UserError(
        f"{reference!r} is not a model: give NAME@champion, NAME/3, models:/…, runs:/RUN/model or the folder of a model"
    )


def _versions(name: str) -> list[RegisteredVersion]:
    client = open_client()
    found = client.search_registered_models(f"name = '{name}'") if "'" not in name else []
    if not found:
        return []
    by_version: dict[int, list[str]] = {}
    for alias, version in found[0].aliases.items():
        by_version.setdefault(int(version), []).append(alias)
    listed: list[ModelVersion] = []
    token = None
    while True:
        page = client.search_model_versions(f"name = '{name}'", max_results=1000, page_token=token)
        listed += page
        token = page.token
        if not token:
            break
    entries = [
        RegisteredVersion(
            name=name,
            version=int(one.version),
            model_uri=str(one.source),
            run=one.run_id or None,
            created=one.creation_timestamp / 1000,
            aliases=tuple(sorted(by_version.get(int(one.version), []))),
            tags=dict(one.tags),
        )
        for one in listed
    ]
    return sorted(entries, key=lambda one: -one.version)


@contextlib.contextmanager
def _as_default_store() -> Iterator[None]:
    """Makes our store MLflow's default: a registry in SQLite asks the default store for the model it registers."""
    before = os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = tracking_uri()
    try:
        yield
    finally:
        if before is None:
            del os.environ["MLFLOW_TRACKING_URI"]
        else:
            os.environ["MLFLOW_TRACKING_URI"] = before


def _version(name: str, version: int) -> RegisteredVersion:
    found = versions(name)
    for one in found:
        if one.version == version:
            return one
    raise UserError(
        f"{name} has no version {version}; it has: {', '.join(str(one.version) for one in reversed(found))}"
    )


def _aliased(name: str, alias: str) -> RegisteredVersion:
    found = versions(name)
    for one in found:
        if alias in one.aliases:
            return one
    known = sorted({known for one in found for known in one.aliases})
    there = f"its aliases are: {', '.join(known)}" if known else "it has none yet"
    latest = f"its versions are: {', '.join(str(one.version) for one in reversed(found))}"
    raise UserError(f"{name} has no alias {alias!r}{did_you_mean(alias, known)}; {there}; {latest}")


def _location_of(model_id: str) -> str:
    try:
        return open_client().get_logged_model(model_id).artifact_location
    except MlflowException as error:
        if error.error_code in _MISSING:
            raise UserError(f"MLflow at {tracking_uri()} has no model {model_id}") from None
        raise


def _location_in_run(run_id: str, path: str) -> str:
    """Returns where a model of a run is: a model that was logged under that name, or artifacts of the run."""
    client = open_client()
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code in _MISSING:
            raise UserError(f"MLflow at {tracking_uri()} has no run {run_id}") from None
        raise
    outputs = run.outputs.model_outputs if run.outputs else []
    logged = [client.get_logged_model(output.model_id) for output in outputs]
    named = [model for model in logged if model.name == path]
    if named:
        return max(named, key=lambda model: model.creation_timestamp).artifact_location
    if any(file.path == f"{path}/MLmodel" for file in client.list_artifacts(run_id, path)):
        return f"{run.info.artifact_uri}/{path}"
    there = f"; it has: {', '.join(sorted({str(model.name) for model in logged}))}" if logged else ""
    raise UserError(f"run {run_id} has no model {path!r}{there}")


def _fetched(uri: str) -> Path:
    """Returns the folder of artifacts, given their location. Downloads are kept in the home."""
    parts = urllib.parse.urlparse(uri)
    if parts.scheme in ("", "file"):
        folder = Path(urllib.request.url2pathname(parts.path))
        if not folder.is_dir():
            raise UserError(f"the files of the model are gone: there is no folder {folder}")
        return folder
    kept = home() / "models" / re.sub(r"[^\w.-]+", "_", uri.rpartition("/models/")[2] or uri)
    if not kept.is_dir():
        with whole_directory(kept) as folder:
            download_artifacts(artifact_uri=uri, dst_path=str(folder), tracking_uri=tracking_uri())
    inside = [path.parent for path in kept.rglob("MLmodel")]
    return inside[0] if inside else kept
