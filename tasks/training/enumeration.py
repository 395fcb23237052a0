"""Enumerates the trials of a run: settings of the grid, then trials of each mechanism, then the noise of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dp_core.epochs import steps_for_epochs
from tasks.config.dataset import TaskName
from tasks.config.grid_settings import Settings, distinct_settings
from tasks.config.limits import step_problem
from tasks.config.loading import Config, Profile
from tasks.config.pipeline import (
    IN_ROUNDS,
    Grids,
    MechanismName,
    Pipeline,
    RecipeName,
    TaskGrid,
    TrainingGrid,
)
from tasks.config.selection import Selection
from tasks.data.prepared import Prepared, vocabulary_release
from tasks.privacy.best_bands import bands_for
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.privacy.label_rate_budget import budgeted, label_rate_noise
from tasks.rounds.rates import with_rate
from tasks.rounds.rungs import HALVING_FACTOR, rungs, snapped
from tasks.runtime.errors import UserError
from tasks.runtime.home import short_hash
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import VocabularyRelease

# The parts of a task's grid that are trained.
GridName = MechanismName | Literal["paper_recipe"]

# A trial's fields that belong to one mechanism, as they are in a trial of another.
NOT_APPLICABLE: Settings = {
    # DP-SGD. Without it, how batches are sampled does not matter to privacy.
    "sampler": "poisson",
    "canaries": 0,
    "bands": 1,
    "accountant": None,
    "noise_multiplier": None,
    "l2_clip_norm": None,
    "clipping": None,
    "clip_quantile": None,
    "microbatch_size": 1,
    "sensitivity": None,
    "learning_rate_per": "one",
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

    def settings(self, mechanism: GridName) -> list[Settings]:
        """Returns the distinct settings that a mechanism is trained with; none if the grid does not have it."""
        grid: TrainingGrid | None = getattr(self.grid, mechanism)
        return [] if grid is None else distinct_settings(grid, self.profile.hidden_layers, self.pipeline.together)

    def trainings(self, mechanism: GridName) -> list[tuple[Settings, int]]:
        """Returns every setting of a mechanism with every seed; those that a search in rounds begins with.

        Of the paper's recipe, a search in rounds begins with every setting, and adds none.
        """
        if self.grids.search not in IN_ROUNDS:
            return list(itertools.product(self.settings(mechanism), range(self.selection.seeds)))
        settings, most = self.settings(mechanism), self.grids.trainings
        if self.grids.search == "halving" and mechanism != "paper_recipe":
            settings = _drawn(settings, most or len(settings), [self.task, mechanism])
        return [(one, 0) for one in settings]

    def share(self, mechanism: GridName) -> float:
        """Returns the share of its epochs that a setting is trained for at first."""
        if self.grids.search != "halving" or mechanism == "paper_recipe" or len(self.trainings(mechanism)) == 1:
            return 1.0
        return HALVING_FACTOR ** (1 - rungs(self.grids))


def enumerate_trials(config: Config, selection: Selection, task: TaskName, prepared: Prepared) -> Iterator[Trial]:
    """Yields the trials of a task: those of the baseline, then for each budget those of DP-SGD and LabelDP."""
    sweep = TaskSweep(config, selection, task)
    examples = prepared.splits["train"]["rows"]
    for mechanism in ("non_private", "dp_sgd", "paper_recipe", "label_dp"):
        _check_sizes(sweep, mechanism, examples, prepared.dataset)
    for settings, seed in sweep.trainings("non_private"):
        yield _trial(sweep, prepared, "non_private", settings, seed, epsilon=None, target_delta=1 / examples)
    for epsilon in selection.epsilons:
        if sweep.grid.dp_sgd is not None:
            yield from _dp_sgd_trials(sweep, prepared, epsilon, dp_sgd_trainings(sweep, epsilon))
        for settings, seed in sweep.trainings("label_dp"):
            yield _trial(sweep, prepared, "label_dp", settings, seed, epsilon=epsilon, target_delta=0.0)


def paper_recipe_trials(config: Config, selection: Selection, task: TaskName, prepared: Prepared) -> Iterator[Trial]:
    """Yields the trials of the paper's recipe, which may be among those of ``enumerate_trials`` too."""
    sweep = TaskSweep(config, selection, task)
    if sweep.grid.paper_recipe is not None:
        for epsilon in selection.epsilons:
            yield from _dp_sgd_trials(sweep, prepared, epsilon, sweep.trainings("paper_recipe"), whole=True)


def with_recipes(trials: Iterable[Trial], paper: Iterable[Trial]) -> dict[Trial, list[RecipeName]]:
    """Returns all trials, each once, with the recipes of DP-SGD that it belongs to.

    A trial of both recipes is trained once and counts in both. Other mechanisms have no recipe, and nothing has one
    without a ``paper`` recipe to compare with.
    """
    paper = list(paper)
    tasks = {trial.task for trial in paper}
    found: dict[Trial, list[RecipeName]] = {
        trial: ["ours"] if trial.mechanism == "dp_sgd" and trial.task in tasks else [] for trial in trials
    }
    for trial in paper:
        found.setdefault(trial, []).append("paper_recipe")
    return found


def expected_trainings(config: Config, selection: Selection) -> dict[TaskName, int] | None:
    """Returns for each task the expected number of trainings in a cell, or None if the number is not random."""
    if config.grids(selection.pipeline, selection.profile).search != "random":
        return None
    return {task: len(TaskSweep(config, selection, task).trainings("dp_sgd")) for task in selection.tasks}


def dp_sgd_trainings(sweep: TaskSweep, epsilon: float) -> list[tuple[Settings, int]]:
    """Returns the settings and seeds that DP-SGD trains with at one budget.

    ``search: all`` takes every setting with every seed. ``search: random`` draws the number of trainings from a
    geometric distribution with the same mean, and the settings of each uniformly, as repeat-and-select requires.
    """
    every = sweep.trainings("dp_sgd")
    if sweep.grids.search != "random":
        return every
    settings = sweep.settings("dp_sgd")
    _check_random_search(sweep, settings, len(every))
    secret = sweep.pipeline.randomness == "secret"
    rng = np.random.default_rng(None if secret else int(short_hash([sweep.task, epsilon, len(every)]), 16))
    return [(settings[rng.integers(len(settings))], seed) for seed in range(int(rng.geometric(1 / len(every))))]


def _dp_sgd_trials(
    sweep: TaskSweep,
    prepared: Prepared,
    epsilon: float,
    trainings: Sequence[tuple[Settings, int]],
    *,
    whole: bool = False,
) -> Iterator[Trial]:
    canaries = sweep.pipeline.canaries
    # A canary has a slot whether it is in the training data or not: which ones are in is secret, their number is not.
    slots = prepared.splits["train"]["rows"] + canaries
    vocabulary = vocabulary_release(prepared)
    if vocabulary is not None and prepared.vocabulary["epsilon"] >= epsilon:
        raise UserError(
            f"datasets.{prepared.dataset}.vocabulary_epsilon: the vocabulary's {prepared.vocabulary['epsilon']:g} "
            f"leaves nothing for training of a budget of {epsilon:g}: lower it, or train with larger budgets"
        )
    seen: set[str] = set()
    for given, seed in trainings:
        settings = budgeted(given, epsilon)
        settings = {**settings, "bands": _bands(sweep, settings, slots, epsilon, vocabulary)}
        trial = _trial(
            sweep,
            prepared,
            "dp_sgd",
            settings,
            seed,
            whole=whole,
            epsilon=epsilon,
            target_delta=1 / slots,
            canaries=canaries,
            noise_multiplier=_noise_multiplier(settings, slots, epsilon, vocabulary),
        )
        # The best number of bands may be one that the grid lists as well.
        if given["bands"] != "auto" or trial.key not in seen:
            yield trial
        seen.add(trial.key)


def _noise_multiplier(
    settings: Mapping[str, Any], slots: int, epsilon: float, vocabulary: VocabularyRelease | None
) -> float:
    """Returns the noise multiplier with which training and the vocabulary together stay within the budget."""
    batches = {"examples": slots, "batch_size": settings["batch_size"], "sampler": settings["sampler"]}
    return noise_multiplier_for(
        epsilon=epsilon,
        delta=1 / slots,
        steps=steps_for_epochs(**batches, epochs=settings["epochs"]),
        vocabulary=vocabulary,
        accountant=settings["accountant"],
        label_rate_noise_multiplier=label_rate_noise(settings["initial_bias_epsilon"], 1 / slots),
        bands=settings["bands"],
        **batches,
    )


def _bands(
    sweep: TaskSweep, settings: Settings, slots: int, epsilon: float, vocabulary: VocabularyRelease | None
) -> int:
    """Returns the number of bands of a training at a budget: as given, or the best one for ``auto``."""
    batches = {"examples": slots, "batch_size": settings["batch_size"]}
    steps = steps_for_epochs(**batches, epochs=settings["epochs"])
    bands = bands_for(
        settings["bands"],
        epsilon=epsilon,
        delta=1 / slots,
        steps=steps,
        vocabulary=vocabulary,
        accountant=settings["accountant"],
        **batches,
    )
    most = min(steps, slots // settings["batch_size"])
    if bands > most:
        raise UserError(
            f"{sweep.path}.tasks.{sweep.task}.dp_sgd.bands: noise cannot be correlated over {bands:,} steps here: an "
            f"example takes part once in that many, and an epoch has {most:,} batches; give {most:,} at most, or `auto`"
        )
    return bands


def _trial(
    sweep: TaskSweep,
    prepared: Prepared,
    mechanism: MechanismName,
    settings: Settings,
    seed: int,
    *,
    whole: bool = False,
    **privacy: Any,
) -> Trial:
    share = 1.0 if whole else sweep.share(mechanism)
    values = {
        **NOT_APPLICABLE,
        "task": sweep.task,
        "dataset": prepared.dataset,
        "data_fingerprint": prepared.fingerprint,
        "evaluations": sweep.profile.evaluations,
        "randomness": sweep.pipeline.randomness,
        **settings,
        # The noise of a partial training is that of the whole one, so that it costs less (``tasks.rounds.halving``).
        "epochs": settings["epochs"] if share == 1 else snapped(settings["epochs"] * share),
        "mechanism": mechanism,
        "seed": seed,
        **privacy,
    }
    trial = Trial(**values)
    return with_rate(trial, prepared)


def recalibrated(trial: Trial, prepared: Prepared) -> Trial:
    """Returns a trial of DP-SGD with the noise that its settings need for its budget."""
    slots = prepared.splits["train"]["rows"] + trial.canaries
    noise = _noise_multiplier(dict(trial), slots, trial.epsilon or 0.0, vocabulary_release(prepared))
    return trial.model_copy(update={"noise_multiplier": noise})


def _drawn(settings: Sequence[Settings], most: int, cell: Sequence[str]) -> list[Settings]:
    """Returns at most so many settings, in their order, drawn by a hash of the cell."""
    if len(settings) <= most:
        return list(settings)
    rng = np.random.default_rng(int(short_hash([*cell, len(settings), most]), 16))
    return [settings[index] for index in sorted(rng.choice(len(settings), most, replace=False))]


def _check_sizes(sweep: TaskSweep, mechanism: GridName, examples: int, dataset: str) -> None:
    for settings in sweep.settings(mechanism):
        if settings["batch_size"] > examples:
            raise UserError(
                f"{sweep.path}.tasks.{sweep.task}.{mechanism}.batch_size: a batch of {settings['batch_size']:,} is "
                f"larger than the {examples:,} training examples of {dataset!r}"
            )
        problem = step_problem(epochs=settings["epochs"], batch_size=settings["batch_size"], examples=examples)
        if problem is not None:
            raise UserError(f"{sweep.path}.tasks.{sweep.task}.{mechanism}.epochs: {problem}")


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
