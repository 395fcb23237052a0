"""What exhibits have in common: scores, tables of methods by budget, figures of them, and how a claim is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from tasks.descriptions import TaskName
from tasks.document import Cell, Figure, Finding, Table, Verdict
from tasks.grids import Pipeline
from tasks.results import Arm, Result, difference, paired
from tasks.svg_plots import Level, Point, Series, line_chart

TASK_TITLES: dict[TaskName, str] = {"pctr": "pCTR", "pcvr": "pCVR", "pconvs": "pConvs"}
_NOISE_MARK = "≈"
# Losses that differ by more than this factor are drawn on a logarithmic axis.
_WIDE = 5
# A table with more methods than that has a row for each instead of a column.
_MOST_COLUMNS = 6
# What a model that diverged is worth where ranking is judged: nothing more than chance.
_CHANCE_AUC_LOSS = 0.5


class Sweep(NamedTuple):
    """A run's results. ``ceilings`` are the best losses that planted models allow, by task, where they are known."""

    pipeline: Pipeline
    results: Sequence[Result]
    ceilings: Mapping[TaskName, Mapping[str, float]]

    @property
    def tasks(self) -> list[TaskName]:
        return list(dict.fromkeys(result.task for result in self.results))

    @property
    def epsilons(self) -> list[float]:
        return sorted({result.epsilon for result in self.results if result.epsilon is not None})

    def arms(self, task: TaskName) -> list[Arm]:
        """The private ones, in the order of the plan."""
        return list(dict.fromkeys(r.arm for r in self.results if r.task == task and r.epsilon is not None))

    def baseline(self, task: TaskName) -> Result:
        return next(r for r in self.results if r.task == task and r.epsilon is None)

    def get(self, task: TaskName, arm: Arm, epsilon: float) -> Result | None:
        return next((r for r in self.results if (r.task, r.arm, r.epsilon) == (task, arm, epsilon)), None)

    def at(self, task: TaskName, epsilon: float) -> list[Result]:
        return [r for r in self.results if (r.task, r.epsilon) == (task, epsilon)]


class Exhibit(NamedTuple):
    """``headline`` is one sentence. The first table is the one that the terminal shows."""

    headline: str
    figures: Sequence[Figure]
    tables: Sequence[Table]
    findings: Sequence[Finding]
    notes: Sequence[str] = ()


def ranks(task: TaskName) -> bool:
    """Whether a task is judged by how it ranks: then the score that is shown is the AUC."""
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


def best_of(results: Sequence[Result]) -> Result:
    """The result that validation would have chosen."""

    def validation(result: Result) -> float:
        losses = [outcome.validation_loss for outcome in result.chosen if outcome.validation_loss is not None]
        return fmean(losses) if losses and not result.diverged else float("inf")

    return min(results, key=validation)


def score_table(sweep: Sweep, task: TaskName, *, title: str, name: str = "table") -> Table:
    """A row for each budget and a column for each arm; the best is strong, and what cannot be told from it marked.

    With many arms they are the rows.
    """
    arms, baseline = sweep.arms(task), sweep.baseline(task)
    records: list[dict[str, Any]] = [record_of(baseline)]
    cells: dict[tuple[Arm, float], Cell] = {}
    for epsilon in sweep.epsilons:
        best = best_of(sweep.at(task, epsilon))
        for arm in arms:
            result = sweep.get(task, arm, epsilon)
            cells[arm, epsilon] = _score_cell(result, best) if result else Cell("–")
            records += [record_of(result)] if result else []
    by_arm = len(arms) > _MOST_COLUMNS
    if by_arm:
        columns = ["method", *(f"ε = {epsilon:g}" for epsilon in sweep.epsilons)]
        rows = [[Cell(arm.label), *(cells[arm, epsilon] for epsilon in sweep.epsilons)] for arm in arms]
    else:
        columns = ["ε", *(arm.label for arm in arms)]
        rows = [[Cell(f"{epsilon:g}", epsilon), *(cells[arm, epsilon] for arm in arms)] for epsilon in sweep.epsilons]
    tried = sorted({len(r.tried) for r in sweep.results if r.task == task and r.epsilon is not None})
    caption = (
        f"{score_name(task)} on the test split, mean ± standard deviation over {seeds_text(baseline)}; the non-private "
        f"baseline has {score_text(baseline)}. Each cell is the best of {' or '.join(map(str, tried))} trainings "
        f"(settings times seeds) by validation loss. Strong: the best of its {'column' if by_arm else 'row'} by "
        f"validation; {_NOISE_MARK}: not told from it by a paired t-test over the seeds (95 %)."
    )
    return Table(name, title, columns, rows, caption, records)


def seeds_text(result: Result) -> str:
    return f"{len(result.losses)} seed{'s' if len(result.losses) > 1 else ''}"


def _score_cell(result: Result, best: Result) -> Cell:
    if result.diverged:
        return Cell("diverged", note=result.trial.label())
    strong = result is best
    mark = f" {_NOISE_MARK}" if not strong and not best.diverged and difference(result, best).within_noise else ""
    note = f"{result.trial.label().rsplit(' · ', 1)[0]}; chosen among {len(result.tried)} trainings"
    return Cell(score_text(result) + mark, score(result.task, result.loss), note, strong=strong)


def record_of(result: Result) -> dict[str, Any]:
    """A result's numbers, for CSV."""
    empty = result.diverged
    return {
        "task": result.task,
        "method": result.arm.label,
        "epsilon": result.trial.epsilon_label,
        "loss_mean": None if empty else result.loss,
        "loss_std": None if empty else result.spread,
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


def paper_table(pipeline: Pipeline, *, title: str, row: str, format_value: Callable[[float], str]) -> list[Table]:
    """The paper's own figures, as they are in ``pipelines.yaml``; none if it gives none."""
    if not pipeline.paper:
        return []
    names = list(pipeline.paper)
    values = sorted({value for column in pipeline.paper.values() for value in column})
    rows = [
        [
            Cell(f"{value:,g}", value),
            *(
                Cell(format_value(pipeline.paper[name][value]), pipeline.paper[name][value])
                if value in pipeline.paper[name]
                else Cell("–")
                for name in names
            ),
        ]
        for value in values
    ]
    caption = "As the paper reports it, on other data and with larger models: effects compare, numbers do not."
    return [Table("paper", title, [row, *names], rows, caption)]


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
    sweep: Sweep, task: TaskName, series: Sequence[Series], *, title: str, caption: str, name: str, height: int = 300
) -> Figure:
    """Scores over the budgets, with the baseline as a level."""
    baseline = score(task, sweep.baseline(task).loss)
    heights = [baseline, *(point.y for line in series for point in line.points if point.y is not None)]
    svg = line_chart(
        with_points(series, baseline, sweep.epsilons),
        title=title,
        x_label="privacy budget ε",
        y_label=f"test {score_name(task)}",
        x_ticks=epsilon_ticks(sweep.epsilons),
        levels=[Level(baseline, "non-private")],
        log_x=True,
        log_y=min(heights) > 0 and max(heights) > _WIDE * min(heights),
        height=height,
    )
    return Figure(name, title, svg, caption)


def with_points(series: Sequence[Series], baseline: float, epsilons: Sequence[float]) -> list[Series]:
    """The lines that there is something of: where all diverged, the baseline alone."""
    lines = [line for line in series if line.points]
    return lines or [Series("non-private", [Point(epsilon, baseline) for epsilon in epsilons])]


def losses_by_seed(result: Result) -> dict[int, float]:
    """Test losses; a model that diverged ranks like chance."""
    return {
        outcome.trial.seed: _CHANCE_AUC_LOSS if outcome.test_loss is None else outcome.test_loss
        for outcome in result.chosen
        if outcome.test_loss is not None or ranks(result.task)
    }


def worse_by(one: Result, other: Result) -> list[float]:
    """For each common seed, how much larger one's test loss is."""
    first, second = losses_by_seed(one), losses_by_seed(other)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def judged(claim: str, by_seed: Sequence[float], evidence: str) -> Finding:
    """A claim that these numbers, one for each seed, are positive."""
    if not by_seed:
        return Finding(claim, "within noise", f"{evidence} (no seed in common to compare)")
    found = paired(by_seed)
    verdict: Verdict = "within noise" if found.within_noise else "shown" if found.mean > 0 else "not shown"
    spread = f" ± {stdev(by_seed):.4f}" if len(by_seed) > 1 else ""
    seeds = f"{len(by_seed)} seed{'s' if len(by_seed) > 1 else ''}"
    return Finding(claim, verdict, f"{evidence} (difference {found.mean:.4f}{spread} over {seeds})")
