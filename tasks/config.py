"""``pipelines.yaml``, read once into frozen, validated models.

Every mistake is reported with the line, the key path and what would be right: unknown keys, wrong
types, impossible combinations. Nothing else in the project reads the file.
"""

from __future__ import annotations

import math
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError

from tasks.descriptions import SPLIT_FRACTIONS, Dataset, TaskName
from tasks.errors import UserError
from tasks.home import CHECKOUT
from tasks.located_yaml import Problem, listed, read_yaml
from tasks.sections import Count, Distinct, Finite, Items, OneOrMore, Section, Some, did_you_mean

MechanismName = Literal["non_private", "dp_sgd", "label_dp"]
OptimizerName = Literal["sgd", "yogi", "adagrad", "adam", "adamw"]
ModelName = Literal["mlp", "dcn_v2", "dlrm"]
ClippingName = Literal["fixed", "automatic", "adaptive"]
SensitivityName = Literal["proven", "paper"]
SamplerName = Literal["poisson", "balls_in_bins", "shuffle"]
AccountantName = Literal["tightest", "RDP"]
ResponseName = Literal["binary", "k_ary", "bins"]
ExhibitName = Literal[
    "relative_loss",
    "clip_norm",
    "large_batch",
    "throughput",
    "optimizers",
    "noise_and_batch",
    "microbatch",
    "accountants",
    "label_dp",
]
# The settings that a table may show side by side, instead of choosing among their values.
ColumnName = Literal[
    "optimizer",
    "learning_rate",
    "batch_size",
    "epochs",
    "model",
    "sampler",
    "l2_clip_norm",
    "clipping",
    "microbatch_size",
    "accountant",
    "response",
    "debias",
]

_T = TypeVar("_T")


class TrainingGrid(Section):
    """Settings of training; where a list is given, validation loss chooses among its values."""

    optimizer: OneOrMore[OptimizerName]
    learning_rate: OneOrMore[Finite]
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    batch_size: OneOrMore[Count]
    epochs: OneOrMore[Finite]
    model: OneOrMore[ModelName] = ("mlp",)


class PrivateGrid(TrainingGrid):
    """With ``microbatch_size`` above 1 the mean gradient of a group is clipped. One example moves the
    sum of such means by up to twice the clip norm; ``sensitivity: paper`` scales the noise to one,
    as the paper does, which is no guarantee. An adaptive clip norm starts at ``l2_clip_norm`` and follows
    the ``clip_quantile`` of the gradient norms: a high one, for rare labels have the long gradients.
    A ``sampler`` is paid for as what it is: shuffled batches get no amplification by sampling.
    ``accountant: RDP`` takes the noise that RDP accounting asks for, which is more than is needed."""

    sampler: OneOrMore[SamplerName] = ("poisson",)
    l2_clip_norm: OneOrMore[Finite]
    clipping: OneOrMore[ClippingName] = ("fixed",)
    clip_quantile: OneOrMore[Annotated[float, Field(gt=0, lt=1)]] = (0.9,)
    microbatch_size: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = (1,)
    sensitivity: SensitivityName = "proven"
    accountant: OneOrMore[AccountantName] = ("tightest",)


class LabelGrid(TrainingGrid):
    """Training without noise on labels that randomised response has changed: only the labels are protected.

    ``response`` is by the label as it is (``binary``, ``k_ary``) or by bins of counts that are chosen from a noisy
    histogram. With ``debias`` the labels that are trained on are right in the mean. Counts above ``largest_count``
    are taken for that: it must be known without looking at the labels.
    """

    response: OneOrMore[ResponseName]
    debias: OneOrMore[bool] = (True,)
    largest_count: Annotated[int, Field(ge=1, le=1000)] = 10


class TaskGrid(Section):
    """The baseline, and one or both ways of being private, each with settings of its own."""

    non_private: TrainingGrid
    dp_sgd: PrivateGrid | None = None
    label_dp: LabelGrid | None = None


class NoiseCurves(Section):
    """How much noise a budget needs, by batch size, at a number of epochs and at a number of steps.

    ``examples`` is how many there are, if not as many as the dataset's training part has.
    """

    batch_sizes: Distinct[Count]
    epochs: Finite
    steps: Count
    examples: Count | None = None
    baseline_batch_size: Count = 1024


class SpeedGrid(Section):
    """What is timed: each batch size with each way of making gradients, if it fits into so much memory."""

    batch_sizes: Distinct[Count]
    rounds: Count = 5
    memory_cap_gib: Finite = 4.0


class Grids(Section):
    """What one pipeline does under one profile: it trains ``tasks``, computes ``curves`` or measures ``speed``.

    ``search: all`` tries every private setting with every seed. ``random`` draws the number of trainings,
    with the same mean, and the settings of each: then choosing the best of them costs what repeat-and-select
    says, and not what all of them cost together.
    """

    epsilons: Distinct[Finite] = ()
    seeds: Count = 1
    search: Literal["all", "random"] = "all"
    tasks: dict[TaskName, TaskGrid] = Field(default={})
    curves: NoiseCurves | None = None
    speed: SpeedGrid | None = None

    @property
    def trains(self) -> bool:
        return self.curves is None and self.speed is None


class Pipeline(Section):
    """``columns`` are settings whose values stand side by side in the table: for each combination of them, the others
    are chosen by validation loss. Lists of settings that are ``together`` are gone through in step, first with first.
    ``paper`` are the figures that the paper reports, by the table's rows and columns.
    """

    title: str
    exhibit: ExhibitName = "relative_loss"
    datasets: Annotated[dict[TaskName, str], Field(min_length=1)]
    randomness: Literal["seeded", "secret"] = "seeded"
    # How many examples are made up for the audit and put into the training data, each by the toss of a coin.
    canaries: Annotated[int, Field(ge=0, le=10**6)] = 0
    columns: Distinct[ColumnName] = ()
    together: Distinct[ColumnName] = ()
    grids: Some[Grids]
    paper: dict[str, dict[Finite, float]] = Field(default={})


class Profile(Section):
    """How large everything is."""

    description: str = ""
    synthetic_rows: Annotated[Count, Field(ge=1000)]
    min_count: Count
    hidden_layers: Items[Count]
    cross_layers: Count = 3
    interaction_dimension: Count = 16
    evaluations: Count = 5


class Hardware(Section):
    """What training runs on. It changes results by no more than rounding, so it is no part of a trial."""

    devices: Literal["all"] | Count = "all"
    tables: Literal["replicated", "row_sharded"] = "replicated"
    physical_batch_size: Literal["auto"] | Count = "auto"
    trials_at_once: Literal["auto"] | Count = "auto"


class Config(Section):
    hardware: Hardware = Hardware()
    datasets: Some[Dataset]
    profiles: Some[Profile]
    pipelines: Some[Pipeline]

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
                hint = did_you_mean(dataset, config.datasets)
                yield key, f"no dataset is called {dataset!r}{hint}; there are: {', '.join(config.datasets)}"
            elif task not in config.datasets[dataset].labels:
                has = ", ".join(config.datasets[dataset].labels)
                yield key, f"dataset {dataset!r} has no label for {task}; it has: {has}"
        for profile, grids in pipeline.grids.items():
            grid_key = ("pipelines", name, "grids", profile)
            if profile not in config.profiles:
                hint = did_you_mean(profile, config.profiles)
                yield grid_key, f"no profile is called {profile!r}{hint}; there are: {', '.join(config.profiles)}"
                continue
            yield from _contradictory_grids(pipeline, grids, grid_key)
            yield from _unfit_exhibit(pipeline, grids, grid_key)
            yield from _too_large_batches(config, pipeline, profile, grid_key)


# What an exhibit is made of: the columns that it must have, if it is of trainings.
_OF_COLUMNS: dict[ExhibitName, tuple[ColumnName, ...]] = {
    "relative_loss": (),
    "clip_norm": ("l2_clip_norm",),
    "large_batch": ("batch_size", "epochs"),
    "optimizers": ("optimizer", "learning_rate"),
    "microbatch": ("l2_clip_norm", "microbatch_size"),
    "accountants": ("accountant",),
    "label_dp": ("response", "debias"),
}
_OF_SEVERAL_TASKS = ("relative_loss", "label_dp")


def _unfit_exhibit(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    """What an exhibit cannot show."""
    needs = {"noise_and_batch": "curves", "throughput": "speed"}.get(pipeline.exhibit, "tasks")
    if not getattr(grids, needs):
        yield key, f"exhibit {pipeline.exhibit} is made of {needs}, which are missing"
        return
    of = (*key[:2], "exhibit")
    if pipeline.exhibit in _OF_COLUMNS and tuple(pipeline.columns) != _OF_COLUMNS[pipeline.exhibit]:
        wanted = ", ".join(_OF_COLUMNS[pipeline.exhibit])
        yield (*key[:2], "columns"), f"exhibit {pipeline.exhibit} is of columns: [{wanted}]"
    if pipeline.exhibit not in _OF_SEVERAL_TASKS and len(pipeline.datasets) > 1:
        yield of, f"{pipeline.exhibit} shows one task, and the pipeline has {len(pipeline.datasets)}"
    for task, grid in grids.tasks.items():
        if pipeline.exhibit != "label_dp" and grid.label_dp is not None and grid.dp_sgd is not None:
            yield (
                (*key, "tasks", task),
                f"exhibit {pipeline.exhibit} shows one way to be private: dp_sgd or label_dp",
            )


def _contradictory_grids(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    given = [name for name in ("tasks", "curves", "speed") if getattr(grids, name)]
    if len(given) != 1:
        yield key, f"give one of tasks (to train), curves (of noise) and speed (to measure), got {given or 'none'}"
        return
    needed = {"noise_and_batch": "curves", "throughput": "speed"}.get(pipeline.exhibit, "tasks")
    if given != [needed]:
        yield (*key, given[0]), f"exhibit {pipeline.exhibit!r} shows {needed}: give these, or another exhibit"
        return
    if grids.speed is None and not grids.epsilons:
        yield (*key, "epsilons"), "missing"
    if not grids.trains:
        return
    for task in pipeline.datasets:
        if task not in grids.tasks:
            yield (*key, "tasks"), f"no grid for {task}, which the pipeline has a dataset for"
    if pipeline.columns and grids.search == "random":
        yield (*key, "search"), "a table with columns needs every setting: use `search: all`, or no columns"
    for task, grid in grids.tasks.items():
        task_key = (*key, "tasks", task)
        private = [mechanism for mechanism in (grid.dp_sgd, grid.label_dp) if mechanism is not None]
        if not private:
            yield task_key, "nothing private to train: give dp_sgd, label_dp or both"
        if grid.label_dp is not None:
            fitting = {"k_ary", "bins"} if task == "pconvs" else {"binary"}
            for response in set(grid.label_dp.response) - fitting:
                yield (
                    (*task_key, "label_dp", "response"),
                    f"{response!r} is not for the labels of {task}; allowed: {', '.join(sorted(fitting))}",
                )
            if grids.search == "random":
                yield (*key, "search"), "what `search: random` costs is not known for label_dp: use `search: all`"
        for column in pipeline.columns:
            if private and not any(hasattr(mechanism, column) for mechanism in private):
                yield (*key[:2], "columns"), f"{column} is no setting of what {task} trains under {key[-1]}"
        for mechanism in (grid.non_private, *private):
            lengths = {name: len(getattr(mechanism, name)) for name in pipeline.together if hasattr(mechanism, name)}
            if len(set(lengths.values())) > 1:
                yield (*key[:2], "together"), f"lists to go through in step must be equally long, got {lengths}"


def _too_large_batches(config: Config, pipeline: Pipeline, profile: str, key: tuple[Any, ...]) -> Iterator[Problem]:
    examples = int(config.profiles[profile].synthetic_rows * SPLIT_FRACTIONS["train"])
    for task, grid in pipeline.grids[profile].tasks.items():
        dataset = config.datasets.get(pipeline.datasets.get(task, ""))
        if dataset is None or dataset.synthetic is None:
            continue
        for mechanism in get_args(MechanismName):
            settings = getattr(grid, mechanism)
            for size in settings.batch_size if settings is not None else ():
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
        return key, f"unknown key{did_you_mean(str(key[-1]), allowed)}; allowed here: {', '.join(allowed)}"
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


def _lookup(kind: str, name: str, known: dict[str, _T]) -> _T:
    if name not in known:
        hint = did_you_mean(name, known)
        raise UserError(f"no {kind} is called {name!r}{hint}; there are: {', '.join(known)}")
    return known[name]
