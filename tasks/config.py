"""``pipelines.yaml``, read once into frozen, validated models.

Every mistake is reported with the line, the key path and what would be right: unknown keys, wrong
types, impossible combinations. Nothing else in the project reads the file.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    Strict,
    ValidationError,
    model_validator,
)

from tasks.errors import UserError
from tasks.home import CHECKOUT

TaskName = Literal["pctr", "pcvr", "pconvs"]
MechanismName = Literal["non_private", "dp_sgd"]
OptimizerName = Literal["sgd", "yogi", "adagrad", "adam", "adamw"]
TASKS: tuple[TaskName, ...] = get_args(TaskName)

# The chronological partition of the paper's appendix.
SPLIT_FRACTIONS = {"train": 0.8, "validation": 0.1, "test": 0.1}

_T = TypeVar("_T")
_Items = Annotated[tuple[_T, ...], Strict(False), Field(min_length=1)]
_Finite = Annotated[PositiveFloat, Field(allow_inf_nan=False)]


def _as_sequence(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


# One value, or a list of values to tune over.
_OneOrMore = Annotated[_Items[_T], BeforeValidator(_as_sequence)]


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

    @model_validator(mode="after")
    def _columns_agree(self) -> Dataset:
        if self.format == "tsv" and self.columns is None:
            raise ValueError("format tsv has no header: `columns` must list its columns in order")
        if not self.integer_columns and not self.categorical_columns:
            raise ValueError("no features: give `integer_columns` or `categorical_columns`")
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
            for name in [*used, *labels, *([self.time_column] if self.time_column else [])]:
                if name not in self.columns:
                    raise ValueError(f"column {name!r} is not in `columns`{_did_you_mean(name, self.columns)}")
        return self


class TrainingGrid(_Section):
    """Settings of training; where a list is given, validation loss chooses among its values."""

    optimizer: _OneOrMore[OptimizerName]
    learning_rate: _OneOrMore[_Finite]
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    batch_size: _OneOrMore[PositiveInt]
    epochs: _OneOrMore[_Finite]


class PrivateGrid(TrainingGrid):
    l2_clip_norm: _OneOrMore[_Finite]


class TaskGrid(_Section):
    non_private: TrainingGrid
    dp_sgd: PrivateGrid


class Grids(_Section):
    """What one pipeline trains under one profile."""

    epsilons: _Items[_Finite]
    seeds: PositiveInt
    tasks: dict[TaskName, TaskGrid]


class Pipeline(_Section):
    title: str
    datasets: dict[TaskName, str]
    randomness: Literal["seeded", "secret"] = "seeded"
    grids: dict[str, Grids]
    paper: dict[TaskName, dict[_Finite, float]] = {}


class Profile(_Section):
    """How large everything is."""

    description: str = ""
    synthetic_rows: Annotated[int, Field(ge=1000)]
    min_count: PositiveInt
    hidden_layers: _Items[PositiveInt]
    evaluations: PositiveInt = 5


class Config(_Section):
    datasets: dict[str, Dataset]
    profiles: dict[str, Profile]
    pipelines: dict[str, Pipeline]

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
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the configuration {path}: {error}") from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path.name} is not valid YAML: {error}") from None
    lines = dict(_key_lines(root, ())) if root is not None else {}
    duplicates = sorted(set(_duplicate_keys(root, ()))) if root is not None else []
    if duplicates:
        raise UserError("\n".join(f"{path.name}:{line}: {key}: key given twice" for line, key in duplicates))
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        problems = [_explain(detail, raw) for detail in error.errors()]
    else:
        problems = list(_contradictions(config))
    if problems:
        messages = dict.fromkeys(f"{_where(path, lines, key)}: {text}" for key, text in problems)
        raise UserError("\n".join(messages))
    return config


def _contradictions(config: Config) -> Iterator[tuple[tuple[Any, ...], str]]:
    """What is well-formed but cannot be, as (key path, explanation)."""
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


def _too_large_batches(
    config: Config, pipeline: Pipeline, profile: str, key: tuple[Any, ...]
) -> Iterator[tuple[tuple[Any, ...], str]]:
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


def _explain(detail: Any, raw: Any) -> tuple[tuple[Any, ...], str]:
    """One pydantic error as (key path, explanation)."""
    key, kind = tuple(part for part in detail["loc"] if part != "[key]"), detail["type"]
    value = detail["input"]
    if kind == "extra_forbidden":
        allowed = _allowed_keys(key[:-1])
        return key, f"unknown key{_did_you_mean(str(key[-1]), allowed)}; allowed here: {', '.join(allowed)}"
    if kind == "missing":
        return key, "missing"
    if kind == "value_error":
        return key, str(detail["ctx"]["error"])
    message = detail["msg"][0].lower() + detail["msg"][1:]
    if isinstance(value, str) and kind in ("float_type", "int_type"):
        message += " (YAML reads 1e-3 as text: write 0.001 or 1.0e-3)" if "e" in value.lower() else ""
    return key, f"{message}, got {value!r}" if isinstance(value, Hashable) else message


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


def _where(path: Path, lines: dict[tuple[str, ...], int], key: tuple[Any, ...]) -> str:
    names = tuple(str(part) for part in key)
    known = next((names[:n] for n in range(len(names), 0, -1) if names[:n] in lines), None)
    line = f":{lines[known]}" if known else ""
    return f"{path.name}{line}: {'.'.join(names) or 'the file'}"


def _key_lines(node: yaml.Node, key: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.tag == "tag:yaml.org,2002:merge":
                yield from _key_lines(value, key)
            else:
                path = (*key, str(name.value))
                yield path, name.start_mark.line + 1
                yield from _key_lines(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*key, str(index)), value.start_mark.line + 1
            yield from _key_lines(value, (*key, str(index)))


def _duplicate_keys(node: yaml.Node, key: tuple[str, ...]) -> Iterator[tuple[int, str]]:
    """Keys that stand twice in one mapping, which YAML readers silently let the last one win."""
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            if name.value in seen:
                yield name.start_mark.line + 1, ".".join((*key, str(name.value)))
            seen.add(name.value)
            yield from _duplicate_keys(value, (*key, str(name.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _duplicate_keys(value, (*key, str(index)))
