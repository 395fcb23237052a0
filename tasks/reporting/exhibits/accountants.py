"""Figure 4(a): PLD accounting needs less noise than RDP accounting for the same ε, so the models are better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tasks.reporting.document import Cell, Figure, Finding, Table
from tasks.reporting.exhibits.common import (
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
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit
from tasks.reporting.plots import line_chart
from tasks.reporting.results import Arm, Result
from tasks.reporting.series import Point, Series
from tasks.runtime.errors import UserError
from tasks.training.trial import Trial

_PLD, _RDP = (Arm("dp_sgd", (("accountant", name),)) for name in ("tightest", "RDP"))
_NOISE_TITLE = "Noise multiplier σ by accountant"


class _Pair(NamedTuple):
    """The results of both accountants at one budget, and their noise multipliers at the same settings."""

    epsilon: float
    pld: Result
    rdp: Result
    pld_noise: float
    rdp_noise: float

    @property
    def saving(self) -> float:
        """How much less noise PLD needs, in percent."""
        return 100 * (1 - self.pld_noise / self.rdp_noise)


def exhibit(sweep: Sweep) -> Exhibit:
    task = sweep.tasks[0]
    pairs = [_pair(sweep, epsilon) for epsilon in sweep.epsilons]
    savings = [pair.saving for pair in pairs]
    title = f"{score_name(task)} by accountant"
    return Exhibit(
        headline=f"PLD accounting needs {min(savings):.1f} to {max(savings):.1f} % less noise than RDP for the same ε.",
        figures=[
            score_figure(
                sweep,
                task,
                [score_series(sweep, task, arm) for arm in (_PLD, _RDP)],
                title=title,
                caption="Both models keep the budget's guarantee. The one with RDP's noise is more private than "
                "required.",
                name="figure_auc",
            ),
            _noise_figure(pairs),
        ],
        tables=[score_table(sweep, task, title=title), _noise_table(pairs)],
        findings=[_less_noise(pairs), *map(_better_model, pairs)],
        notes=[
            "“PLD” is the smaller of the PLD and RDP bounds: the PLD bound, wherever its discretisation interval was "
            "refined far enough.",
            "The paper gives no numbers for its Figure 4(a).",
        ],
    )


def _pair(sweep: Sweep, epsilon: float) -> _Pair:
    pld, rdp = (sweep.get(sweep.tasks[0], arm, epsilon) for arm in (_PLD, _RDP))
    if pld is None or rdp is None:
        raise UserError("the exhibit `accountants` compares two accountants: give `accountant: [tightest, RDP]`")
    return _Pair(epsilon, pld, rdp, _noise_of(pld.trial), _noise_of(_same_by_rdp(pld.trial, rdp)))


def _same_by_rdp(trial: Trial, rdp: Result) -> Trial:
    """Returns the trial with the same settings and RDP's noise, which validation may not have chosen for RDP."""
    changes = {"accountant": "RDP", "noise_multiplier": None}
    wanted = trial.model_copy(update=changes)
    return next((one for one in rdp.tried if one.model_copy(update=changes) == wanted), rdp.trial)


def _noise_of(trial: Trial) -> float:
    assert trial.noise_multiplier is not None
    return trial.noise_multiplier


def _noise_figure(pairs: Sequence[_Pair]) -> Figure:
    def series(arm: Arm, noises: dict[float, float]) -> Series:
        return Series(
            arm.label,
            [
                Point(epsilon, sigma, note=f"{arm.label}, ε = {epsilon:g}: σ = {sigma:.4f}")
                for epsilon, sigma in noises.items()
            ],
        )

    svg = line_chart(
        [
            series(_PLD, {pair.epsilon: pair.pld_noise for pair in pairs}),
            series(_RDP, {pair.epsilon: pair.rdp_noise for pair in pairs}),
        ],
        title=_NOISE_TITLE,
        x_label="privacy budget ε",
        y_label="noise multiplier σ",
        x_ticks=epsilon_ticks([pair.epsilon for pair in pairs]),
        log_x=True,
        log_y=True,
        height=280,
    )
    return Figure("figure_noise", _NOISE_TITLE, svg, "At the same sampling, number of steps and δ.")


def _noise_table(pairs: Sequence[_Pair]) -> Table:
    rows = [
        [
            Cell(f"{pair.epsilon:g}", pair.epsilon),
            Cell(f"{pair.pld_noise:.4f}", pair.pld_noise),
            Cell(f"{pair.rdp_noise:.4f}", pair.rdp_noise),
            Cell(f"{pair.saving:.1f} %", pair.saving),
        ]
        for pair in pairs
    ]
    return Table("noise", _NOISE_TITLE, ["ε", "PLD", "RDP", "less"], rows)


def _less_noise(pairs: Sequence[_Pair]) -> Finding:
    savings = [pair.saving for pair in pairs]
    return Finding(
        "PLD accounting needs less noise than RDP at every ε",
        "shown" if all(pair.pld_noise < pair.rdp_noise for pair in pairs) else "not shown",
        f"by {min(savings):.1f} to {max(savings):.1f} %",
    )


def _better_model(pair: _Pair) -> Finding:
    return judged(
        f"At ε = {pair.epsilon:g} the smaller noise gives a better model",
        worse_by(pair.rdp, pair.pld),
        f"{score_name(pair.pld.task)} {score_text(pair.pld)} with PLD's noise, {score_text(pair.rdp)} with RDP's",
    )


register_exhibit(ExhibitSpec("accountants", exhibit, columns=("accountant",)))
