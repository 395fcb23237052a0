"""Figure 4(a): accounting by privacy loss distributions asks for less noise than RDP, and so loses less."""

from __future__ import annotations

from tasks.document import Cell, Figure, Finding, Table
from tasks.errors import UserError
from tasks.exhibits.common import (
    Exhibit,
    Sweep,
    epsilon_ticks,
    judged,
    score_figure,
    score_name,
    score_series,
    score_table,
    score_text,
    worse_by,
)
from tasks.results import Arm, Result
from tasks.svg_plots import Point, Series, line_chart
from tasks.trial import Trial

_PLD, _RDP = (Arm("dp_sgd", (("accountant", name),)) for name in ("tightest", "RDP"))


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    rows, series = [], {arm: list[Point]() for arm in (_PLD, _RDP)}
    findings = []
    less_everywhere, savings = True, []
    for epsilon in sweep.epsilons:
        pld, rdp = sweep.get(task, _PLD, epsilon), sweep.get(task, _RDP, epsilon)
        if pld is None or rdp is None:
            raise UserError("the exhibit `accountants` compares two: give `accountant: [tightest, RDP]`")
        ours, theirs = _noise_of(pld.trial), _noise_of(_same_by_rdp(pld.trial, rdp))
        less_everywhere &= ours < theirs
        savings.append(100 * (1 - ours / theirs))
        rows.append(
            [
                Cell(f"{epsilon:g}", epsilon),
                Cell(f"{ours:.4f}", ours),
                Cell(f"{theirs:.4f}", theirs),
                Cell(f"{savings[-1]:.1f} %", savings[-1]),
            ]
        )
        for arm, sigma in ((_PLD, ours), (_RDP, theirs)):
            series[arm].append(Point(epsilon, sigma, note=f"{arm.label}, ε = {epsilon:g}: σ = {sigma:.4f}"))
        findings.append(
            judged(
                f"At ε = {epsilon:g} the smaller noise gives a better model",
                worse_by(rdp, pld),
                f"{score_name(task)} {score_text(pld)} by PLD, {score_text(rdp)} by RDP",
            )
        )
    noise_title = "Noise multiplier σ that each accountant asks for"
    noise = line_chart(
        [Series(arm.label, points) for arm, points in series.items()],
        title=noise_title,
        x_label="privacy budget ε",
        y_label="noise multiplier σ",
        x_ticks=epsilon_ticks(sweep.epsilons),
        log_x=True,
        log_y=True,
        height=280,
    )
    needs_less = Finding(
        "PLD accounting needs less noise than RDP at every ε",
        "shown" if less_everywhere else "not shown",
        f"by {min(savings):.1f} to {max(savings):.1f} %",
    )
    title = f"{score_name(task)} by accountant"
    return Exhibit(
        headline=f"PLD accounting needs {min(savings):.1f} to {max(savings):.1f} % less noise than RDP for the same ε.",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm) for arm in (_PLD, _RDP)],
                title=title,
                caption="Both models have the budget's guarantee; the one with noise by RDP has more of it than it "
                "was asked for.",
                name="figure_auc",
            ),
            Figure("figure_noise", noise_title, noise, "For the same sampling, steps and δ."),
        ],
        tables=[
            score_table(sweep, task, title=title),
            Table("noise", noise_title, ["ε", "PLD", "RDP", "less"], rows),
        ],
        findings=[needs_less, *findings],
        notes=[
            "“PLD” is the smaller of the two bounds, which is PLD's wherever its interval was refined far enough.",
            "The paper gives no numbers for its Figure 4(a).",
        ],
    )


def _same_by_rdp(trial: Trial, rdp: Result) -> Trial:
    """The training with the same settings whose noise is by RDP: validation may have chosen another one for that."""
    changes = {"accountant": "RDP", "noise_multiplier": None}
    wanted = trial.model_copy(update=changes)
    return next((one for one in rdp.tried if one.model_copy(update=changes) == wanted), rdp.trial)


def _noise_of(trial: Trial) -> float:
    assert trial.noise_multiplier is not None
    return trial.noise_multiplier
