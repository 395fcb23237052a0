"""The relative-loss table as CSV, as Markdown and in the terminal, with the paper's figures beside ours."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tasks.config import load_config
from tasks.descriptions import TaskName
from tasks.encoded import open_prepared
from tasks.trial import Trial

CSV_COLUMNS = (
    "task",
    "epsilon",
    "loss_mean",
    "loss_std",
    "relative_loss_percent_mean",
    "relative_loss_percent_std",
    "seeds",
)
TASK_TITLES = {"pctr": "pCTR", "pcvr": "pCVR", "pconvs": "pConvs"}


class Row(NamedTuple):
    """One cell of the table: a task at a budget, at the settings that validation chose."""

    task: TaskName
    epsilon: float | None
    loss_mean: float
    loss_std: float
    relative_percent_mean: float
    relative_percent_std: float
    seeds: int
    chosen: Trial

    @property
    def epsilon_label(self) -> str:
        return self.chosen.epsilon_label


class ChoiceCost(NamedTuple):
    """What choosing among ``trials`` costs: ε of all of them together, and by repeat-and-select, which
    holds only if their number was drawn at random."""

    trials: int
    composed: float
    repeat_and_select: float | None
    random: bool

    @property
    def holds(self) -> float:
        """ε of the kept model and of the fact that it was chosen."""
        return self.repeat_and_select if self.random and self.repeat_and_select is not None else self.composed


def as_csv(rows: Iterable[Row]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for row in rows:
        numbers = (row.loss_mean, row.loss_std, row.relative_percent_mean, row.relative_percent_std)
        writer.writerow([row.task, row.epsilon_label, *(f"{number:.8g}" for number in numbers), row.seeds])
    return buffer.getvalue()


def as_markdown(
    rows: Sequence[Row],
    paper: Mapping[TaskName, Mapping[float, float]],
    audited: Mapping[str, float | None],
    costs: Mapping[Row, ChoiceCost],
    planned: Mapping[str, Any],
) -> str:
    """The table as the paper prints it, its figures beside ours, and what each cell was made with."""
    selection = planned["selection"]
    tasks = list(dict.fromkeys(row.task for row in rows))
    header = ["ε", *(f"{TASK_TITLES[task]} {what}" for task in tasks for what in ("ours", "paper"))]
    lines = [
        f"# Relative loss increment (%), pipeline `{selection['pipeline']}`, profile `{selection['profile']}`",
        "",
        "(L_ε − L_∞)/L_∞ on the test split, mean ± standard deviation over "
        f"{rows[0].seeds} seed{'s' if rows[0].seeds > 1 else ''}; δ = 1/N. "
        "“paper” is Table 1 of the paper, on other data.",
        "",
        _markdown_row(header),
        _markdown_row(["---:"] * len(header)),
    ]
    for epsilon in sorted({row.epsilon for row in rows if row.epsilon is not None}):
        cells = [f"{epsilon:g}"]
        for task in tasks:
            cells += [_relative(_find(rows, task, epsilon)), _paper(paper, task, epsilon)]
        lines.append(_markdown_row(cells))
    lines += ["", "## Losses and settings", ""]
    lines.append(_markdown_row(["task", "ε budget", "ε of the run", "test loss", "chosen"]))
    lines.append(_markdown_row(["---", "---:", "---:", "---:", "---"]))
    for row in rows:
        cells = [TASK_TITLES[row.task], row.epsilon_label, _epsilon(audited[row.chosen.key])]
        lines.append(_markdown_row([*cells, f"{row.loss_mean:.4f} ± {row.loss_std:.4f}", _settings(row.chosen)]))
    lines += ["", *_ceiling_lines(rows, planned), *_choice_lines(rows, audited, costs)]
    if any(row.chosen.sensitivity == "paper" for row in rows):
        lines.append(
            "Some noise was scaled as in the paper (`sensitivity: paper`), to less than an example in a microbatch can "
            "change: there the budget is the paper's claim, and ε audited is what holds under adding or removing one."
        )
    if any(row.chosen.randomness == "seeded" for row in rows):
        lines.append("Noise came from fixed seeds: these models are reproductions, not for release.")
    return "\n".join(lines) + "\n"


def _choice_lines(
    rows: Sequence[Row], audited: Mapping[str, float | None], costs: Mapping[Row, ChoiceCost]
) -> list[str]:
    """What the tuning costs, which the ε of a run leaves out."""
    if any(cost.random for cost in costs.values()):
        how = (
            "The number of trainings was drawn at random, and the settings of each (`search: random`), so the choice "
            "costs what **repeat-and-select** says (Papernot and Steinke, 2022; by RDP), if this was the only such "
            "search, the best model alone is published, and the number of trainings is not. **Composition** is what "
            "all of them cost together: all may be published for that."
        )
    else:
        how = (
            "Every setting was tried (`search: all`), so what holds for the kept model, and for the fact that it was "
            "chosen, is the **composition** of all the trainings: all may be published for that. "
            "**Repeat-and-select** is what "
            "the choice would cost had the number of trainings been drawn at random with the same mean "
            "(`search: random`; Papernot and Steinke, 2022; by RDP). It is no guarantee of this run."
        )
    header = ["task", "ε budget", "ε of the run", "trainings", "composition", "repeat-and-select", "ε with the choice"]
    lines = [
        "## What choosing the settings costs",
        "",
        "ε of the run is that of the one training whose model is kept, as the paper reports it, computed by the audit "
        "from what ran. The settings were chosen by validation loss among several trainings on the same examples.",
        how,
        "",
        "This is for training examples. Validation examples chose without noise, and have no guarantee.",
        "",
        _markdown_row(header),
        _markdown_row(["---", *["---:"] * 6]),
    ]
    for row in rows:
        if row in costs:
            cost = costs[row]
            numbers = [_epsilon(audited[row.chosen.key]), str(cost.trials), _epsilon(cost.composed)]
            numbers += [_epsilon(cost.repeat_and_select), f"**{_epsilon(cost.holds)}**"]
            lines.append(_markdown_row([TASK_TITLES[row.task], row.epsilon_label, *numbers]))
    return [*lines, "", "Each trial's `privacy_statement.md` says what else its ε covers, and what not."]


def _epsilon(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def print_table(table: Path) -> None:
    """Shows a report's ``table.csv`` in the terminal, with the paper's figures."""
    with open(table, encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    pipeline = table.resolve().parent.parent.name
    paper = load_config().pipeline(pipeline).paper
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    shown = Table(title="Relative loss increment in %, ours (and the paper's, on other data)")
    shown.add_column("ε", justify="right")
    for task in tasks:
        shown.add_column(TASK_TITLES[task], justify="right")
    by_cell = {(row["task"], row["epsilon"]): row for row in rows}
    for epsilon in [label for label in dict.fromkeys(row["epsilon"] for row in rows) if label != "inf"]:
        cells = []
        for task in tasks:
            row = by_cell[task, epsilon]
            mean, spread = float(row["relative_loss_percent_mean"]), float(row["relative_loss_percent_std"])
            cells.append(f"{mean:.2f} ± {spread:.2f}  ({_paper(paper, task, float(epsilon))})")
        shown.add_row(epsilon, *cells)
    baselines = [f"loss {float(by_cell[task, 'inf']['loss_mean']):.4f}" for task in tasks]
    shown.add_section()
    shown.add_row("∞", *baselines)
    Console().print(shown)


def _ceiling_lines(rows: Sequence[Row], planned: Mapping[str, Any]) -> list[str]:
    """How far the baseline is on the way to the best that the planted model allows."""
    prepared = {item["trial"]["dataset"]: item["prepared"] for item in planned["items"]}
    lines = []
    for row in [row for row in rows if row.epsilon is None]:
        ceiling = open_prepared(Path(prepared[row.chosen.dataset])).ceiling
        planted = (ceiling or {}).get("tasks", {}).get(row.task)
        if planted is None:
            continue
        if "auc" in planted:
            share = (1 - row.loss_mean - 0.5) / (planted["auc"] - 0.5)
            lines.append(
                f"- {TASK_TITLES[row.task]}: the planted model's AUC is {planted['auc']:.4f}; the non-private model "
                f"goes {100 * share:.1f} % of the way there from 0.5."
            )
        else:
            best = planted["poisson_log_loss"]
            lines.append(
                f"- {TASK_TITLES[row.task]}: the planted model's loss is {best:.4f}, the non-private model's "
                f"{row.loss_mean:.4f}."
            )
    return [*lines, ""] if lines else []


def _settings(trial: Trial) -> str:
    parts = [f"{trial.optimizer} {trial.learning_rate:g}", f"batch {trial.batch_size:,}", f"{trial.epochs:g} epochs"]
    if trial.l2_clip_norm is not None:
        parts += [f"C = {trial.l2_clip_norm:g}", f"σ = {trial.noise_multiplier:.3g}"]
    return ", ".join(parts)


def _find(rows: Sequence[Row], task: TaskName, epsilon: float) -> Row | None:
    return next((row for row in rows if row.task == task and row.epsilon == epsilon), None)


def _relative(row: Row | None) -> str:
    return "–" if row is None else f"{row.relative_percent_mean:.2f} ± {row.relative_percent_std:.2f}"


def _paper(paper: Mapping[TaskName, Mapping[float, float]], task: Any, epsilon: float) -> str:
    value = paper.get(task, {}).get(epsilon)
    return "–" if value is None else f"{value:.2f}"


def _markdown_row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
