"""One training run, described completely: equal descriptions are the same trial."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.descriptions import TaskName
from tasks.grids import (
    AccountantName,
    ClippingName,
    MechanismName,
    ModelName,
    OptimizerName,
    ResponseName,
    SamplerName,
    SensitivityName,
)
from tasks.home import home, short_hash

# Raised when the training code changes what a trial's numbers would be, so that old ones are not found.
TRAINING_VERSION = 4

# What randomised response answers with, in words.
RESPONSES: dict[ResponseName, str] = {
    "binary": "randomised response",
    "k_ary": "randomised response on counts",
    "bins": "randomised response on bins",
}


class Trial(BaseModel):
    """What is trained, on which data, with which numbers.

    What does not apply is None: ``epsilon`` without privacy, all of clipping unless it is DP-SGD, ``response`` and
    ``debias`` unless it is LabelDP, ``clip_quantile`` unless the clip norm is adaptive, ``sensitivity`` without
    microbatches, the numbers of other models. ``accountant`` is who asked for the noise.
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
    model: ModelName
    hidden_layers: tuple[int, ...]
    cross_layers: int | None
    interaction_dimension: int | None
    evaluations: int
    canaries: int
    randomness: Literal["seeded", "secret"]
    seed: int

    @property
    def key(self) -> str:
        return short_hash([TRAINING_VERSION, self.model_dump(mode="json")])

    @property
    def folder(self) -> Path:
        """Where the finished trial is: its record, its model and its privacy statement."""
        return home() / "trials" / self.key

    @property
    def epsilon_label(self) -> str:
        """
        The budget as it stands in tables: ``inf`` for the non-private baseline.
        """
        return "inf" if self.epsilon is None else f"{self.epsilon:g}"

    def label(self) -> str:
        """A name for a person: what sets this trial apart from its neighbours in a sweep."""
        parts: list[str] = [self.task, "non-private" if self.epsilon is None else f"ε={self.epsilon:g}"]
        if self.mechanism == "label_dp":
            parts += [f"{RESPONSES[self.response or 'binary']}{', debiased' if self.debias else ''}"]
        if self.mechanism == "dp_sgd":
            parts += [f"C={self.l2_clip_norm:g}"]
            parts += [self.clipping] if self.clipping not in (None, "fixed") else []
            parts += [f"microbatch {self.microbatch_size}"] if self.microbatch_size > 1 else []
            parts += [self.sampler.replace("_", " ")] if self.sampler != "poisson" else []
            parts += ["noise by RDP"] if self.accountant == "RDP" else []
        parts += [f"{self.optimizer} {self.learning_rate:g}"]
        parts += [self.model] if self.model != "mlp" else []
        return " · ".join([*parts, f"batch {self.batch_size:,}", f"{self.epochs:g} epochs", f"seed {self.seed}"])
