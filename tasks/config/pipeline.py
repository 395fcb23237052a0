"""Section of a pipeline in ``pipelines.yaml``: what it trains or measures, and what its report shows."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny, model_validator

from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.models.spec import MLPSpec, ModelSpec, as_model_spec
from dp_core.training.averaging import AveragingName
from dp_core.training.optimizers import OPTIMIZERS, SCALES
from tasks.config.dataset import TaskName
from tasks.config.sections import Count, Distinct, Finite, OneOrMore, Section, Some, did_you_mean, registered
from tasks.reporting.exhibits.registry import exhibits

# `clipped_only` clips as DP-SGD does and adds no noise, which proves nothing. No grid has it: the pipeline
# `decomposition` trains it to measure what clipping costs.
MechanismName = Literal["non_private", "dp_sgd", "label_dp", "clipped_only"]
# The recipes of DP-SGD that a report compares, if a grid has a `paper_recipe`.
RecipeName = Literal["ours", "paper_recipe"]
# With `search: random`, the settings of DP-SGD that all trainings must share, so that all are equally private.
SAME_MECHANISM = (
    *("batch_size", "epochs", "sampler", "clipping", "microbatch_size", "sensitivity", "accountant"),
    *("initial_bias", "initial_bias_epsilon", "bands"),
)
OptimizerName = Annotated[str, registered(lambda: OPTIMIZERS)]
# A model by its name, or by its name and its own numbers.
Model = Annotated[SerializeAsAny[ModelSpec], BeforeValidator(as_model_spec)]
ClippingName = Annotated[str, registered(lambda: CLIP_FACTORS)]
InitialBiasName = Literal["zero", "label_rate"]
SensitivityName = Literal["proven", "paper"]
SamplerName = Literal["poisson", "balls_in_bins", "shuffle"]
AccountantName = Literal["tightest", "RDP"]
RateUnit = Literal["one", "clip_norm", "guess"]
SearchName = Literal["all", "random", "extend", "halving"]
# Searches that plan further rounds from validation losses of the first seed. Other seeds train what they choose.
IN_ROUNDS: tuple[SearchName, ...] = ("extend", "halving")
# Optimisers whose step is proportional to the gradient. The step of others hardly depends on its scale.
SCALES_WITH_GRADIENT = ("sgd",)
# Gradients have 32 bits, and their squared norms are compared with the square of the clip norm.
ClipNorm = Annotated[Finite, Field(ge=1e-15, le=1e15)]
# The number of steps that noise is correlated over.
Bands = Annotated[int, Field(ge=1, le=4096)]
ResponseName = Literal["binary", "k_ary", "bins"]
RecalibrationName = Literal["none", "shift"]
# Which embedding tables leave rows alone that no batch reads.
TableUpdates = Literal["dense", "lazy", "auto"]
ExhibitName = Annotated[str, registered(exhibits)]


class TrainingGrid(Section):
    """Settings of training. Where a setting has a list, validation loss chooses among its values.

    Attributes:
        averaging: Which mean of the iterates is evaluated and released in place of the last one.
        averaging_share: The share f of the run that the mean spans: the last f·T iterates, or a time constant of f·T
            steps.
        warmup: The share of the steps over which the rate rises before it decays.
        weight_decay: Decoupled decay of the kernels of dense layers, times the scheduled rate.
        initial_bias: ``label_rate`` starts the output bias at the log-odds (pCTR, pCVR) or the log (pConvs) of the
            mean training label, which is noisy in DP-SGD.
        table_updates: ``lazy`` leaves the rows of embedding tables alone until a batch reads them, ``auto`` only those
            of tables that are large against the batch. Needs SGD, independent noise and no averaging.
    """

    optimizer: OneOrMore[OptimizerName]
    learning_rate: OneOrMore[Finite]
    momentum: OneOrMore[Annotated[float, Field(ge=0, lt=1)]] = (0.9,)
    batch_size: OneOrMore[Count]
    epochs: OneOrMore[Finite]
    model: OneOrMore[Model] = (MLPSpec(),)
    averaging: OneOrMore[AveragingName] = ("none",)
    averaging_share: OneOrMore[Annotated[float, Field(gt=0, le=1)]] = (0.5,)
    warmup: OneOrMore[Annotated[float, Field(ge=0, lt=1)]] = (0.0,)
    weight_decay: OneOrMore[Annotated[float, Field(ge=0, lt=math.inf)]] = (0.0,)
    initial_bias: OneOrMore[InitialBiasName] = ("zero",)
    # ``shift`` moves all logits so that the mean prediction on validation rows is the mean label there.
    recalibration: OneOrMore[RecalibrationName] = ("none",)
    table_updates: OneOrMore[TableUpdates] = ("dense",)


class PrivateGrid(TrainingGrid):
    """Settings of DP-SGD.

    Attributes:
        sampler: How batches are drawn. Each sampler has its own accounting: shuffled batches get no amplification by
            sampling.
        l2_clip_norm: The clip norm; with ``clipping: adaptive``, the one to start from.
        clipping: The clip factor.
        clip_quantile: The quantile of gradient norms that an adaptive clip norm follows. The default is high, since
            the rare labels have the large gradients.
        microbatch_size: Number of examples whose mean gradient is clipped. Above 1, one example changes the sum of
            means by up to twice the clip norm.
        sensitivity: ``proven`` scales the noise to that bound. ``paper`` scales it to the clip norm, as the paper
            does, which proves no ε.
        accountant: ``tightest`` adds the least noise that a known bound allows. ``RDP`` adds the noise that RDP
            accounting asks for, which is more.
        learning_rate_per: What ``learning_rate`` counts. ``one``: the rate itself. ``clip_norm``: the rate is
            ``learning_rate / l2_clip_norm``, so that one list fits every clip norm, since a clipped gradient is at
            most that long. ``guess``: the rate is ``learning_rate`` times ``dp_core.training.rate_guess``, so that one
            list fits every budget and batch size too. Optimisers that do not scale with the gradient
            take the rate as it is written.
        initial_bias_epsilon: The ε that the release of the label rate has by itself, part of the budget; by default
            1 % of it.
        bands: The number of steps that noise is correlated over; 1 for independent noise. ``auto`` is the number with
            the least error of the sums of noisy gradients at the trial's budget. Needs ``sampler: poisson``.
        recalibration_epsilon: What a recalibration costs the validation examples, in ε at the trial's δ.
    """

    sampler: OneOrMore[SamplerName] = ("poisson",)
    l2_clip_norm: OneOrMore[ClipNorm]
    clipping: OneOrMore[ClippingName] = ("fixed",)
    clip_quantile: OneOrMore[Annotated[float, Field(gt=0, lt=1)]] = (0.9,)
    microbatch_size: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = (1,)
    sensitivity: OneOrMore[SensitivityName] = ("proven",)
    accountant: OneOrMore[AccountantName] = ("tightest",)
    learning_rate_per: OneOrMore[RateUnit] = ("one",)
    initial_bias_epsilon: OneOrMore[Finite | None] = (None,)
    bands: OneOrMore[Bands | Literal["auto"]] = (1,)
    recalibration_epsilon: OneOrMore[Annotated[float, Field(ge=0.01, le=1000)]] = (0.1,)

    @model_validator(mode="after")
    def _scales_need_examples(self) -> Self:
        scaled = [name for name in self.optimizer if name in SCALES]
        if scaled and max(self.microbatch_size) > 1:
            raise ValueError(
                f"`optimizer: {scaled[0]}` scales each example's gradient before it is clipped, so it needs "
                f"`microbatch_size: 1`, got {max(self.microbatch_size)}"
            )
        return self


class LabelGrid(TrainingGrid):
    """Settings of label DP: randomized response on the labels, then training without noise. Features are public.

    Attributes:
        response: ``binary`` and ``k_ary`` randomize the label itself; ``bins`` randomizes the bin of a count, with
            bins chosen from a noisy histogram.
        debias: Whether the noisy labels are corrected to be unbiased.
        largest_count: Larger counts are clipped to it. Must be known without looking at the labels.
    """

    response: OneOrMore[ResponseName]
    debias: OneOrMore[bool] = (True,)
    largest_count: OneOrMore[Annotated[int, Field(ge=1, le=1000)]] = (10,)


class TaskGrid(Section):
    """The non-private baseline, and one or both private mechanisms, each with its own settings.

    ``paper_recipe`` is DP-SGD as the paper trains it, beside ``dp_sgd``, which is then our recipe. Validation chooses
    the settings of each recipe, and both are compared with the same baseline. A search in rounds adds no
    trainings to it.
    """

    non_private: TrainingGrid
    dp_sgd: PrivateGrid | None = None
    paper_recipe: PrivateGrid | None = None
    label_dp: LabelGrid | None = None


def column_names() -> list[str]:
    """Returns the settings of all grids. Each takes a list of values, which a table can compare."""
    return list(TrainingGrid.model_fields | PrivateGrid.model_fields | LabelGrid.model_fields)


def _check_column(name: str) -> str:
    columns = column_names()
    if name in columns:
        return name
    raise ValueError(f"no setting is called {name!r}{did_you_mean(name, columns)}; allowed: {', '.join(columns)}")


ColumnName = Annotated[str, AfterValidator(_check_column)]


class NoiseCurves(Section):
    """Noise that a budget needs by batch size, once for a fixed number of epochs and once for a fixed number of steps.

    ``examples`` is the number of training examples; by default, that of the dataset's training split.
    """

    batch_sizes: Distinct[Count]
    epochs: Finite
    steps: Count
    examples: Count | None = None
    baseline_batch_size: Count = 1024


class SpeedGrid(Section):
    """Steps to time: every method at every batch size, unless it needs more than ``memory_cap_gib`` of memory.

    ``model`` has the profile's hidden layers unless it names its own.
    """

    batch_sizes: Distinct[Count]
    model: Model = MLPSpec()
    rounds: Count = 5
    memory_cap_gib: Finite = 4.0


class Grids(Section):
    """What a pipeline does in one profile: it trains ``tasks``, computes ``curves`` or measures ``speed``.

    ``search: all`` trains every private setting with every seed. ``random`` draws the number of trainings (with the
    same mean) and the settings of each. Choosing the best of them then costs what repeat-and-select proves, instead
    of the composition of all. That needs secret randomness, and one value of each setting in ``SAME_MECHANISM``.

    ``extend`` and ``halving`` train in rounds (``tasks.rounds``), the baseline as every budget of the private methods,
    and judge by the validation loss of the first seed; the other seeds train what was chosen. ``extend`` trains every
    setting, then further values of settings whose best one is the first or the last of its list, at most ``trainings``
    more for each method and budget. ``halving`` trains at most ``trainings`` settings (all by default) of each method
    and budget for a short time, and the better third of them three times as long, until the full number of epochs.
    """

    epsilons: Distinct[Finite] = ()
    seeds: Annotated[Count, Field(le=1000)] = 1
    search: SearchName = "all"
    trainings: Count | None = None
    tasks: dict[TaskName, TaskGrid] = Field(default={})
    curves: NoiseCurves | None = None
    speed: SpeedGrid | None = None

    @property
    def trains(self) -> bool:
        return self.curves is None and self.speed is None


class Pipeline(Section):
    """What a pipeline trains or measures, and how its report shows the results.

    Attributes:
        exhibit: The figures and tables of the report.
        columns: The settings that the report compares. For each combination of their values, validation loss chooses
            the other settings.
        together: Settings with lists that are zipped, not crossed.
        paper: The numbers that the paper reports, by the table's columns and rows.
    """

    title: str
    exhibit: ExhibitName = "comparison"
    datasets: Annotated[dict[TaskName, str], Field(min_length=1)]
    randomness: Literal["seeded", "secret"] = "seeded"
    # Number of canary examples for the audit; each joins the training data with probability 1/2.
    canaries: Annotated[int, Field(ge=0, le=10**6)] = 0
    columns: Distinct[ColumnName] = ()
    together: Distinct[ColumnName] = ()
    grids: Some[Grids]
    paper: dict[str, dict[Finite, float]] = Field(default={})
