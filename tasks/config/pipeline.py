"""The part of ``pipelines.yaml`` that says what a pipeline trains or measures, and what it shows of that."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from tasks.descriptions import TaskName
from tasks.sections import Count, Distinct, Finite, Items, OneOrMore, Section, Some

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
    """What is timed: each batch size with each way of making gradients, if it fits into so much memory.

    ``hidden_layers`` are the model's, if not the profile's.
    """

    batch_sizes: Distinct[Count]
    hidden_layers: Items[Count] | None = None
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
