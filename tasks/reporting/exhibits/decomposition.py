"""Where the relative loss comes from: the recipe, clipping (bias) and noise (variance), which add up to it.

Let L(∞) be the loss of the best non-private model. For the settings chosen at ε, let R be the loss of the same training
without clipping and noise, K that with clipping alone and L(ε) that with both. Then

    L(ε) − L(∞) = (R − L(∞)) + (K − R) + (L(ε) − K),

which are what the recipe, clipping and noise cost. A part can be negative: clipping also regularises, and the recipe
may suit the data better than the baseline does. The trainings have the seeds of the chosen ones and, if these are
seeded, their batches, so that two of them differ in nothing but the part.
"""

from __future__ import annotations

from statistics import fmean, stdev
from typing import Any, NamedTuple

from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import Exhibit, Sweep, judged, seeds_text
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.exhibits.relative_loss import DOUBT_MARK
from tasks.reporting.exhibits.stacked_bars import Stack, stacked_bar_chart
from tasks.reporting.results import Arm, Result
from tasks.rounds.decomposition import without_clipping, without_noise

PARTS = ("recipe", "clipping", "noise")


class Parts(NamedTuple):
    """The parts of one cell's relative loss in percent, by seed.

    ``recipe`` is None if the recipe without clipping diverged; ``clipping`` then is what both cost together.
    """

    result: Result
    recipe: list[float] | None
    clipping: list[float]
    noise: list[float]

    @property
    def means(self) -> list[float | None]:
        return [None if self.recipe is None else fmean(self.recipe), fmean(self.clipping), fmean(self.noise)]

    @property
    def total(self) -> float:
        return sum(part for part in self.means if part is not None)


def parts_of(sweep: Sweep, result: Result) -> Parts | None:
    """Returns the parts of a cell's relative loss; None if a training with clipping diverged, or was not made."""
    losses = {outcome.trial: outcome.test_loss for outcome in sweep.beside}
    # What a planner asks for may be a trial that the run has for another reason.
    for one in sweep.results:
        losses |= {outcome.trial: outcome.test_loss for outcome in one.chosen}
    baseline = sweep.baseline(result.task)
    if baseline.diverged or baseline.loss == 0:
        return None
    scale = 100 / abs(baseline.loss)
    plain = [losses.get(without_clipping(one.trial)) for one in result.chosen]
    clipped = [losses.get(without_noise(one.trial)) for one in result.chosen]
    private = [one.test_loss for one in result.chosen]
    if any(loss is None for loss in (*clipped, *private)):
        return None
    noise = [scale * (both - alone) for both, alone in zip(private, clipped, strict=True)]  # type: ignore[operator]
    if any(loss is None for loss in plain):
        return Parts(result, None, [scale * (loss - baseline.loss) for loss in clipped], noise)  # type: ignore[operator]
    return Parts(
        result,
        [scale * (loss - baseline.loss) for loss in plain],  # type: ignore[operator]
        [scale * (alone - loss) for alone, loss in zip(clipped, plain, strict=True)],  # type: ignore[operator]
        noise,
    )


def exhibit(sweep: Sweep) -> Exhibit:
    cells = [
        parts
        for result in sweep.results
        if result.epsilon is not None
        if (parts := parts_of(sweep, result)) is not None
    ]
    arms = list(dict.fromkeys((one.result.task, one.result.arm) for one in cells))
    return Exhibit(
        headline=_headline(cells),
        figures=[_figure(sweep, cells, task, arm, number) for number, (task, arm) in enumerate(arms)] or [],
        tables=[_table(sweep, cells)],
        findings=[finding for task, arm in arms for finding in _findings(cells, task, arm)],
        notes=_notes(sweep, cells),
    )


def _name(task: TaskName, arm: Arm) -> str:
    return f"{TASK_TITLES[task]}, {arm.label}" if arm.recipe or arm.values else TASK_TITLES[task]


def _headline(cells: list[Parts]) -> str:
    if not cells:
        return "No training with clipping alone ended, so there is nothing to take apart."
    said = []
    for task, arm in dict.fromkeys((one.result.task, one.result.arm) for one in cells):
        of_arm = [one for one in cells if (one.result.task, one.result.arm) == (task, arm)]
        # The budget in the middle: the smallest is all noise, the largest has hardly any.
        one = of_arm[len(of_arm) // 2]
        parts = [f"{name} {value:+.1f}" for name, value in zip(PARTS, one.means, strict=True) if value is not None]
        said.append(f"{_name(task, arm)} at ε = {one.result.epsilon:g} loses {one.total:.1f} % ({', '.join(parts)})")
    return f"Where the loss comes from: {'; '.join(said)}."


def _table(sweep: Sweep, cells: list[Parts]) -> Table:
    several = any(one.result.arm.recipe for one in cells)
    rows, records = [], []
    for one in cells:
        result = one.result
        named = [Cell(TASK_TITLES[result.task]), *([Cell(result.arm.label)] if several else [])]
        shown = [_cell(part) for part in (one.recipe, one.clipping, one.noise)]
        mark = f" {DOUBT_MARK}" if sweep.doubts_about(result) else ""
        total = Cell(f"{one.total:.2f}{mark}", one.total, result.trial.label(), strong=True)
        rows.append([*named, Cell(f"{result.epsilon:g}", result.epsilon), *shown, total])
        records.append(_record(one))
    columns = ["task", *(["method"] if several else []), "ε", *PARTS, "relative loss"]
    caption = (
        f"In percent of L(∞), {seeds_text(sweep.results)}. “recipe”: the chosen settings without clipping and noise, "
        "against the best non-private model; “clipping”: the same with clipping alone (bias); “noise”: with clipping "
        "and noise (variance). The three add up to the relative loss."
    )
    return Table("table", "Where the relative loss comes from (%)", columns, rows, caption, records)


def _cell(part: list[float] | None) -> Cell:
    if part is None:
        return Cell("diverged", note="this training without clipping diverged; clipping has what both cost")
    spread = f" ± {stdev(part):.2f}" if len(part) > 1 else ""
    return Cell(f"{fmean(part):.2f}{spread}", fmean(part))


def _record(one: Parts) -> dict[str, Any]:
    record: dict[str, Any] = {
        "task": one.result.task,
        "method": one.result.arm.label,
        "epsilon": one.result.epsilon,
        "seeds": len(one.noise),
    }
    for name, part in zip(PARTS, (one.recipe, one.clipping, one.noise), strict=True):
        several = part is not None and len(part) > 1
        record[f"{name}_percent_mean"] = None if part is None else fmean(part)
        record[f"{name}_percent_std"] = stdev(part) if several and part is not None else None
    return {**record, "relative_loss_percent": one.total}


def _figure(sweep: Sweep, cells: list[Parts], task: TaskName, arm: Arm, number: int) -> Figure:
    of_arm = [one for one in cells if (one.result.task, one.result.arm) == (task, arm)]
    title = f"Where the loss comes from: {_name(task, arm)}"
    svg = stacked_bar_chart(
        [Stack(f"{one.result.epsilon:g}", one.means) for one in of_arm],
        PARTS,
        title=title,
        x_label="privacy budget ε",
        y_label="share of L(∞) (%)",
    )
    caption = (
        "Recipe: the chosen settings without clipping and noise. Clipping: its bias. Noise: its variance. Parts below "
        "zero are gains; the line is the sum of all parts, the relative loss."
    )
    return Figure("figure" if number == 0 else f"figure_{number + 1}", title, svg, caption)


def _findings(cells: list[Parts], task: TaskName, arm: Arm) -> list[Finding]:
    of_arm = [one for one in cells if (one.result.task, one.result.arm) == (task, arm)]
    low, high, name = of_arm[0], of_arm[-1], _name(task, arm)
    found = [
        judged(
            f"{name}: at ε = {low.result.epsilon:g} noise costs more than clipping",
            [noise - clip for noise, clip in zip(low.noise, low.clipping, strict=True)],
            f"noise {fmean(low.noise):.2f} %, clipping {fmean(low.clipping):.2f} %",
            percent=True,
        )
    ]
    if len(of_arm) > 1 and len(low.noise) == len(high.noise):
        found.append(
            judged(
                f"{name}: noise costs less with a larger budget (ε = {high.result.epsilon:g} against "
                f"{low.result.epsilon:g})",
                [most - least for most, least in zip(low.noise, high.noise, strict=True)],
                f"{fmean(low.noise):.2f} % and {fmean(high.noise):.2f} %",
                percent=True,
            )
        )
    best = min((one for one in of_arm if one.recipe), key=lambda one: fmean(one.recipe or [0.0]), default=None)
    if best is not None and best.recipe is not None:
        found.append(
            judged(
                f"{name}: without clipping and noise the recipe is no better than the baseline",
                best.recipe,
                f"at ε = {best.result.epsilon:g} the recipe costs {fmean(best.recipe):+.2f} %",
                percent=True,
            )
        )
    return found


def _notes(sweep: Sweep, cells: list[Parts]) -> list[str]:
    notes = [
        "The trainings with clipping alone and with neither have no guarantee: clipping without noise proves no ε. "
        "They are marked as such and cannot be released."
    ]
    if any(one.recipe is None for one in cells):
        notes.append("Where the recipe diverges without clipping, “clipping” is what the recipe and clipping cost.")
    missing = sum(result.epsilon is not None for result in sweep.results) - len(cells)
    if missing:
        notes.append(f"{missing} of the cells could not be taken apart: a training with clipping diverged.")
    return notes


register_exhibit(ExhibitSpec("decomposition", exhibit, several_tasks=True, two_recipes=True, claims_price=True))
