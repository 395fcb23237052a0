"""Parts that exhibits share: scores, tables of methods by budget, their figures, and the test of a claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from tasks.config.dataset import TASK_TITLES as TASK_TITLES
from tasks.config.dataset import TaskName
from tasks.config.pipeline import Pipeline
from tasks.reporting.document import Cell, Figure, Finding, Table, Verdict
from tasks.reporting.exhibits.paper import beside, paper_series
from tasks.reporting.plots import Level, line_chart
from tasks.reporting.price.doubts import Doubt
from tasks.reporting.results import Arm, Outcome, Result, difference, paired
from tasks.reporting.series import Point, Series

_NOISE_MARK = "≈"
# Scores that differ by more than this factor are drawn on a logarithmic axis.
WIDE = 5
# A table with more methods than this has one row per method instead of one column.
_MOST_COLUMNS = 6
# The AUC loss of a model that ranks by chance, which stands for a diverged one in comparisons.
_CHANCE_AUC_LOSS = 0.5


class Sweep(NamedTuple):
    """The results of a run that trained.

    Attributes:
        ceilings: The best scores that planted models allow, by task; only for synthetic logs.
        doubts: What else could explain the results, by which tables mark them.
        beside: Trials that are not part of any choice, trained to take the chosen ones apart (``tasks.rounds``).
    """

    pipeline: Pipeline
    results: Sequence[Result]
    ceilings: Mapping[TaskName, Mapping[str, float]]
    doubts: Sequence[Doubt] = ()
    beside: Sequence[Outcome] = ()

    @property
    def tasks(self) -> list[TaskName]:
        return list(dict.fromkeys(result.task for result in self.results))

    @property
    def epsilons(self) -> list[float]:
        return sorted({result.epsilon for result in self.results if result.epsilon is not None})

    def arms(self, task: TaskName) -> list[Arm]:
        """Returns the private arms, in the order of the plan."""
        return list(dict.fromkeys(r.arm for r in self.results if r.task == task and r.epsilon is not None))

    def baseline(self, task: TaskName) -> Result:
        return next(r for r in self.results if r.task == task and r.epsilon is None)

    def get(self, task: TaskName, arm: Arm, epsilon: float) -> Result | None:
        return next((r for r in self.results if (r.task, r.arm, r.epsilon) == (task, arm, epsilon)), None)

    def doubts_about(self, result: Result) -> list[Doubt]:
        """Returns the serious doubts about one cell."""
        return [d for d in self.doubts if d.serious and d.about(result.task, result.arm, result.epsilon)]

    def at(self, task: TaskName, epsilon: float) -> list[Result]:
        return [r for r in self.results if (r.task, r.epsilon) == (task, epsilon)]


class Measurement(NamedTuple):
    """The numbers that the measuring step wrote for a pipeline that trains nothing."""

    pipeline: Pipeline
    numbers: Mapping[str, Any]


class Exhibit(NamedTuple):
    """What a report shows of a run: a headline of one sentence, figures, tables, findings and notes.

    The terminal shows the first table.
    """

    headline: str
    figures: Sequence[Figure]
    tables: Sequence[Table]
    findings: Sequence[Finding]
    notes: Sequence[str] = ()


def ranks(task: TaskName) -> bool:
    """Returns whether a task's score is the AUC. Otherwise it is the loss itself."""
    return task != "pconvs"


def score_name(task: TaskName) -> str:
    return "AUC" if ranks(task) else "Poisson log loss"


def score(task: TaskName, loss: float) -> float:
    return 1 - loss if ranks(task) else loss


def score_text(result: Result) -> str:
    if result.diverged:
        return "diverged"
    spread = f" ± {result.spread:.4f}" if len(result.losses) > 1 else ""
    return f"{mean_text(result)}{spread}"


def mean_text(result: Result) -> str:
    return "diverged" if result.diverged else f"{score(result.task, result.loss):.4f}"


def validation_loss(result: Result) -> float:
    """Returns the mean validation loss over seeds; infinity if the result diverged."""
    losses = [outcome.validation_loss for outcome in result.chosen if outcome.validation_loss is not None]
    return fmean(losses) if losses and not result.diverged else math.inf


def best_of(results: Sequence[Result]) -> Result:
    """Returns the result with the lowest validation loss."""
    return min(results, key=validation_loss)


def score_table(sweep: Sweep, task: TaskName, *, title: str, name: str = "table") -> Table:
    """Returns a row for each budget and a column for each arm, or the transpose if there are many arms.

    The best score is strong, and scores within seed noise of it are marked.
    """
    arms, baseline = sweep.arms(task), sweep.baseline(task)
    records: list[dict[str, Any]] = [record_of(baseline)]
    cells: dict[tuple[Arm, float], Cell] = {}
    for epsilon in sweep.epsilons:
        best = best_of(sweep.at(task, epsilon))
        for arm in arms:
            result = sweep.get(task, arm, epsilon)
            cells[arm, epsilon] = score_cell(result, best) if result else Cell("–")
            records += [record_of(result)] if result else []
    by_arm = len(arms) > _MOST_COLUMNS
    if by_arm:
        columns = ["method", *(f"ε = {epsilon:g}" for epsilon in sweep.epsilons)]
        rows = [[Cell(arm.label), *(cells[arm, epsilon] for epsilon in sweep.epsilons)] for arm in arms]
    else:
        columns = ["ε", *(arm.label for arm in arms)]
        rows = [[Cell(f"{epsilon:g}", epsilon), *(cells[arm, epsilon] for arm in arms)] for epsilon in sweep.epsilons]
    caption = score_caption(sweep, task, best_of="column" if by_arm else "row")
    return Table(name, title, columns, rows, caption, records)


def score_caption(sweep: Sweep, task: TaskName, *, best_of: str) -> str:
    """Returns how to read a table of scores; ``best_of`` is the row or column that a cell is compared within."""
    baseline, results = sweep.baseline(task), [r for r in sweep.results if r.task == task and r.epsilon is not None]
    return (
        f"{score_name(task)} on the test split, {seeds_text(results)}; the non-private baseline has "
        f"{score_text(baseline)}. {_cells_text(results)} Bold: the best in its {best_of} by validation"
        f"{noise_text(results)}"
    )


def seeds_text(results: Sequence[Result]) -> str:
    """Returns what the scores of a table are over: seeds, with a standard deviation unless there is only one."""
    seeds = max(len(result.chosen) for result in results)
    return "with one seed" if seeds == 1 else f"mean ± standard deviation over {seeds} seeds"


def error_bars_text(results: Sequence[Result]) -> str:
    """Returns what the error bars of a figure are; empty for a single seed, which has none."""
    seeds = max(len(result.chosen) for result in results)
    if seeds == 1:
        return "One seed: no error bars."
    return f"Error bars: one standard deviation over {seeds} seeds; points at the same x are drawn side by side."


def noise_text(results: Sequence[Result]) -> str:
    """Returns the end of a caption: what the mark of noise means, or why there is none."""
    if max(len(result.chosen) for result in results) == 1:
        return ". One seed cannot show what is noise."
    return f"; {_NOISE_MARK}: within seed noise of the best by a paired t-test (95 %)."


def _cells_text(results: Sequence[Result]) -> str:
    """Returns what a cell is, given how many trainings validation chose from."""
    tried = sorted({len(result.tried) for result in results})
    number = " or ".join(map(str, tried))
    several_seeds = max(len(result.chosen) for result in results) > 1
    if all(len(result.tried) == len(result.chosen) for result in results):
        return "Each cell is the mean over the seeds of one setting." if several_seeds else "Each cell is one training."
    if several_seeds:
        return (
            f"Each cell is the mean over seeds at the settings that validation loss chose, given {number} trainings "
            "(settings times seeds)."
        )
    return f"Each cell is one training, which validation loss chose out of {number}."


def score_cell(result: Result, best: Result) -> Cell:
    """Returns a score, strong if it is the best and marked if it is within seed noise of the best."""
    if result.diverged:
        return Cell("diverged", note=result.trial.label())
    strong = result is best
    mark = f" {_NOISE_MARK}" if not strong and _within_noise(result, best) else ""
    note = result.trial.label().rsplit(" · ", 1)[0]
    note += f"; chosen among {len(result.tried)} trainings" if len(result.tried) > len(result.chosen) else ""
    return Cell(score_text(result) + mark, score(result.task, result.loss), note, strong=strong)


def _within_noise(result: Result, best: Result) -> bool:
    """Returns whether a t-test finds no difference; False if fewer than two common seeds leave nothing to test."""
    common = {one.trial.seed for one in result.chosen} & {one.trial.seed for one in best.chosen}
    return len(common) > 1 and not best.diverged and difference(result, best).within_noise


def record_of(result: Result) -> dict[str, Any]:
    """Returns a result's numbers for the CSV file."""
    empty = result.diverged
    return {
        "task": result.task,
        "method": result.arm.label,
        "epsilon": result.trial.epsilon_label,
        "loss_mean": None if empty else result.loss,
        "loss_std": result.spread if len(result.losses) > 1 else None,
        "score": None if empty else score(result.task, result.loss),
        "seeds": len(result.losses),
        "trainings": len(result.tried),
        "optimizer": result.trial.optimizer,
        "learning_rate": result.trial.learning_rate,
        "batch_size": result.trial.batch_size,
        "epochs": result.trial.epochs,
        "l2_clip_norm": result.trial.l2_clip_norm,
        "microbatch_size": result.trial.microbatch_size,
        "noise_multiplier": result.trial.noise_multiplier,
    }


def epsilon_ticks(epsilons: Sequence[float]) -> dict[float, str]:
    return {epsilon: f"{epsilon:g}" for epsilon in epsilons}


def score_series(sweep: Sweep, task: TaskName, arm: Arm, *, highlight: bool = False) -> Series:
    points = []
    for epsilon in sweep.epsilons:
        result = sweep.get(task, arm, epsilon)
        if result is not None and not result.diverged:
            note = f"{arm.label}, ε = {epsilon:g}: {score_text(result)}"
            points.append(Point(epsilon, score(task, result.loss), result.spread, note))
    return Series(arm.label, points, highlight=highlight)


def score_figure(
    sweep: Sweep,
    task: TaskName,
    series: Sequence[Series],
    *,
    title: str,
    caption: str,
    name: str,
    height: int = 300,
    paper: bool = False,
) -> Figure:
    """Returns the figure of scores by budget, with the baseline as a dashed line.

    ``paper`` adds the paper's numbers, which are AUCs by ε.
    """
    baseline = score(task, sweep.baseline(task).loss)
    theirs = paper_series(sweep.pipeline, {line.name: line.name for line in series}) if paper and ranks(task) else []
    caption = f"{caption} {error_bars_text([r for r in sweep.results if r.task == task])}"
    caption += " Dashed: the paper's values, on other data." if theirs else ""
    series = beside(series, theirs)
    heights = [baseline, *(point.y for line in series for point in line.points if point.y is not None)]
    svg = line_chart(
        with_points(series, baseline, sweep.epsilons),
        title=title,
        x_label="privacy budget ε",
        y_label=f"test {score_name(task)}",
        x_ticks=epsilon_ticks([*sweep.epsilons, *(point.x for line in theirs for point in line.points)]),
        levels=[Level(baseline, "non-private")],
        log_x=True,
        log_y=min(heights) > 0 and max(heights) > WIDE * min(heights),
        height=height,
    )
    return Figure(name, title, svg, caption)


def with_points(series: Sequence[Series], baseline: float, epsilons: Sequence[float]) -> list[Series]:
    """Returns the lines that have points; if everything diverged, the baseline alone."""
    lines = [line for line in series if line.points]
    return lines or [Series("non-private", [Point(epsilon, baseline) for epsilon in epsilons])]


def losses_by_seed(result: Result) -> dict[int, float]:
    """Returns the test losses by seed; a diverged model counts as ranking by chance."""
    return {
        outcome.trial.seed: _CHANCE_AUC_LOSS if outcome.test_loss is None else outcome.test_loss
        for outcome in result.chosen
        if outcome.test_loss is not None or ranks(result.task)
    }


def worse_by(one: Result, other: Result) -> list[float]:
    """Returns, for each common seed, by how much the test loss of ``one`` exceeds that of ``other``."""
    first, second = losses_by_seed(one), losses_by_seed(other)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def judged(claim: str, by_seed: Sequence[float], evidence: str, *, percent: bool = False) -> Finding:
    """Returns the claim that the differences, one per seed, are positive, with the verdict of a paired t-test.

    Args:
        claim: The claim, if the differences are positive.
        by_seed: The differences.
        evidence: What was compared.
        percent: Whether the differences are of percentages.
    """
    if not by_seed:
        return Finding(claim, "within noise", f"{evidence} (no common seed to compare)")
    found = paired(by_seed)
    verdict: Verdict = "within noise" if found.within_noise else "shown" if found.mean > 0 else "not shown"
    digits, unit = (2, " points") if percent else (4, "")
    spread = f" ± {stdev(by_seed):.{digits}f}" if len(by_seed) > 1 else ""
    seeds = f" over {len(by_seed)} seeds" if len(by_seed) > 1 else "; one seed cannot show what is noise"
    return Finding(claim, verdict, f"{evidence} (difference {found.mean:.{digits}f}{spread}{unit}{seeds})")
