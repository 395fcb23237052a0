"""Section of a pipeline in ``pipelines.yaml``: what it trains or measures, and what its report shows."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, SerializeAsAny

from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.models.spec import MLPSpec, ModelSpec, as_model_spec
from dp_core.training.optimizers import OPTIMIZERS
from tasks.config.dataset import TaskName
from tasks.config.sections import Count, Distinct, Finite, OneOrMore, Section, Some, did_you_mean, registered
from tasks.reporting.exhibits.registry import exhibits

MechanismName = Literal["non_private", "dp_sgd", "label_dp"]
# With `search: random`, the settings of DP-SGD that all trainings must share, so that all are equally private.
SAME_MECHANISM = ("batch_size", "epochs", "sampler", "clipping", "microbatch_size", "sensitivity", "accountant")
OptimizerName = Annotated[str, registered(lambda: OPTIMIZERS)]
# A model by its name, or by its name and its own numbers.
Model = Annotated[SerializeAsAny[ModelSpec], BeforeValidator(as_model_spec)]
ClippingName = Annotated[str, registered(lambda: CLIP_FACTORS)]
SensitivityName = Literal["proven", "paper"]
SamplerName = Literal["poisson", "balls_in_bins", "shuffle"]
AccountantName = Literal["tightest", "RDP"]
ResponseName = Literal["binary", "k_ary", "bins"]
ExhibitName = Annotated[str, registered(exhibits)]


class TrainingGrid(Section):
    """Settings of training. Where a setting has a list, validation loss chooses among its values."""

    optimizer: OneOrMore[OptimizerName]
    learning_rate: OneOrMore[Finite]
    momentum: OneOrMore[Annotated[float, Field(ge=0, lt=1)]] = (0.9,)
    batch_size: OneOrMore[Count]
    epochs: OneOrMore[Finite]
    model: OneOrMore[Model] = (MLPSpec(),)


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
    """

    sampler: OneOrMore[SamplerName] = ("poisson",)
    l2_clip_norm: OneOrMore[Finite]
    clipping: OneOrMore[ClippingName] = ("fixed",)
    clip_quantile: OneOrMore[Annotated[float, Field(gt=0, lt=1)]] = (0.9,)
    microbatch_size: OneOrMore[Annotated[int, Field(ge=1, le=1024)]] = (1,)
    sensitivity: OneOrMore[SensitivityName] = ("proven",)
    accountant: OneOrMore[AccountantName] = ("tightest",)


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
    """The non-private baseline, and one or both private mechanisms, each with its own settings."""

    non_private: TrainingGrid
    dp_sgd: PrivateGrid | None = None
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
