"""The part of a budget that the release of the label rate takes, and the noise that follows from it."""

from __future__ import annotations

from typing import Any

from tasks.config.pipeline import PrivateGrid
from tasks.runtime.errors import UserError

# The share of a training's ε that the release of the label rate has by itself, unless the configuration says another.
# Composed with training it costs less: a Gaussian release of 1 % of ε has a small part of 1 % of the squared distance.
SHARE_OF_EPSILON = 0.01


def budgeted(settings: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Returns settings of DP-SGD with the ε of the label rate's release: as configured, or a share of the budget.

    Raises:
        UserError: It leaves nothing of the budget for training.
    """
    if settings["initial_bias"] == "zero":
        return {**settings, "initial_bias_epsilon": None}
    own = settings["initial_bias_epsilon"]
    own = SHARE_OF_EPSILON * epsilon if own is None else own
    if own >= epsilon:
        raise UserError(
            f"initial_bias_epsilon: {own:g} leaves nothing for training of a budget of {epsilon:g}: lower it, or "
            "leave it out"
        )
    return {**settings, "initial_bias_epsilon": own}


def label_rate_noise(initial_bias_epsilon: float | None, delta: float) -> float | None:
    """Returns the noise multiplier of the label rate's release; None if there is no such release."""
    if initial_bias_epsilon is None:
        return None
    # A plan should not wait for SciPy unless it needs it.
    from dp_core.training.label_rate import label_rate_noise_multiplier

    return label_rate_noise_multiplier(epsilon=initial_bias_epsilon, delta=delta)


def label_rate_of(grid: PrivateGrid, epsilon: float, delta: float) -> float | None:
    """Returns the noise multiplier of the label rate's release in a grid where all trainings have the same."""
    (name,), (own,) = grid.initial_bias, grid.initial_bias_epsilon
    settings = budgeted({"initial_bias": name, "initial_bias_epsilon": own}, epsilon)
    return label_rate_noise(settings["initial_bias_epsilon"], delta)
