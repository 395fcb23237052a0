"""Cross-field checks of ``pipelines.yaml``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tasks.config.dataset import SPLIT_FRACTIONS, Dataset
from tasks.config.noise_settings import impossible_bands, impossible_lazy_tables
from tasks.config.pipeline import (
    IN_ROUNDS,
    SAME_MECHANISM,
    SCALES_WITH_GRADIENT,
    Grids,
    Pipeline,
    PrivateGrid,
    TrainingGrid,
)
from tasks.config.sections import did_you_mean
from tasks.config.yaml_lines import Problem
from tasks.logs.files import DAY
from tasks.reporting.exhibits.registry import exhibits
from tasks.rounds.extending import ORDERED
from tasks.rounds.rungs import HALVING_FACTOR, rungs

if TYPE_CHECKING:
    from tasks.config.loading import Config
    from tasks.config.nightly import Nightly


def contradictions(config: Config) -> Iterator[Problem]:
    """Yields every combination of settings that cannot work, with its key path and what would be right."""
    for name, pipeline in config.pipelines.items():
        for task, dataset in pipeline.datasets.items():
            key = ("pipelines", name, "datasets", task)
            if dataset not in config.datasets:
                hint = did_you_mean(dataset, config.datasets)
                yield key, f"unknown dataset {dataset!r}{hint}; known: {', '.join(config.datasets)}"
            elif task not in config.datasets[dataset].labels:
                has = ", ".join(config.datasets[dataset].labels)
                yield key, f"dataset {dataset!r} has no label for {task}; it has: {has}"
        for profile, grids in pipeline.grids.items():
            grid_key = ("pipelines", name, "grids", profile)
            if profile not in config.profiles:
                hint = did_you_mean(profile, config.profiles)
                yield grid_key, f"unknown profile {profile!r}{hint}; known: {', '.join(config.profiles)}"
                continue
            yield from _contradictory_grids(pipeline, grids, grid_key)
            yield from _unfit_exhibit(pipeline, grids, grid_key)
            yield from _too_large_batches(config, pipeline, profile, grid_key)
    for name, described in config.datasets.items():
        yield from _impossible_sharing(config, name, described)
    for name, nightly in config.nightly.items():
        yield from _impossible_nights(config, nightly, ("nightly", name))
        # The first entry of the budget sets the total.
        budget = config.budget_name(nightly.dataset)
        first = next(other for other, entry in config.nightly.items() if config.budget_name(entry.dataset) == budget)
        same, total = config.nightly[first].total, nightly.total
        limited = same.user_epsilon is not None or total.user_epsilon is not None
        if (same != total) if limited else (same.epsilon, same.delta) != (total.epsilon, total.delta):
            yield (
                ("nightly", name, "total"),
                f"{first} has another total for the days of {budget}, and both spend it: give both entries "
                f"the same epsilon and delta{', and the same total of a user' if limited else ''}",
            )


def _impossible_sharing(config: Config, name: str, dataset: Dataset) -> Iterator[Problem]:
    """Yields what keeps a dataset from spending another's budget. The other may be a name that it had before."""
    other, key = dataset.shares_budget_with, ("datasets", name, "shares_budget_with")
    if other is None:
        return
    if other == name:
        yield key, "a dataset has its own budget unless it names another one: leave it out"
    elif dataset.synthetic is not None:
        yield key, "a synthetic log is generated for its dataset alone, and has no files to share: leave it out"
    elif other in config.datasets and (owner := config.datasets[other].shares_budget_with) is not None:
        yield key, f"{other} itself spends the budget of {owner}: name {owner}"


def _impossible_nights(config: Config, nightly: Nightly, key: tuple[Any, ...]) -> Iterator[Problem]:
    if nightly.profile not in config.profiles:
        hint = did_you_mean(nightly.profile, config.profiles)
        yield (*key, "profile"), f"unknown profile {nightly.profile!r}{hint}; known: {', '.join(config.profiles)}"
    dataset = config.datasets.get(nightly.dataset)
    if dataset is None:
        hint = did_you_mean(nightly.dataset, config.datasets)
        yield (*key, "dataset"), f"unknown dataset {nightly.dataset!r}{hint}; known: {', '.join(config.datasets)}"
        return
    yield from impossible_bands(nightly.dp_sgd, (*key, "dp_sgd"))
    yield from impossible_lazy_tables(nightly.dp_sgd, (*key, "dp_sgd"))
    if nightly.task not in dataset.labels:
        has = ", ".join(dataset.labels)
        yield (*key, "task"), f"dataset {nightly.dataset!r} has no label for {nightly.task}; it has: {has}"
    elif dataset.labels[nightly.task].following is not None:
        yield (
            (*key, "task"),
            f"the label of {nightly.task} counts events that follow a row, on later days too, so a day's labels are "
            "not known in the night after it: give a label that is a column",
        )
    if not dataset.comes_by_days:
        yield (
            (*key, "dataset"),
            f"{nightly.dataset} does not come by days: write {DAY} in its `raw`, as in /data/day={DAY}/*.parquet",
        )
    if not dataset.time_column:
        yield (*key, "dataset"), f"{nightly.dataset} has no `time_column`, which orders the rows of a day"
    if dataset.vocabulary == "threshold" and dataset.categorical_columns:
        yield (
            (*key, "dataset"),
            f"{nightly.dataset} has a vocabulary by threshold, whose exact counts no ε covers, so its models cannot "
            "be charged to a budget: use `vocabulary: hash` or `vocabulary: private`",
        )
    total = nightly.total
    if total.user_epsilon is not None and dataset.vocabulary == "private" and total.user_days * total.user_examples > 1:
        yield (
            (*key, "total", "user_epsilon"),
            f"{nightly.dataset} has a private vocabulary, whose guarantee is for single examples, so that a user of "
            "several has no ε that could be limited: use `vocabulary: hash`, or leave it out",
        )
    if total.user_epsilon is not None and nightly.dp_sgd.bands != (1,) and total.user_days * total.user_examples > 1:
        yield (
            (*key, "total", "user_epsilon"),
            "the guarantee of correlated noise (bands above 1) is for single examples, so that a user of several has "
            "no ε that could be limited: use `bands: 1`, or leave it out",
        )
    spent = dataset.vocabulary_epsilon
    if spent is not None and spent >= nightly.epsilon:
        yield (
            (*key, "epsilon"),
            f"the vocabulary's {spent:g} leaves nothing for training of a night's {nightly.epsilon:g}",
        )
    for column, limits in nightly.checks.columns.items():
        features = [*dataset.integer_columns, *dataset.categorical_columns]
        if column not in features:
            hint = did_you_mean(column, features)
            yield (*key, "checks", "columns", column), f"{nightly.dataset} has no feature {column!r}{hint}"
        elif limits.unseen_tokens is not None and column in dataset.integer_columns:
            yield (
                (*key, "checks", "columns", column),
                "`unseen_tokens` is for categorical columns; this one has numbers",
            )
    if "shift" in nightly.dp_sgd.recalibration:
        yield (
            (*key, "dp_sgd", "recalibration"),
            "the ledger does not charge what a recalibration costs validation examples: leave it out of nights",
        )
    days = dataset.synthetic.days if dataset.synthetic else None
    largest = max(nightly.dp_sgd.batch_size)
    if days is not None and largest > days.rows * nightly.window_days:
        yield (
            (*key, "dp_sgd", "batch_size"),
            f"a batch of {largest:,} is larger than the {days.rows * nightly.window_days:,} examples of a window",
        )


def _unfit_exhibit(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    """Yields what keeps a pipeline's exhibit from showing its grids."""
    exhibit = exhibits()[pipeline.exhibit]
    if not getattr(grids, exhibit.needs):
        for given in ("tasks", "curves", "speed"):
            if getattr(grids, given):
                fitting = ", ".join(spec.name for spec in exhibits().values() if spec.needs == given)
                yield key, f"exhibit {exhibit.name} shows {exhibit.needs}, but the grid has {given}; use: {fitting}"
        return
    if exhibit.columns not in ("any", pipeline.columns):
        needed = f"needs columns: [{', '.join(exhibit.columns)}]" if exhibit.columns else "takes no columns"
        yield (*key[:2], "columns"), f"exhibit {exhibit.name} {needed}; exhibit comparison takes any columns"
    if not exhibit.several_tasks and len(pipeline.datasets) > 1:
        yield (
            (*key[:2], "exhibit"),
            f"exhibit {exhibit.name} shows one task, but the pipeline has {len(pipeline.datasets)}",
        )
    for task, grid in grids.tasks.items():
        if not exhibit.several_mechanisms and grid.label_dp is not None and grid.dp_sgd is not None:
            yield (
                (*key, "tasks", task),
                f"exhibit {exhibit.name} shows one mechanism: give dp_sgd or label_dp, not both",
            )
        if not exhibit.two_recipes and grid.paper_recipe is not None:
            fitting = ", ".join(sorted(spec.name for spec in exhibits().values() if spec.two_recipes))
            yield (
                (*key, "tasks", task, "paper_recipe"),
                f"exhibit {exhibit.name} shows one recipe of DP-SGD; of two recipes: {fitting}",
            )


def _contradictory_grids(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    given = [name for name in ("tasks", "curves", "speed") if getattr(grids, name)]
    if len(given) != 1:
        got = " and ".join(given) or "none"
        yield key, f"give exactly one of tasks (to train), curves (of noise) and speed (of steps), got {got}"
        return
    if grids.speed is None and not grids.epsilons:
        yield (*key, "epsilons"), "missing"
    if not grids.trains:
        return
    for task in pipeline.datasets:
        if task not in grids.tasks:
            yield (*key, "tasks"), f"no grid for {task}, but the pipeline has a dataset for it"
    if pipeline.columns and grids.search in ("random", "halving"):
        yield (
            (*key, "search"),
            f"`search: {grids.search}` does not try every setting, as columns need: use `search: all` or drop columns",
        )
    if grids.trainings is not None and grids.search not in IN_ROUNDS:
        yield (
            (*key, "trainings"),
            f"limits a search in rounds, and `search: {grids.search}` has one round: use `search: extend` or "
            "`search: halving`, or drop trainings",
        )
    yield from _impossible_searches(pipeline, grids, key)
    for task, grid in grids.tasks.items():
        task_key = (*key, "tasks", task)
        private = [settings for settings in (grid.dp_sgd, grid.paper_recipe, grid.label_dp) if settings is not None]
        if not private:
            yield task_key, "nothing private to train: give dp_sgd, label_dp or both"
        if grid.paper_recipe is not None and grid.dp_sgd is None:
            yield (*task_key, "paper_recipe"), "is compared with dp_sgd: give dp_sgd too, or only dp_sgd"
        if grid.paper_recipe is not None and grids.search == "random":
            yield (
                (*key, "search"),
                "`search: random` draws the trainings of dp_sgd, and paper_recipe is not drawn: use "
                "`search: all`, or drop paper_recipe",
            )
        if grid.label_dp is not None and "shift" in grid.label_dp.recalibration:
            yield (
                (*task_key, "label_dp", "recalibration"),
                "a recalibration has Gaussian noise, whose δ is above 0, and label_dp promises δ = 0: leave it out",
            )
        if grid.label_dp is not None:
            fitting = {"k_ary", "bins"} if task == "pconvs" else {"binary"}
            for response in set(grid.label_dp.response) - fitting:
                yield (
                    (*task_key, "label_dp", "response"),
                    f"{response!r} does not fit the labels of {task}; allowed: {', '.join(sorted(fitting))}",
                )
            if grids.search == "random":
                yield (*key, "search"), "`search: random` has no known privacy cost for label_dp: use `search: all`"
        for name, recipe in grid:
            if isinstance(recipe, PrivateGrid):
                yield from impossible_bands(recipe, (*task_key, name))
            if isinstance(recipe, TrainingGrid):
                yield from impossible_lazy_tables(recipe, (*task_key, name))
        if grid.dp_sgd is not None and grids.search == "random":
            for name in SAME_MECHANISM:
                if len(getattr(grid.dp_sgd, name)) > 1:
                    yield (
                        (*task_key, "dp_sgd", name),
                        "with `search: random` every training must be equally private (the same noise, batches and "
                        f"steps): give one {name}, or use `search: all`",
                    )
        if grid.dp_sgd is not None and "auto" in grid.dp_sgd.bands and "bands" in pipeline.columns:
            yield (
                (*key[:2], "columns"),
                "`bands: auto` is another number at every budget, which no column can compare: give numbers of bands",
            )
        for column in pipeline.columns:
            if private and not any(hasattr(mechanism, column) for mechanism in private):
                yield (*key[:2], "columns"), f"no mechanism of {task} in profile {key[-1]} has a setting {column}"
        for mechanism in (grid.non_private, *private):
            lengths = {name: len(getattr(mechanism, name)) for name in pipeline.together if hasattr(mechanism, name)}
            if len(set(lengths.values())) > 1:
                got = ", ".join(f"{length} of {name}" for name, length in lengths.items())
                yield (*key[:2], "together"), f"zipped lists must have the same length, got {got}"


def _impossible_searches(pipeline: Pipeline, grids: Grids, key: tuple[Any, ...]) -> Iterator[Problem]:
    """Yields what keeps a search in rounds, or a relative learning rate, from working."""
    searched = [name for name in ORDERED if name not in pipeline.columns and name not in pipeline.together]
    lists = [
        name
        for grid in grids.tasks.values()
        for _, method in grid
        for name in searched
        if len(getattr(method, name, ())) > 1
    ]
    if grids.search == "extend" and not lists:
        yield (
            (*key, "search"),
            f"`search: extend` has no list to extend: give two or more values of {', '.join(searched)}, or use "
            "`search: all`",
        )
    if grids.search == "halving" and rungs(grids) == 1:
        yield (
            (*key, "search"),
            f"`search: halving` needs {HALVING_FACTOR} or more settings of a method to begin with: give more values, "
            "more trainings, or use `search: all`",
        )
    for task, grid in grids.tasks.items():
        for name, method in grid:
            if not isinstance(method, PrivateGrid) or method.learning_rate_per == ("one",):
                continue
            if "learning_rate" in pipeline.columns:
                yield (
                    (*key, "tasks", task, name, "learning_rate_per"),
                    "the page compares learning rates, which are then different for each budget or clip norm: drop "
                    "learning_rate from columns, or use `learning_rate_per: one`",
                )
            fitting = [one for one in method.optimizer if one in SCALES_WITH_GRADIENT]
            others = [one for one in method.optimizer if one not in SCALES_WITH_GRADIENT]
            if "guess" in method.learning_rate_per and others:
                yield (
                    (*key, "tasks", task, name, "learning_rate_per"),
                    f"there is a guess for {', '.join(SCALES_WITH_GRADIENT)}, not for {', '.join(others)}, whose step "
                    "does not scale with the gradient: give those a grid of their own, or use `learning_rate_per: one`",
                )
            elif not fitting:
                yield (
                    (*key, "tasks", task, name, "learning_rate_per"),
                    f"no optimiser of the grid scales with the gradient ({', '.join(SCALES_WITH_GRADIENT)} does), so "
                    "this has no effect: use `learning_rate_per: one`",
                )


def _too_large_batches(config: Config, pipeline: Pipeline, profile: str, key: tuple[Any, ...]) -> Iterator[Problem]:
    examples = int(config.profiles[profile].synthetic_rows * SPLIT_FRACTIONS["train"])
    for task, grid in pipeline.grids[profile].tasks.items():
        dataset = config.datasets.get(pipeline.datasets.get(task, ""))
        if dataset is None or dataset.synthetic is None:
            continue
        for mechanism, settings in grid:
            for size in settings.batch_size if settings is not None else ():
                if size > examples:
                    yield (
                        (*key, "tasks", task, mechanism, "batch_size"),
                        f"a batch of {size:,} is larger than the {examples:,} training examples "
                        f"that profile {profile!r} generates (80 % of synthetic_rows)",
                    )
