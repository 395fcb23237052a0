"""The method of a run: everything that its compiled step depends on."""

from __future__ import annotations

import dataclasses

from dp_core.clipping.factors import clip_factor
from dp_core.models.mlp import AdModel
from dp_core.training.averaging import AVERAGING, AveragingName
from dp_core.training.losses import OBJECTIVES
from dp_core.training.optimizers import NEEDS_INDEPENDENT_NOISE, SCALES, optimizer_maker
from dp_core.training.placement import Placement

# What lazy tables need. An adaptive clip norm would do as well, but the audit's oracle does not follow it.
LAZY_NEEDS = "it needs SGD, with or without momentum, independent noise, one device, no averaging and a fixed clip norm"


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
        private: Whether gradients are clipped and noised. If not, the clipping and the microbatch size have no
            effect.
        clipping: A key of ``factors.CLIP_FACTORS``.
        microbatch_size: Nominal number of examples in a group. The mean gradient of each group is
            clipped; 1 clips the gradient of each example.
        averaging: A name of ``averaging.AVERAGING``: what of the iterates is released.
        placement: The devices that parameters and batches live on.
        noise_coefficients: The first column of the Toeplitz matrix C of correlated noise C⁻¹z, with a norm of at most
            1; ``(1.0,)`` for independent noise.
        lazy_tables: The layers of tables whose rows are left alone until a batch reads them
            (``lazy_updates.lazy_tables``).

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
    averaging: AveragingName = "none"
    placement: Placement = dataclasses.field(default_factory=Placement)
    noise_coefficients: tuple[float, ...] = (1.0,)
    lazy_tables: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.task not in OBJECTIVES:
            raise ValueError(f"unknown task {self.task!r}; known: {', '.join(OBJECTIVES)}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum}")
        if self.microbatch_size < 1:
            raise ValueError(f"microbatch_size must be at least 1, got {self.microbatch_size}")
        if self.averaging not in AVERAGING:
            raise ValueError(f"unknown averaging {self.averaging!r}; known: {', '.join(AVERAGING)}")
        if self.private and self.microbatch_size > 1 and self.optimizer in SCALES:
            raise ValueError(
                f"{self.optimizer} scales each example's gradient before it is clipped, so it needs microbatch_size 1, "
                f"got {self.microbatch_size}"
            )
        if not 0 < sum(one * one for one in self.noise_coefficients) <= 1 or self.noise_coefficients[0] == 0:
            raise ValueError("noise_coefficients must have a norm of at most 1, and the first must not be 0")
        if self.private and self.bands > 1 and self.optimizer in NEEDS_INDEPENDENT_NOISE:
            raise ValueError(f"{self.optimizer} needs independent noise: noise_coefficients must be (1.0,)")
        if self.lazy_tables:
            self._check_lazy()
        optimizer_maker(self.optimizer)
        clip_factor(self.clipping)

    def _check_lazy(self) -> None:
        unknown = set(self.lazy_tables) - set(self.model.vocabulary_sizes)
        if unknown:
            raise ValueError(f"the model has no table {', '.join(sorted(unknown))} to update lazily")
        refused = {
            f"optimizer {self.optimizer}": self.optimizer != "sgd",
            f"{self.averaging} averaging": self.averaging != "none",
            "correlated noise": self.private and self.bands > 1,
            "several devices": not self.placement.alone,
            "an adaptive clip norm": self.private and clip_factor(self.clipping).adaptive,
        }
        for what, found in refused.items():
            if found:
                raise ValueError(f"tables cannot be updated lazily with {what}: {LAZY_NEEDS}")

    @property
    def bands(self) -> int:
        """The number of steps that noise is correlated over."""
        return len(self.noise_coefficients)
