"""A trial: the complete description of one training run. Equal descriptions are the same trial."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

from dp_core.training.averaging import AveragingName
from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.config.pipeline import (
    AccountantName,
    Bands,
    ClippingName,
    InitialBiasName,
    MechanismName,
    Model,
    OptimizerName,
    RateUnit,
    RecalibrationName,
    ResponseName,
    SamplerName,
    SensitivityName,
    TableUpdates,
)
from tasks.runtime.home import home, short_hash
from tasks.runtime.progress import counted

# Increased when a change of the training code changes results, so that trials of earlier code are not reused.
TRAINING_VERSION = 5

# Settings that came later. One at its default is left out of the description, so that trials without it keep the keys
# that they had before.
_LEFT_OUT_AT_DEFAULT = (
    "start_from",
    "learning_rate_per",
    "sampled_like",
    "averaging",
    "averaging_share",
    "warmup",
    "weight_decay",
    "initial_bias",
    "initial_bias_epsilon",
    "bands",
    "recalibration",
    "recalibration_epsilon",
    "table_updates",
)

# The kinds of randomised response, for people.
RESPONSES: dict[ResponseName, str] = {
    "binary": "randomised response",
    "k_ary": "randomised response on counts",
    "bins": "randomised response on bins",
}


class Trial(BaseModel):
    """What is trained, on which data, with which settings.

    Settings that do not apply are None: ``epsilon`` without privacy; those of clipping and noise without DP-SGD;
    ``response``, ``debias`` and ``largest_count`` without LabelDP; ``clip_quantile`` unless the clip norm is adaptive;
    ``sensitivity`` without microbatches. ``accountant`` is the one that ``noise_multiplier`` was calibrated with.
    ``learning_rate`` is the rate itself, whatever the grid counts it in, which ``learning_rate_per`` keeps.
    ``bands`` is the number of steps that noise is correlated over, 1 for independent noise.
    ``averaging_share`` has its default unless iterates are averaged. ``initial_bias_epsilon`` is the ε that the release
    of the label rate has by itself; None unless DP-SGD starts with ``initial_bias: label_rate``.
    ``recalibration_epsilon`` is None unless a private model is recalibrated. ``table_updates`` says which embedding
    tables are updated lazily.
    ``sampled_like`` is the key of the finished seeded trial whose batches a trial without a guarantee has, so that the
    two differ in nothing else. ``start_from`` is the key of the finished trial whose parameters are the initial ones;
    None if those are random.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: TaskName
    dataset: str
    data_fingerprint: str
    mechanism: MechanismName
    epsilon: float | None
    target_delta: float
    sampler: SamplerName
    accountant: AccountantName | None
    noise_multiplier: float | None
    l2_clip_norm: float | None
    clipping: ClippingName | None
    clip_quantile: float | None
    microbatch_size: int
    sensitivity: SensitivityName | None
    response: ResponseName | None
    debias: bool | None
    largest_count: int | None
    optimizer: OptimizerName
    learning_rate: float
    momentum: float
    batch_size: int
    epochs: float
    model: Model
    evaluations: int
    canaries: int
    randomness: Literal["seeded", "secret"]
    seed: int
    start_from: Annotated[str, Field(pattern=r"^[0-9a-f]+$")] | None = None
    sampled_like: Annotated[str, Field(pattern=r"^[0-9a-f]+$")] | None = None
    learning_rate_per: RateUnit = "one"
    averaging: AveragingName = "none"
    averaging_share: float = 0.5
    warmup: float = 0.0
    weight_decay: float = 0.0
    initial_bias: InitialBiasName = "zero"
    initial_bias_epsilon: float | None = None
    bands: Bands = 1
    recalibration: RecalibrationName = "none"
    recalibration_epsilon: float | None = None
    table_updates: TableUpdates = "dense"

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialized: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialized(self)
        for name in _LEFT_OUT_AT_DEFAULT:
            if getattr(self, name) == type(self).model_fields[name].default:
                values.pop(name, None)
        return values

    @property
    def key(self) -> str:
        """The cache key of the trained model: a hash of the description."""
        return short_hash([TRAINING_VERSION, self.model_dump(mode="json")])

    @property
    def folder(self) -> Path:
        """The folder of the finished trial (see ``tasks.training.finished``)."""
        return home() / "trials" / self.key

    @property
    def epsilon_label(self) -> str:
        """The budget as shown in tables; ``inf`` for the non-private baseline."""
        return "inf" if self.epsilon is None else f"{self.epsilon:g}"

    def flat_settings(self) -> dict[str, Any]:
        """Returns every setting that applies, one level deep, for MLflow: the model's own numbers beside the others.

        A number of the model that is named like a setting of the trial gets the prefix ``model_``.
        """
        # Also those at the default of a later version, so that runs of a sweep can be compared by them.
        settings = {name: getattr(self, name) for name in _LEFT_OUT_AT_DEFAULT} | self.model_dump(mode="json")
        model = settings["model"]
        settings["model"] = model.pop("name")
        own = {f"model_{name}" if name in settings else name: value for name, value in model.items()}
        flat = {**settings, **own}
        return {name: value for name, value in flat.items() if value is not None}

    def label(self) -> str:
        """Returns a name for people, made of the settings that usually differ within a sweep."""
        parts: list[str] = [TASK_TITLES[self.task], "non-private" if self.epsilon is None else f"ε={self.epsilon:g}"]
        if self.mechanism == "clipped_only":
            parts += [f"clipped without noise at C={self.l2_clip_norm:g}"]
        if self.mechanism == "label_dp":
            parts += [f"{RESPONSES[self.response or 'binary']}{', debiased' if self.debias else ''}"]
        if self.mechanism == "dp_sgd":
            parts += [f"C={self.l2_clip_norm:g}"]
            parts += [self.clipping] if self.clipping not in (None, "fixed") else []
            parts += [f"microbatch {self.microbatch_size}"] if self.microbatch_size > 1 else []
            parts += [self.sampler.replace("_", " ")] if self.sampler != "poisson" else []
            parts += [counted(self.bands, "band")] if self.bands > 1 else []
            parts += ["noise by RDP"] if self.accountant == "RDP" else []
        parts += [f"{self.optimizer} {self.learning_rate:.4g}"]
        parts += [f"{self.averaging} average"] if self.averaging != "none" else []
        parts += [f"{self.table_updates} tables"] if self.table_updates != "dense" else []
        parts += [self.model.label] if self.model.name != "mlp" else []
        parts += ["recalibrated"] if self.recalibration != "none" else []
        parts += ["warm start"] if self.start_from is not None else []
        return " · ".join(
            [*parts, f"batch {self.batch_size:,}", counted(float(self.epochs), "epoch"), f"seed {self.seed}"]
        )


def is_key_of(key: str, described: Any) -> bool:
    """Returns whether a key is that of a trial, given as JSON, by this version of the code or an earlier one."""
    return any(short_hash([version, described]) == key for version in range(TRAINING_VERSION, 0, -1))
