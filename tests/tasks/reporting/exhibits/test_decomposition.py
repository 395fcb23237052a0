"""Where the loss comes from: planted parts are found, they add up, and bars are drawn with the sign of each part."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tasks.reporting.exhibits import decomposition
from tasks.reporting.exhibits.common import Exhibit, Sweep
from tasks.reporting.exhibits.decomposition import parts_of
from tasks.reporting.exhibits.relative_loss import relative_percent
from tasks.reporting.exhibits.stacked_bars import Stack, placed, stacked_bar_chart
from tasks.reporting.results import Outcome, choose
from tasks.rounds.decomposition import without_clipping, without_noise
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, pipeline_of, rows_of, well_formed
from tests.support.sweeps import BY_SEED, baseline, private

SEEDS = 3
Planted = Callable[[Trial], tuple[float | None, float | None, float]]


def sweep(planted: Planted) -> Sweep:
    """Returns a sweep whose recipe, clipping and noise cost what is planted; None for a training that diverged."""
    found, beside = [], []
    for seed in range(SEEDS):
        shift = BY_SEED * seed
        trial = baseline(task="pctr", seed=seed)
        found.append(Outcome(trial, 0.2 + shift, 0.2 + shift))
        for epsilon in (1.0, 8.0):
            trial = private(task="pctr", epsilon=epsilon, seed=seed)
            recipe, clipping, noise = planted(trial)
            plain = None if recipe is None else 0.2 + shift + recipe
            clipped = None if clipping is None else 0.2 + shift + (recipe or 0.0) + clipping
            loss = 0.2 + shift + (recipe or 0.0) + (clipping or 0.0) + noise
            found.append(Outcome(trial, loss, loss))
            beside += [Outcome(without_clipping(trial), plain, plain), Outcome(without_noise(trial), clipped, clipped)]
    return Sweep(pipeline_of("decomposition"), choose(found), {}, (), beside)


def show(planted: Planted) -> Exhibit:
    return well_formed(decomposition.exhibit(sweep(planted)))


@pytest.mark.parametrize(
    ("recipe", "clipping", "noise"),
    [(0.01, 0.02, 0.03), (-0.01, 0.02, 0.03), (0.01, -0.005, 0.0), (0.02, 0.01, 0.0), (-0.03, -0.02, 0.01)],
)
def test_the_parts_add_up_to_the_relative_loss(recipe: float, clipping: float, noise: float) -> None:
    found = sweep(lambda trial: (recipe, clipping, noise))
    mean = 0.2 + BY_SEED
    for result in found.results:
        if result.epsilon is not None:
            parts = parts_of(found, result)
            assert parts is not None
            assert parts.means == pytest.approx([100 * part / mean for part in (recipe, clipping, noise)], abs=1e-9)
            assert parts.total == pytest.approx(relative_percent(result, found.baseline("pctr"))[0], abs=1e-9)


def test_the_noise_part_is_zero_without_noise() -> None:
    rows = rows_of(show(lambda trial: (0.01, 0.02, 0.0)).tables[0])
    assert rows["pCTR"]["noise"] in ("0.00 ± 0.00", "-0.00 ± 0.00")


def test_the_table_and_the_findings() -> None:
    shown = show(lambda trial: (0.01, 0.02, 0.1 / (trial.epsilon or 1)))
    table = shown.tables[0]
    assert list(table.columns) == ["task", "ε", "recipe", "clipping", "noise", "relative loss"]
    assert [[cell.text for cell in row][1:] for row in table.rows][1] == [
        "8",
        "4.76 ± 4.76",
        "9.52 ± 0.00",
        "5.95 ± 0.00",
        "20.24",
    ]
    assert {finding.verdict for finding in shown.findings} >= {"shown"}
    assert [finding.verdict for finding in shown.findings][:2] == ["shown", "shown"]
    assert "noise costs less with a larger budget (ε = 8 against 1)" in shown.findings[1].claim
    records = csv_of(table)
    parts = [float(records[0][f"{name}_percent_mean"]) for name in ("recipe", "clipping", "noise")]
    assert sum(parts) == pytest.approx(float(records[0]["relative_loss_percent"]), rel=1e-6)


def test_a_recipe_that_diverges_without_clipping() -> None:
    found = sweep(lambda trial: (None, 0.03, 0.02))
    result = next(result for result in found.results if result.epsilon is not None)
    parts = parts_of(found, result)
    assert parts is not None
    assert parts.recipe is None
    assert parts.total == pytest.approx(relative_percent(result, found.baseline("pctr"))[0])
    shown = show(lambda trial: (None, 0.03, 0.02))
    assert rows_of(shown.tables[0])["pCTR"]["recipe"] == "diverged"
    assert "Where the recipe diverges without clipping" in shown.notes[1]


def test_negative_parts_hang_below_zero() -> None:
    assert placed([-1.0, 2.0, -3.0]) == [(0.0, -1.0), (0.0, 2.0), (-1.0, -4.0)]
    stack = Stack("3", [-1.0, 2.0, 3.0])
    svg = stacked_bar_chart([stack], ["recipe", "clipping", "noise"], title="t", x_label="x", y_label="y")
    bars = [
        (float(y), float(height), name)
        for y, height, name in re.findall(
            r'y="([\d.]+)" width="[\d.]+" height="([\d.]+)" fill="[^"]+"><title>3, (\w+)', svg
        )
    ]
    assert [name for *_, name in bars] == ["recipe", "clipping", "noise"]
    (recipe, of_recipe, _), (clipping, of_clipping, _), (noise, of_noise, _) = bars
    unit = of_recipe
    assert of_clipping == pytest.approx(2 * unit, abs=0.2)
    assert of_noise == pytest.approx(3 * unit, abs=0.2)
    # The zero line is where the positive parts begin and the negative one too.
    assert clipping + of_clipping == pytest.approx(recipe, abs=0.2)
    assert noise + of_noise == pytest.approx(clipping, abs=0.2)
    total = re.search(r'M[\d.]+,([\d.]+)h[\d.]+" stroke="[^"]+" stroke-width="2"><title>3, total', svg)
    assert total is not None
    assert float(total[1]) == pytest.approx(recipe - 4 * unit, abs=0.4)
