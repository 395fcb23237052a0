"""Figure 3: the clip norm C and the microbatch size m, tuned alone and together."""

from __future__ import annotations

from collections.abc import Callable

from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import (
    Exhibit,
    Sweep,
    best_of,
    epsilon_ticks,
    error_bars_text,
    judged,
    score,
    score_name,
    score_table,
    score_text,
    with_points,
    worse_by,
)
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import Level, line_chart
from tasks.reporting.results import Result
from tasks.reporting.series import Point, Series

_WAYS = ("neither", "C alone", "m alone", "both")


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    tuned = {epsilon: _tuned(sweep.at(task, epsilon)) for epsilon in sweep.epsilons}
    low, name = sweep.epsilons[0], score_name(task)
    rows = [
        [Cell(f"{epsilon:g}", epsilon), *(_cell(tuned[epsilon][way]) for way in _WAYS)] for epsilon in sweep.epsilons
    ]
    caption = (
        f"Test {name} of the settings that validation chooses. “neither”: C and m at their smallest; “C alone” and “m "
        "alone”: the other at its smallest; “both”: both tuned, with more trainings to choose from, as in the paper."
    )
    return Exhibit(
        headline=f"At ε = {low:g}: tuning C alone gives {name} {score_text(tuned[low]['C alone'])}, m alone "
        f"{score_text(tuned[low]['m alone'])}, both {score_text(tuned[low]['both'])}.",
        figures=[_by_value(sweep, low), _by_epsilon(sweep, tuned)],
        tables=[
            Table("table", f"{name} when C and m are tuned", ["ε", *_WAYS], rows, caption),
            score_table(sweep, task, title=f"{name} of every C and m", name="all_settings"),
        ],
        findings=_findings(sweep, tuned),
        notes=[
            "When an example is added or removed, the sum of clipped microbatch means changes by up to 2C. The noise "
            "here is scaled to that (`sensitivity: proven`), so ε holds; the paper scales it to C. Microbatches "
            "therefore get twice the noise that they have in the paper.",
            "The paper gives no numbers for its Figure 3.",
        ],
    )


def _tuned(results: list[Result]) -> dict[str, Result]:
    def clip_norm(result: Result) -> float:
        return result.arm.value("l2_clip_norm")

    def size(result: Result) -> int:
        return result.arm.value("microbatch_size")

    smallest, one = min(map(clip_norm, results)), min(map(size, results))
    among: dict[str, Callable[[Result], bool]] = {
        "neither": lambda result: clip_norm(result) == smallest and size(result) == one,
        "C alone": lambda result: size(result) == one,
        "m alone": lambda result: clip_norm(result) == smallest,
        "both": lambda result: True,
    }
    return {way: best_of([result for result in results if keep(result)]) for way, keep in among.items()}


def _cell(result: Result) -> Cell:
    text = f"{score_text(result)} ({result.arm.label})"
    return Cell(text, None if result.diverged else score(result.task, result.loss), result.trial.label())


def _by_value(sweep: Sweep, epsilon: float) -> Figure:
    """Returns Figure 3(a): the score as C or m grows, with the other at its smallest."""
    task = sweep.tasks[0]
    results = sweep.at(task, epsilon)
    clip_norms = sorted({result.arm.value("l2_clip_norm") for result in results})
    sizes = sorted({result.arm.value("microbatch_size") for result in results})
    lines: dict[str, list[Point]] = {f"C (m = {sizes[0]})": [], f"m (C = {clip_norms[0]:g})": []}
    for result in results:
        c, m = result.arm.value("l2_clip_norm"), result.arm.value("microbatch_size")
        y = None if result.diverged else score(task, result.loss)
        if m == sizes[0]:
            lines[f"C (m = {sizes[0]})"].append(Point(c, y, result.spread, f"C = {c:g}: {score_text(result)}"))
        if c == clip_norms[0]:
            lines[f"m (C = {c:g})"].append(Point(m, y, result.spread, f"m = {m}: {score_text(result)}"))
    title = f"{score_name(task)} as C or m grows, at ε = {epsilon:g}"
    values = sorted({*clip_norms, *map(float, sizes)})
    drawn = [Series(name, sorted(point for point in points if point.y is not None)) for name, points in lines.items()]
    svg = line_chart(
        with_points(drawn, score(task, sweep.baseline(task).loss), values),
        title=title,
        x_label="C, or microbatch size m",
        y_label=f"test {score_name(task)}",
        x_ticks={value: f"{value:g}" for value in values},
        log_x=True,
        height=280,
    )
    caption = "Noise is proportional to C, and to m; it is twice as large once m is above 1."
    return Figure("figure_a", title, svg, f"{caption} {error_bars_text(results)}")


def _by_epsilon(sweep: Sweep, tuned: dict[float, dict[str, Result]]) -> Figure:
    """Returns Figure 3(b): the best score of each way of tuning, by budget."""
    task = sweep.tasks[0]
    series = []
    for way in _WAYS:
        points = [
            Point(epsilon, score(task, found[way].loss), found[way].spread, f"{way}: {found[way].arm.label}")
            for epsilon, found in tuned.items()
            if not found[way].diverged
        ]
        series.append(Series(way, points))
    title = f"{score_name(task)} when tuned for each budget"
    baseline = score(task, sweep.baseline(task).loss)
    svg = line_chart(
        with_points(series, baseline, sweep.epsilons),
        title=title,
        x_label="privacy budget ε",
        y_label=f"test {score_name(task)}",
        x_ticks=epsilon_ticks(sweep.epsilons),
        levels=[Level(baseline, "non-private")],
        log_x=True,
        height=300,
    )
    return Figure("figure_b", title, svg, error_bars_text(sweep.results))


def _findings(sweep: Sweep, tuned: dict[float, dict[str, Result]]) -> list[Finding]:
    name, findings = score_name(sweep.tasks[0]), []
    for epsilon, found in tuned.items():
        for way, claim in (
            ("neither", "tuning m with C at its smallest helps"),
            ("C alone", "tuning both is better than tuning C alone"),
        ):
            better = found["m alone"] if way == "neither" else found["both"]
            text = (
                f"{name} {score_text(found[way])} ({found[way].arm.label}), {score_text(better)} ({better.arm.label})"
            )
            claim = f"At ε = {epsilon:g} {claim}"
            if better.arm == found[way].arm:
                findings.append(Finding(claim, "not shown", f"validation chooses the same: {better.arm.label}"))
            else:
                findings.append(judged(claim, worse_by(found[way], better), text))
    return findings


register_exhibit(ExhibitSpec("microbatch", exhibit, columns=("l2_clip_norm", "microbatch_size")))
