"""The method of a run: everything that its compiled step depends on."""

from __future__ import annotations

import dataclasses

from dp_core.clipping.factors import clip_factor
from dp_core.models.mlp import AdModel
from dp_core.training.losses import OBJECTIVES
from dp_core.training.optimizers import optimizer_maker
from dp_core.training.placement import Placement


@dataclasses.dataclass(frozen=True)
class Method:
    """Selects the program that trains: equal methods share one compiled step.

    The numbers of a run (learning rate, clip norm, noise multiplier, ...) are not part of it. They are
    ``step.Hyperparameters``, which the compiled step takes as traced arguments.

    Attributes:
        model: The network, built from the layers of ``dp_core.clipping.layers``.
        task: A key of ``losses.OBJECTIVES``.
        optimizer: A key of ``optimizers.OPTIMIZERS``.
        momentum: SGD's momentum, in [0, 1). Other optimisers ignore it.
        private: Whether gradients are clipped and noised. If not, the fields below but the placement
            have no effect.
        clipping: A key of ``factors.CLIP_FACTORS``.
        microbatch_size: Nominal number of examples in a group. The mean gradient of each group is
            clipped; 1 clips the gradient of each example.
        placement: The devices that parameters and batches live on.

    Raises:
        ValueError: If a name is not registered or a number is out of range.
    """

    model: AdModel
    task: str
    optimizer: str
    momentum: float
    private: bool
    clipping: str = "fixed"
    microbatch_size: int = 1
    placement: Placement = dataclasses.field(default_factory=Placement)

    def __post_init__(self) -> None:
        if self.task not in OBJECTIVES:
            raise ValueError(f"unknown task {self.task!r}; known: {', '.join(OBJECTIVES)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.microbatch_size < 1:
            raise ValueError(f"microbatch_size must be at least 1, got {self.microbatch_size}")
        optimizer_maker(self.optimizer)
        clip_factor(self.clipping)
