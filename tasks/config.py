"""``pipelines.yaml``, read once into frozen, validated models.

Every mistake is reported with the line, the key path and what would be right: unknown keys, wrong
types, impossible combinations. Nothing else in the project reads the file.
"""

from __future__ import annotations

import difflib
import math
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from tasks.errors import UserError
from tasks.home import CHECKOUT
from tasks.located_yaml import Problem, listed, read_yaml

TaskName = Literal["pctr", "pcvr", "pconvs"]
MechanismName = Literal["non_private", "dp_sgd"]
OptimizerName = Literal["sgd", "yogi", "adagrad", "adam", "adamw"]
ModelName = Literal["mlp", "dcn_v2", "dlrm"]
ClippingName = Literal["fixed", "automatic", "adaptive"]
SensitivityName = Literal["proven", "paper"]
SamplerName = Literal["poisson", "balls_in_bins", "shuffle"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)

# The chronological partition of the paper's appendix.
SPLIT_FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}

_T = TypeVar("_T")
_Items = Annotated[tuple[_T, ...], Strict(False), Field(min_length=1)]
_Some = Annotated[dict[str, _T], Field(min_length=1)]
_Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]
# Larger than any count that makes sense, and small enough to be calculated with.
_Count = Annotated[int, Field(ge=1, le=10**12)]


def _as_sequence(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[_T, ...]) -> tuple[_T, ...]:
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is in the list more than once")
    return values


_Distinct = Annotated[_Items[_T], AfterValidator(_distinct)]
# One value, or a list of values to tune over.
_OneOrMore = Annotated[_Distinct[_T], BeforeValidator(_as_sequence)]


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Label(_Section):
    """How a task's label is made from a column."""

    column: str
    kind: Literal["binary", "any", "count"]


class Synthetic(_Section):
    """Logs made by ``tasks.synthetic`` instead of read from somewhere."""

    kind: Literal["display", "clicks"]
    seed: int = 0


class Dataset(_Section):
    """Where logs come from and what their columns mean."""

    description: str = ""
    synthetic: Synthetic | None = None
    raw: str | None = None
    format: Literal["tsv", "parquet"]
    columns: _Items[str] | None = None
    time_column: str | None = None
    integer_columns: Annotated[tuple[str, ...], Strict(False)] = ()
    categorical_columns: Annotated[tuple[str, ...], Strict(False)] = ()
    labels: dict[TaskName, Label]
    # Which tokens get an id; ``tasks.vocabulary`` has the kinds, and the defaults of their numbers.
    vocabulary: Literal["threshold", "hash", "private"] = "threshold"
    vocabulary_buckets: Annotated[int, Field(ge=2, le=10**9)] | None = None
    vocabulary_epsilon: Annotated[_Finite, Field(le=1000)] | None = None

    @field_validator("vocabulary_buckets", "vocabulary_epsilon")
    @classmethod
    def _goes_with_the_vocabulary(cls, value: float | None, info: ValidationInfo) -> float | None:
        kind = "hash" if info.field_name == "vocabulary_buckets" else "private"
        given = info.data.get("vocabulary", kind)
        if value is not None and given != kind:
            raise ValueError(f"goes with `vocabulary: {kind}`, but `vocabulary` is {given}: leave out one of the two")
        return value

    @model_validator(mode="after")
    def _columns_agree(self) -> Dataset:
        if self.format == "tsv" and self.columns is None:
            raise ValueError("format tsv has no header: `columns` must list its columns in order")
        if self.synthetic is not None and self.raw is not None:
            raise ValueError("`synthetic` makes the logs and `raw` names a file of them: give one of the two")
        if not self.integer_columns and not self.categorical_columns:
            raise ValueError("no features: give `integer_columns` or `categorical_columns`")
        if self.vocabulary != "threshold" and not self.categorical_columns:
            raise ValueError(f"`vocabulary: {self.vocabulary}` is for `categorical_columns`, and there are none")
        if not self.labels:
            raise ValueError(f"`labels` is empty: give a label for at least one of {', '.join(TASKS)}")
        used = [*self.integer_columns, *self.categorical_columns]
        for name in used:
            if used.count(name) > 1:
                raise ValueError(f"column {name!r} is used more than once as a feature")
        labels = [label.column for label in self.labels.values()]
        for name in [*labels, *([self.time_column] if self.time_column else [])]:
            if name in used:
                raise ValueError(f"column {name!r} is a label or the time, so it cannot be a feature")
        if self.columns is not None:
            for name in self.columns:
                if self.columns.count(name) > 1:
                    raise ValueError(f"column {name!r} is in `columns` more than once")
            for name in [*used, *labels, *([self.time_column] if self.time_column else [])]:
                if name not in self.columns:
                    raise ValueError(f"column {name!r} is not in `columns`{_did_you_mean(name, self.columns)}")
        return self


class TrainingGrid(_Section):
    """Settings of training; where a list is given, validation loss chooses among its values."""

    optimizer: _OneOrMore[OptimizerName]
    learning_rate: _OneOrMore[_Finite]
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    batch_size: _OneOrMore[_Count]
    epochs: _OneOrMore[_Finite]
    model: _OneOrMore[ModelName] = ("mlp",)


class PrivateGrid(TrainingGrid):
    """With ``microbatch_size`` above 1 the mean gradient of a group is clipped. One example moves the
    sum of such means by up to twice the clip norm; ``sensitivity: paper`` scales the noise to one,
    as the paper does, which is no guarantee. An adaptive clip norm starts at ``l2_clip_norm`` and follows
    the ``clip_quantile`` of the gradient norms: a high one, for rare labels have the long gradients.
    A ``sampler`` is paid for as what it is: shuffled batches get no amplification by sampling."""

    sampler: _OneOrMore[SamplerName] = ("poisson",)
    l2_clip_norm: _OneOrMore[_Finite]
    clipping: _OneOrMore[ClippingName] = ("fixed",)
    clip_quantile: _OneOrMore[Annotated[float, Field(gt=0, lt=1)]] = (0.9,)
    microbatch_size: _OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = (1,)
    sensitivity: SensitivityName = "proven"


class TaskGrid(_Section):
    non_private: TrainingGrid
    dp_sgd: PrivateGrid


class Grids(_Section):
    """What one pipeline trains under one profile.

    ``search: all`` tries every private setting with every seed. ``random`` draws the number of trainings,
    with the same mean, and the settings of each: then choosing the best of them costs what repeat-and-select
    says, and not what all of them cost together.
    """

    epsilons: _Distinct[_Finite]
    seeds: _Count
    search: Literal["all", "random"] = "all"
    tasks: dict[TaskName, TaskGrid]


class Pipeline(_Section):
    title: str
    datasets: Annotated[dict[TaskName, str], Field(min_length=1)]
    randomness: Literal["seeded", "secret"] = "seeded"
    # How many examples are made up for the audit and put into the training data, each by the toss of a coin.
    canaries: Annotated[int, Field(ge=0, le=10**6)] = 0
    grids: _Some[Grids]
    paper: dict[TaskName, dict[_Finite, float]] = {}


class Profile(_Section):
    """How large everything is."""

    description: str = ""
    synthetic_rows: Annotated[_Count, Field(ge=1000)]
    min_count: _Count
    hidden_layers: _Items[_Count]
    cross_layers: _Count = 3
    interaction_dimension: _Count = 16
    evaluations: _Count = 5


class Hardware(_Section):
    """What training runs on. It changes results by no more than rounding, so it is no part of a trial."""

    devices: Literal["all"] | _Count = "all"
    tables: Literal["replicated", "row_sharded"] = "replicated"
    physical_batch_size: Literal["auto"] | _Count = "auto"


class Config(_Section):
    hardware: Hardware = Hardware()
    datasets: _Some[Dataset]
    profiles: _Some[Profile]
    pipelines: _Some[Pipeline]

    def dataset(self, name: str) -> Dataset:
        return _lookup("dataset", name, self.datasets)

    def profile(self, name: str) -> Profile:
        return _lookup("profile", name, self.profiles)

    def pipeline(self, name: str) -> Pipeline:
        return _lookup("pipeline", name, self.pipelines)

    def grids(self, pipeline: str, profile: str) -> Grids:
        self.profile(profile)
        grids = self.pipeline(pipeline).grids
        if profile not in grids:
            raise UserError(f"pipeline {pipeline!r} has no grid for profile {profile!r}; it has: {', '.join(grids)}")
        return grids[profile]


def config_path() -> Path:
    """The file in force: ``DP_ADS_CONFIG``, or ``pipelines.yaml`` in the checkout."""
    return Path(os.environ.get("DP_ADS_CONFIG") or CHECKOUT / "pipelines.yaml")


def load_config(path: Path | None = None) -> Config:
    """Reads and checks the file; raises a ``UserError`` that lists every mistake in it."""
    path = path or config_path()
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot read the configuration {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"the configuration {path} is not text in UTF-8: {error}") from None
    try:
        raw, marks, problems = read_yaml(text, path.name)
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{path.name} is nested too deeply, or an alias in it refers to itself") from None
    if not problems:
        try:
            config = Config.model_validate(raw)
        except ValidationError as error:
            problems = [_explain(detail) for detail in error.errors() if not _is_echo(detail)]
        else:
            problems = list(_contradictions(config))
    if problems:
        raise UserError(listed(path.name, marks, problems))
    return config


def _contradictions(config: Config) -> Iterator[Problem]:
    """What is well-formed but cannot be."""
    for name, pipeline in config.pipelines.items():
        for task, dataset in pipeline.datasets.items():
            key = ("pipelines", name, "datasets", task)
            if dataset not in config.datasets:
                hint = _did_you_mean(dataset, config.datasets)
                yield key, f"no dataset is called {dataset!r}{hint}; there are: {', '.join(config.datasets)}"
            elif task not in config.datasets[dataset].labels:
                has = ", ".join(config.datasets[dataset].labels)
                yield key, f"dataset {dataset!r} has no label for {task}; it has: {has}"
        for profile, grids in pipeline.grids.items():
            grid_key = ("pipelines", name, "grids", profile)
            if profile not in config.profiles:
                hint = _did_you_mean(profile, config.profiles)
                yield grid_key, f"no profile is called {profile!r}{hint}; there are: {', '.join(config.profiles)}"
                continue
            for task in pipeline.datasets:
                if task not in grids.tasks:
                    yield (*grid_key, "tasks"), f"no grid for {task}, which the pipeline has a dataset for"
            yield from _too_large_batches(config, pipeline, profile, grid_key)


def _too_large_batches(config: Config, pipeline: Pipeline, profile: str, key: tuple[Any, ...]) -> Iterator[Problem]:
    examples = int(config.profiles[profile].synthetic_rows * SPLIT_FRACTIONS["train"])
    for task, grid in pipeline.grids[profile].tasks.items():
        dataset = config.datasets.get(pipeline.datasets.get(task, ""))
        if dataset is None or dataset.synthetic is None:
            continue
        for mechanism in get_args(MechanismName):
            for size in getattr(grid, mechanism).batch_size:
                if size > examples:
                    yield (
                        (*key, "tasks", task, mechanism, "batch_size"),
                        f"a batch of {size:,} is larger than the {examples:,} training examples "
                        f"that profile {profile!r} makes (80 % of synthetic_rows)",
                    )


def _is_echo(detail: Any) -> bool:
    """Whether pydantic calls a list too short because it left out the items that it complains about."""
    return detail["type"] == "too_short" and len(detail["input"]) > 0


def _explain(detail: Any) -> Problem:
    """One pydantic error in the words of the file."""
    key, kind = tuple(part for part in detail["loc"] if part != "[key]"), detail["type"]
    value = detail["input"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(key[:-1])
        return key, f"unknown key{_did_you_mean(str(key[-1]), allowed)}; allowed here: {', '.join(allowed)}"
    if kind == "value_error":
        return key, str(detail["ctx"]["error"])
    got = "got nothing" if value is None else f"got {reprlib.repr(value)}"
    plain = {
        "missing": "missing",
        "too_short": "empty: give at least one",
        "tuple_type": f"should be a list, {got}",
        "dict_type": f"should be keys with values (key: value), {got}",
    }
    if kind in plain:
        return key, plain[kind]
    if kind == "model_type":
        return key, f"{plain['dict_type']}; allowed here: {', '.join(_allowed_keys(key))}"
    message = detail["msg"][0].lower() + detail["msg"][1:]
    hint = _number_hint(value) if isinstance(value, str) and kind in ("float_type", "int_type") else ""
    return key, f"{message}, {got}{hint}"


def _number_hint(text: str) -> str:
    """Why a text that looks like a number is none."""
    try:
        if not math.isfinite(float(text)):
            return ""
    except ValueError:
        return ""
    return " (YAML reads 1e-3 as text: write 0.001 or 1.0e-3)" if "e" in text.lower() else " (write it without quotes)"


def _allowed_keys(key: tuple[Any, ...]) -> list[str]:
    """The keys of the section that a key path leads to."""
    section: Any = Config
    for part in key:
        if isinstance(section, type) and issubclass(section, BaseModel):
            section = section.model_fields[part].annotation
        else:
            section = get_args(section)[-1] if get_args(section) else section
        while not isinstance(section, type) and type(None) in get_args(section):
            section = next(arg for arg in get_args(section) if arg is not type(None))
    return list(section.model_fields)


def _did_you_mean(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _lookup(kind: str, name: str, known: dict[str, _T]) -> _T:
    if name not in known:
        hint = _did_you_mean(name, known)
        raise UserError(f"no {kind} is called {name!r}{hint}; there are: {', '.join(known)}")
    return known[name]
