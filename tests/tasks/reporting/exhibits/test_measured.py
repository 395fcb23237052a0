"""Noise curves and speeds: planted effects are found, and none where none was planted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from tasks.reporting.exhibits import noise_and_batch, throughput
from tasks.reporting.exhibits.common import Exhibit, Measurement
from tasks.runtime.errors import UserError
from tests.support.exhibits import csv_of, pipeline_of, rows_of, verdicts, well_formed

# Figure 2.


def curves(epochs: Callable[[int], float], steps: Callable[[int], float], sizes: Sequence[int]) -> dict[str, Any]:
    """Returns noise curves in the form of tasks.measure, with planted noise."""

    def points(deviation: Callable[[int], float]) -> dict[str, list[dict[str, Any]]]:
        return {
            epsilon: [
                {
                    "batch_size": size,
                    "steps": 100,
                    "noise_multiplier": deviation(size) * size * factor,
                    "standard_deviation": deviation(size) * factor,
                }
                for size in sizes
            ]
            for epsilon, factor in (("1", 1.0), ("8", 0.2))
        }

    return {
        "examples": 120_000,
        "baseline_batch_size": 1024,
        "fixed": {"epochs": 5.0, "steps": 500},
        "epochs": points(epochs),
        "steps": points(steps),
    }


def noise(measured: dict[str, Any]) -> Exhibit:
    return noise_and_batch.exhibit(Measurement(pipeline_of("noise_and_batch"), measured))


@pytest.mark.parametrize("factor", [2, 4])
def test_noise_that_falls_at_fixed_epochs_and_plateaus_at_fixed_steps(factor: int) -> None:
    """At fixed epochs the noise falls like 1/√b, at fixed steps like 1/b down to a floor; sizes double or quadruple."""
    sizes = [256 * factor**k for k in range(9 if factor == 2 else 6)]
    measured = curves(lambda b: b**-0.5, lambda b: 1 / b + 0.01, sizes)
    shown = well_formed(noise(measured))
    assert verdicts(shown) == ["shown", "shown"]
    assert "removes 29 % at ε = 1, 29 % at ε = 8" in shown.findings[0].evidence
    first = 1 - ((1 / sizes[1] + 0.01) / (1 / 256 + 0.01)) ** (1 / math.log2(factor))
    assert shown.headline.startswith("At fixed steps the first doubling of the batch removes")
    assert f"at least {100 * first:.0f} % of the noise" in shown.headline
    table = shown.tables[0]
    assert len(table.rows) == 2 * 2 * len(sizes)
    assert [cell.text for cell in table.rows[0]] == ["epochs", "1", "256", "100", "16.0000", "0.0625"]
    records = csv_of(table)
    assert {row["fixed"] for row in records} == {"epochs", "steps"}
    assert [
        float(row["standard_deviation"]) for row in records if (row["fixed"], row["epsilon"]) == ("steps", "8")
    ] == (pytest.approx([0.2 * (1 / b + 0.01) for b in sizes]))


def test_noise_without_the_effects() -> None:
    sizes = [256, 512, 1024]
    constant = well_formed(noise(curves(lambda b: 0.1, lambda b: 1 / b, sizes)))
    assert verdicts(constant) == ["not shown", "not shown"]
    rises = noise(curves(lambda b: 0.1 if b == 512 else 1 / b, lambda b: 0.1, sizes))
    assert verdicts(rises) == ["not shown", "not shown"]


def test_noise_at_one_batch_size() -> None:
    shown = well_formed(noise(curves(lambda b: 1 / b, lambda b: 1 / b, [256])))
    assert shown.findings == []
    assert "a single batch size" in shown.headline.lower()


# Table 4 and Figure 4(b).


def speeds(
    rows: Mapping[tuple[str, bool], Sequence[float | None]], largest: dict[str, int], **changes: Any
) -> dict[str, Any]:
    """Returns planted steps per second at batches of 64, 256 and 1,024, as tasks.speed does; None does not fit."""
    measured: list[dict[str, Any]] = []
    for (method, noise), found in rows.items():
        for size, speed in zip((64, 256, 1024), found, strict=False):
            measured.append(
                {
                    "method": method,
                    "noise": noise,
                    "batch_size": size,
                    "steps_per_second": speed,
                    "steps_per_second_std": None if speed is None else speed / 10,
                    "best_steps_per_second": speed,
                    "examples_per_second": None if speed is None else speed * size,
                    "peak_memory_bytes": 2**30,
                    "fits": speed is not None,
                    "physical_batch_size": size,
                }
            )
    return {
        "rows": measured,
        "largest_batch_size": largest,
        "largest_batch_size_at_once": largest,
        "parameters": 123_456,
        "memory_cap_bytes": 4 * 2**30,
        "device": "cpu",
        "cpus": 2,
        "measured": "2026-01-02T03:04:05+00:00",
        **changes,
    }


LARGEST = {"non_private": 2**17, "vmap": 512, "ghost": 2**17}
SPEEDS: dict[tuple[str, bool], list[float | None]] = {
    ("non_private", False): [100, 80, 40],
    ("vmap", False): [50, 10, None],
    ("vmap", True): [40, 8, None],
    ("ghost", False): [90, 75, 36],
    ("ghost", True): [60, 50, 24],
}


def show_speeds(measured: dict[str, Any]) -> Exhibit:
    return well_formed(throughput.exhibit(Measurement(pipeline_of("throughput"), measured)))


def test_speeds_where_vmap_does_not_fit() -> None:
    shown = show_speeds(speeds(SPEEDS, LARGEST))
    assert verdicts(shown) == ["shown"] * 3
    assert shown.headline == (
        "At batch 1,024 DP-SGD with ghost clipping has 60 % of the non-private speed (90 % without the noise)."
    )
    assert "vmap has 50 % at batch 64 and 12 % at 256; batches of 1,024 do not fit" in shown.findings[1].evidence
    steps, largest, paper = shown.tables
    found = rows_of(steps)
    assert list(steps.columns) == [
        *("batch size", "non-private", "vmap, no noise", "vmap DP-SGD", "ghost, no noise", "ghost DP-SGD")
    ]
    assert found["64"]["ghost DP-SGD"] == "60 ± 6"
    assert found["1,024"]["vmap DP-SGD"] == found["1,024"]["vmap, no noise"] == "–"
    assert rows_of(largest)["vmap, no noise"] == {"largest batch": "512"}
    assert "123,456 parameters on cpu (2 CPU cores), measured on 2026-01-02" in steps.caption
    assert rows_of(paper)["524,288"] == {"non-private": "0.96", "vmap": "–", "ghost": "0.80"}
    records = csv_of(steps)
    assert len(records) == 15
    missing = next(row for row in records if (row["method"], row["batch_size"]) == ("vmap", "1024"))
    assert (missing["fits"], missing["steps_per_second"]) == ("False", "")


def test_speeds_without_the_effects() -> None:
    """Here vmap is as fast as the others, and ghost clipping is slow and fits smaller batches."""
    planted = SPEEDS | {("vmap", False): [100, 80, 40], ("ghost", True): [60, 20, 10]}
    shown = show_speeds(speeds(planted, {"non_private": 1024, "vmap": 1024, "ghost": 512}))
    assert verdicts(shown) == ["not shown"] * 3
    assert "has 25 % of the non-private speed" in shown.headline


def test_speeds_at_the_largest_batch_that_both_fit() -> None:
    shown = show_speeds(speeds(SPEEDS | {("non_private", False): [100, 80, None]}, LARGEST))
    assert "At batch 256 DP-SGD with ghost clipping has 62 %" in shown.headline


def test_one_round_has_no_spread_and_a_restless_machine_has_much() -> None:
    measured = speeds(SPEEDS, LARGEST, cpus=1)
    for row in measured["rows"]:
        row["steps_per_second_std"] = None
    assert rows_of(show_speeds(measured).tables[0])["64"]["vmap DP-SGD"] == "40"
    assert "(1 CPU core)" in show_speeds(measured).tables[0].caption
    for row in measured["rows"]:
        row["steps_per_second_std"] = 1000.0 if row["fits"] else None
    show_speeds(measured)


def test_where_nothing_of_vmap_fits_or_nothing_at_all() -> None:
    without_vmap = {key: ([None] * 3 if key[0] == "vmap" else found) for key, found in SPEEDS.items()}
    shown = show_speeds(speeds(without_vmap, LARGEST | {"vmap": 0}))
    assert (shown.findings[1].verdict, shown.findings[1].evidence) == ("shown", "no batch size fits into memory")
    with pytest.raises(UserError, match="nothing fits into 4 GiB"):
        show_speeds(speeds({key: [None] * 3 for key in SPEEDS}, dict.fromkeys(LARGEST, 0)))
