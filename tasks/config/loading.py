"""Loads ``pipelines.yaml`` into frozen, validated models.

Every mistake (an unknown key, a wrong type, an impossible combination) is reported with its line, its key path and what
would be right. Nothing else in the project reads the file.
"""

from __future__ import annotations

import math
import os
import reprlib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from dp_core.models.spec import MODELS
from tasks.config.cross_checks import contradictions
from tasks.config.dataset import Dataset
from tasks.config.limits import beyond_limits
from tasks.config.names import Name, PipelineName
from tasks.config.nightly import Nightly
from tasks.config.pipeline import Grids, Pipeline
from tasks.config.plugins import import_plugins
from tasks.config.sections import Count, Distinct, Items, OneOrMore, Section, did_you_mean
from tasks.config.yaml_lines import Problem, listed, read_yaml
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT

_T = TypeVar("_T")
# The shipped file has 30 thousand characters.
LONGEST_TEXT = 2_000_000


def _root(text: str) -> str:
    if not text.startswith(("/", "~")) or "\0" in text:
        raise ValueError(f"{text!r} is not an absolute path of a folder, such as /data/logs")
    return text


Root = Annotated[str, AfterValidator(_root)]


class Profile(Section):
    """Scale of a run: synthetic log, vocabularies, networks, evaluations.

    Attributes:
        only_for_tests: Whether results mean nothing. Their pages say so, and ``latest`` never points at them.
    """

    description: str = ""
    only_for_tests: bool = False
    synthetic_rows: Annotated[Count, Field(ge=1000, le=10**9)]
    min_count: Count
    hidden_layers: Items[Count]
    evaluations: Count = 5


class Hardware(Section):
    """What training runs on. It changes results by rounding only, so it is not part of a trial's cache key."""

    devices: Literal["all"] | Count = "all"
    tables: Literal["replicated", "row_sharded"] = "replicated"
    physical_batch_size: Literal["auto"] | Count = "auto"
    trials_at_once: Literal["auto"] | Count = "auto"


class Config(Section):
    """The whole file. The methods look up an entry by name and raise a ``UserError`` if there is none.

    Attributes:
        raw_roots: The folders that runs of ``make up`` may read; by default, those of the datasets' ``raw``.
    """

    plugins: Distinct[str] = ()
    hardware: Hardware = Hardware()
    raw_roots: OneOrMore[Root] = ()
    datasets: Annotated[dict[Name, Dataset], Field(min_length=1)]
    profiles: Annotated[dict[Name, Profile], Field(min_length=1)]
    pipelines: Annotated[dict[PipelineName, Pipeline], Field(min_length=1)]
    nightly: dict[Name, Nightly] = Field(default={})

    def dataset(self, name: str) -> Dataset:
        return _lookup("dataset", name, self.datasets)

    def budget_name(self, dataset: str) -> str:
        """Returns the name under which the ledger counts a dataset: another's, if they share files.

        A dataset that is not described, for example because it was renamed, has its own.
        """
        found = self.datasets.get(dataset)
        return dataset if found is None else found.shares_budget_with or dataset

    def profile(self, name: str) -> Profile:
        return _lookup("profile", name, self.profiles)

    def pipeline(self, name: str) -> Pipeline:
        return _lookup("pipeline", name, self.pipelines)

    def night(self, name: str) -> Nightly:
        return _lookup("entry of `nightly`", name, self.nightly)

    def grids(self, pipeline: str, profile: str) -> Grids:
        self.profile(profile)
        grids = self.pipeline(pipeline).grids
        if profile not in grids:
            raise UserError(f"pipeline {pipeline!r} has no grid for profile {profile!r}; it has: {', '.join(grids)}")
        return grids[profile]


def config_path() -> Path:
    """Returns the path of the configuration: ``DP_ADS_CONFIG``, or ``pipelines.yaml`` in the checkout."""
    return Path(os.environ.get("DP_ADS_CONFIG") or CHECKOUT / "pipelines.yaml")


def load_config(path: Path | None = None) -> Config:
    """Reads and checks the file. Raises a ``UserError`` that lists every mistake in it."""
    path = path or config_path()
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST_TEXT + 1)
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the configuration {path} is not UTF-8 text: {error}") from None
    if len(text) > LONGEST_TEXT:
        raise UserError(f"the configuration {path} has more than {LONGEST_TEXT:,} characters: is it the right file?")
    try:
        raw, marks, problems = read_yaml(text, path.name)
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{path.name} is nested too deeply, or an alias in it refers to itself") from None
    if not problems:
        problems = list(import_plugins(raw, path.resolve().parent))
    if not problems:
        try:
            config = Config.model_validate(raw)
        except ValidationError as error:
            problems = [_explain(detail) for detail in error.errors() if not _is_echo(detail)]
        else:
            problems = [*contradictions(config), *beyond_limits(config)]
    if problems:
        raise UserError(listed(path.name, marks, problems))
    return config


def _is_echo(detail: Any) -> bool:
    """Returns whether pydantic calls a list too short only because it dropped the invalid items it also reports."""
    return detail["type"] == "too_short" and len(detail["input"]) > 0


def _explain(detail: Any) -> Problem:
    """Rewords a pydantic error in terms of the file."""
    key, kind = tuple(part for part in detail["loc"] if part != "[key]"), detail["type"]
    value = detail["input"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(key[:-1])
        hint = _model_hint(str(key[-1]), allowed) or did_you_mean(str(key[-1]), allowed)
        return key, f"unknown key{hint}; allowed here: {', '.join(allowed)}"
    if kind == "value_error":
        return key, str(detail["ctx"]["error"])
    got = "got nothing" if value is None else f"got {reprlib.repr(value)}"
    plain = {
        "missing": "missing",
        "too_short": "empty: give at least one value",
        "tuple_type": f"should be a list, {got}",
        "dict_type": f"should be a mapping (key: value), {got}",
    }
    if kind in plain:
        return key, plain[kind]
    if kind == "model_type":
        return key, f"{plain['dict_type']}; allowed here: {', '.join(_allowed_keys(key))}"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    hint = _number_hint(value) if isinstance(value, str) and kind in ("float_type", "int_type") else ""
    return key, f"{message}, {got}{hint}"


def _model_hint(key: str, allowed: list[str]) -> str:
    """Returns where a model's own number goes if it was put beside ``model``, or an empty string."""
    own = {name for spec in MODELS.values() for name in spec.model_fields} - {"name"}
    if "model" not in allowed or key not in own:
        return ""
    return f" (a model's own numbers go inside `model: {{name: …, {key}: …}}`)"


def _number_hint(text: str) -> str:
    """Returns why YAML read a number as text, or an empty string."""
    try:
        if not math.isfinite(float(text)):
            return ""
    except ValueError:
        return ""
    return " (YAML reads 1e-3 as text: write 0.001 or 1.0e-3)" if "e" in text.lower() else " (write it without quotes)"


def _allowed_keys(key: tuple[Any, ...]) -> list[str]:
    """Returns the keys of the section at a key path."""
    section: Any = Config
    for part in key:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[part].annotation
        else:
            section = get_args(section)[-1] if get_args(section) else section
        while not isinstance(section, type) and type(None) in get_args(section):
            section = next(arg for arg in get_args(section) if arg is not type(None))
    return list(section.model_fields)


def _lookup(kind: str, name: str, known: dict[str, _T]) -> _T:
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"unknown {kind} {name!r}{hint}; known: {', '.join(known)}")
    return known[name]
