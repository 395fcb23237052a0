"""The round that takes the chosen private trainings apart: the same without noise, and without clipping too.

A private training differs from the best non-private one in three ways, one after the other: its recipe (optimiser,
batch size, epochs, and so on, chosen to suit DP-SGD), clipping, which biases gradients, and noise, which adds variance.
Two more trainings of each chosen one tell them apart. They have its seed and, if it is seeded, its batches. Neither has
a guarantee.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tasks.rounds.registry import RoundPlanner, register_planner

if TYPE_CHECKING:
    from tasks.config.pipeline import Grids, Pipeline
    from tasks.rounds.cells import Asked
    from tasks.rounds.history import History
    from tasks.training.trial import Trial

NAME = "decomposition"


def most_rounds(pipeline: Pipeline, grids: Grids) -> int:
    return 1 if pipeline.exhibit == NAME else 0


def without_noise(trial: Trial) -> Trial:
    """Returns a chosen trial of DP-SGD with clipping alone. It proves nothing: its ε is None."""
    return trial.model_copy(
        update={
            "mechanism": "clipped_only",
            "epsilon": None,
            "accountant": None,
            "noise_multiplier": 0.0,
            # Without a guarantee, nothing is drawn for the initial bias and the recalibration: both are exact.
            "initial_bias_epsilon": None,
            "recalibration_epsilon": None,
            "canaries": 0,
            "sampled_like": _twin(trial),
        }
    )


def without_clipping(trial: Trial) -> Trial:
    """Returns a chosen trial of DP-SGD without clipping and noise: its recipe, trained as the baseline is."""
    from tasks.config.pipeline import PrivateGrid, TrainingGrid
    from tasks.training.enumeration import NOT_APPLICABLE
    from tasks.training.trial import Trial as Description

    # How batches are drawn belongs to the recipe.
    of_dp_sgd = PrivateGrid.model_fields.keys() - TrainingGrid.model_fields.keys() - {"sampler"}
    fields = Description.model_fields
    update = {name: NOT_APPLICABLE.get(name, fields[name].get_default()) for name in of_dp_sgd if name in fields}
    update |= {"mechanism": "non_private", "epsilon": None, "noise_multiplier": None, "canaries": 0}
    return trial.model_copy(update={**update, "sampled_like": _twin(trial)})


def _twin(trial: Trial) -> str | None:
    # Nobody knows the batches of a secret trial.
    return trial.key if trial.randomness == "seeded" else None


def plan(history: History) -> list[Asked]:
    """Returns the trainings that take the chosen ones apart."""
    from tasks.reporting.results import choose
    from tasks.rounds.cells import Asked
    from tasks.rounds.finalists import finalists

    columns, search = history.pipeline.columns, history.grids.search
    results = choose(
        [outcome for one in history.rounds if one.planner != NAME for outcome in one.outcomes],
        columns,
        each_alone=search == "random",
        among=finalists(history.rounds, columns, search),
    )
    chosen = [outcome.trial for result in results if result.arm.mechanism == "dp_sgd" for outcome in result.chosen]
    return [Asked(make(trial), like=trial) for trial in chosen for make in (without_clipping, without_noise)]


register_planner(RoundPlanner(NAME, most_rounds, plan))
