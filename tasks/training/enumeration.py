"""Enumerates the trials of a run: settings of the grid, then trials of each mechanism, then the noise of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dp_core.clipping.factors import clip_factor
from dp_core.epochs import steps_for_epochs
from tasks.config.dataset import TaskName
from tasks.config.loading import Config, Profile
from tasks.config.pipeline import Grids, MechanismName, Pipeline, TaskGrid, TrainingGrid
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared, vocabulary_release
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError
from tasks.runtime.home import short_hash
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import VocabularyRelease

# One value for each key of a mechanism's grid, by the names of a trial's fields.
Settings = dict[str, Any]

# A trial's fields that belong to one mechanism, as they are in a trial of another.
NOT_APPLICABLE: Settings = {
    # DP-SGD. Without it, how batches are sampled does not matter to privacy.
    "sampler": "poisson",
    "canaries": 0,
    "accountant": None,
    "noise_multiplier": None,
    "l2_clip_norm": None,
    "clipping": None,
    "clip_quantile": None,
    "microbatch_size": 1,
    "sensitivity": None,
    # LabelDP
    "response": None,
    "debias": None,
    "largest_count": None,
}


class TaskSweep(NamedTuple):
    """The trials of one task of a run, as ``pipelines.yaml`` describes them."""

    config: Config
    selection: Selection
    task: TaskName

    @property
    def pipeline(self) -> Pipeline:
        return self.config.pipelines[self.selection.pipeline]

    @property
    def profile(self) -> Profile:
        return self.config.profiles[self.selection.profile]

    @property
    def grids(self) -> Grids:
        return self.config.grids(self.selection.pipeline, self.selection.profile)

    @property
    def grid(self) -> TaskGrid:
        return self.grids.tasks[self.task]

    @property
    def path(self) -> str:
        """The path of the grids in ``pipelines.yaml``."""
        return f"pipelines.{self.selection.pipeline}.grids.{self.selection.profile}"

    def settings(self, mechanism: MechanismName) -> list[Settings]:
        """Returns the distinct settings that a mechanism is trained with; none if the grid does not have it."""
        grid: TrainingGrid | None = getattr(self.grid, mechanism)
        return [] if grid is None else distinct_settings(grid, self.profile.hidden_layers, self.pipeline.together)

    def trainings(self, mechanism: MechanismName) -> list[tuple[Settings, int]]:
        """Returns every setting of a mechanism with every seed."""
        return list(itertools.product(self.settings(mechanism), range(self.selection.seeds)))


def enumerate_trials(config: Config, selection: Selection, task: TaskName, prepared: Prepared) -> Iterator[Trial]:
    """Yields the trials of a task: those of the baseline, then for each budget those of DP-SGD and LabelDP."""
    sweep = TaskSweep(config, selection, task)
    examples = prepared.splits["train"]["rows"]
    for mechanism in ("non_private", "dp_sgd", "label_dp"):
        _check_batch_sizes(sweep, mechanism, examples, prepared.dataset)
    for settings, seed in sweep.trainings("non_private"):
        yield _trial(sweep, prepared, "non_private", settings, seed, epsilon=None, target_delta=1 / examples)
    for epsilon in selection.epsilons:
        if sweep.grid.dp_sgd is not None:
            yield from _dp_sgd_trials(sweep, prepared, epsilon)
        for settings, seed in sweep.trainings("label_dp"):
            yield _trial(sweep, prepared, "label_dp", settings, seed, epsilon=epsilon, target_delta=0.0)


def expected_trainings(config: Config, selection: Selection) -> dict[TaskName, int] | None:
    """Returns for each task the expected number of trainings in a cell, or None if the number is not random."""
    if config.grids(selection.pipeline, selection.profile).search == "all":
        return None
    return {task: len(TaskSweep(config, selection, task).trainings("dp_sgd")) for task in selection.tasks}


def dp_sgd_trainings(sweep: TaskSweep, epsilon: float) -> list[tuple[Settings, int]]:
    """Returns the settings and seeds that DP-SGD trains with at one budget.

    ``search: all`` takes every setting with every seed. ``search: random`` draws the number of trainings from a
    geometric distribution with the same mean, and the settings of each uniformly, as repeat-and-select requires.
    """
    every = sweep.trainings("dp_sgd")
    if sweep.grids.search == "all":
        return every
    settings = sweep.settings("dp_sgd")
    _check_random_search(sweep, settings, len(every))
    secret = sweep.pipeline.randomness == "secret"
    rng = np.random.default_rng(None if secret else int(short_hash([sweep.task, epsilon, len(every)]), 16))
    return [(settings[rng.integers(len(settings))], seed) for seed in range(int(rng.geometric(1 / len(every))))]


def _dp_sgd_trials(sweep: TaskSweep, prepared: Prepared, epsilon: float) -> Iterator[Trial]:
    canaries = sweep.pipeline.canaries
    # A canary has a slot whether it is in the training data or not: which ones are in is secret, their number is not.
    slots = prepared.splits["train"]["rows"] + canaries
    vocabulary = vocabulary_release(prepared)
    if vocabulary is not None and prepared.vocabulary["epsilon"] >= epsilon:
        raise UserError(
            f"datasets.{prepared.dataset}.vocabulary_epsilon: the vocabulary's {prepared.vocabulary['epsilon']:g} "
            f"leaves nothing for training of a budget of {epsilon:g}: lower it, or train with larger budgets"
        )
    for settings, seed in dp_sgd_trainings(sweep, epsilon):
        yield _trial(
            sweep,
            prepared,
            "dp_sgd",
            settings,
            seed,
            epsilon=epsilon,
            target_delta=1 / slots,
            canaries=canaries,
            noise_multiplier=_noise_multiplier(settings, slots, epsilon, vocabulary),
        )


def _noise_multiplier(settings: Settings, slots: int, epsilon: float, vocabulary: VocabularyRelease | None) -> float:
    """Returns the noise multiplier with which training and the vocabulary together stay within the budget."""
    batches = {"examples": slots, "batch_size": settings["batch_size"], "sampler": settings["sampler"]}
    return noise_multiplier_for(
        epsilon=epsilon,
        delta=1 / slots,
        steps=steps_for_epochs(**batches, epochs=settings["epochs"]),
        vocabulary=vocabulary,
        accountant=settings["accountant"],
        **batches,
    )


def _trial(
    sweep: TaskSweep, prepared: Prepared, mechanism: MechanismName, settings: Settings, seed: int, **privacy: Any
) -> Trial:
    values = {
        **NOT_APPLICABLE,
        "task": sweep.task,
        "dataset": prepared.dataset,
        "data_fingerprint": prepared.fingerprint,
        "evaluations": sweep.profile.evaluations,
        "randomness": sweep.pipeline.randomness,
        **settings,
        "mechanism": mechanism,
        "seed": seed,
        **privacy,
    }
    return Trial(**values)


def combinations(grid: TrainingGrid, hidden_layers: Sequence[int], together: Sequence[str] = ()) -> Iterator[Settings]:
    """Yields every combination of the grid's values; lists named in ``together`` are zipped, not crossed.

    ``hidden_layers`` are those of models that do not name their own.
    """
    values: dict[str, tuple[Any, ...]] = {name: value if isinstance(value, tuple) else (value,) for name, value in grid}
    values["model"] = tuple(dict.fromkeys(model.with_layers(hidden_layers) for model in grid.model))
    zipped_names = [name for name in together if name in values]
    zipped = list(zip(*(values.pop(name) for name in zipped_names), strict=True)) or [()]
    for crossed, row in itertools.product(itertools.product(*values.values()), zipped):
        yield {**dict(zip(values, crossed, strict=True)), **dict(zip(zipped_names, row, strict=True))}


def distinct_settings(grid: TrainingGrid, hidden_layers: Sequence[int], together: Sequence[str] = ()) -> list[Settings]:
    """Returns the ``combinations`` of a grid, each once, with None for settings that have no effect."""
    found: list[Settings] = []
    for combination in combinations(grid, hidden_layers, together):
        settings = _without_unused(combination)
        if settings not in found:
            found.append(settings)
    return found


def _without_unused(settings: Settings) -> Settings:
    """Returns the settings with None for those that have no effect beside the others."""
    unused: Settings = {}
    if "clip_quantile" in settings and not clip_factor(settings["clipping"]).adaptive:
        unused["clip_quantile"] = None
    if "sensitivity" in settings and settings["microbatch_size"] == 1:
        unused["sensitivity"] = None
    if "largest_count" in settings and settings["response"] == "binary":
        unused["largest_count"] = None
    return {**settings, **unused}


def _check_batch_sizes(sweep: TaskSweep, mechanism: MechanismName, examples: int, dataset: str) -> None:
    for settings in sweep.settings(mechanism):
        if settings["batch_size"] > examples:
            raise UserError(
                f"{sweep.path}.tasks.{sweep.task}.{mechanism}.batch_size: a batch of {settings['batch_size']:,} is "
                f"larger than the {examples:,} training examples of {dataset!r}"
            )


def _check_random_search(sweep: TaskSweep, settings: Sequence[Settings], trainings: int) -> None:
    """Raises ``UserError`` if the bound on the cost of a random search does not hold for the grid."""
    path = f"{sweep.path}.tasks.{sweep.task}.dp_sgd"
    if settings[0]["sampler"] == "balls_in_bins":
        raise UserError(
            f"{path}.sampler: the cost of `search: random` is computed by RDP, which has no bound for balls_in_bins: "
            "use poisson, or `search: all`"
        )
    if trainings == 1:
        raise UserError(f"{sweep.path}.search: {sweep.task} has one setting and one seed, so nothing to draw from")
