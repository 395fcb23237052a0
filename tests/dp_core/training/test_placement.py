"""Every placement trains the same model: any number of devices and processes, tables replicated or sharded."""

from __future__ import annotations

import socket
from typing import Any

import jax
import numpy as np
import pytest
from scipy import stats

from dp_core.training import placement
from dp_core.training.placement import Placement
from tests.support.several_devices import (
    L2_CLIP_NORM,
    NOISE_MULTIPLIER,
    ROWS,
    SENSITIVITY,
    VOCABULARIES,
    Run,
    in_processes,
)

TIMEOUT_SECONDS = 90
ALONE = (1, "replicated")
PLACEMENTS = {
    1: [ALONE, (2, "replicated"), (8, "replicated"), (8, "row_sharded")],
    4: [ALONE, (2, "row_sharded"), (8, "replicated"), (8, "row_sharded")],
}
CASES = [(size, place) for size, places in PLACEMENTS.items() for place in places]
# With correlated noise over three steps. Large tables have independent noise.
CORRELATED = [(-3, ALONE), (-3, (8, "row_sharded"))]
# Rows of the sharded tables, padded to a multiple of the devices.
CUT = {"embedding_0": {2: 302, 4: 304, 8: 304}, "embedding_2": {2: 54, 4: 56, 8: 56}}

Reports = dict[tuple[int, tuple[int, str]], Any]


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> Reports:
    """The report of a process with eight devices on each placement."""
    runs = [Run(places, size) for size, places in PLACEMENTS.items()]
    runs.append(Run([place for _, place in CORRELATED], 1, noise_coefficients=(0.8, 0.5, 0.3)))
    seen = in_processes(runs, tmp_path_factory.mktemp("devices"), devices=8, timeout=TIMEOUT_SECONDS)
    return dict(zip([*CASES, *CORRELATED], [report for reports in seen for report in reports], strict=True))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The reports of two processes, with two devices each, on one joint training."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{listener.getsockname()[1]}"
    runs = [Run([(4, "row_sharded")], 4, coordinator, 2, process) for process in range(2)]
    seen = in_processes(runs, tmp_path_factory.mktemp("processes"), devices=2, timeout=TIMEOUT_SECONDS)
    return [reports[0] for reports in seen]


def assert_same_model(actual: Any, expected: Any) -> None:
    assert actual["params"].keys() == expected["params"].keys()
    for name, values in expected["params"].items():
        np.testing.assert_allclose(actual["params"][name], values, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(actual["losses"], expected["losses"], rtol=1e-5)
    np.testing.assert_allclose(actual["l2_clip_norm"], expected["l2_clip_norm"], rtol=1e-6)
    assert (actual["step"], actual["not_finite"]) == (3, 0)


@pytest.mark.parametrize(("microbatch_size", "place"), CASES)
def test_any_placement_trains_the_same_model(reports: Reports, microbatch_size: int, place: tuple[int, str]) -> None:
    assert_same_model(reports[microbatch_size, place], reports[microbatch_size, ALONE])


def test_correlated_noise_does_not_depend_on_the_placement(reports: Reports) -> None:
    alone, sharded = (reports[case] for case in CORRELATED)
    assert_same_model(sharded, alone)
    assert sharded["replicas_equal"]
    assert sharded["restored_equal"]
    # The first noise is the fresh one over c₀, but for the large tables.
    for name, values in alone["noise"].items():
        large = name in ("embedding_0/table", "embedding_2/table")
        plain = np.array(reports[1, ALONE]["noise"][name]) / (1.0 if large else 0.8)
        np.testing.assert_allclose(values, plain, rtol=1e-3, atol=1e-4)
    for name, values in reports[1, ALONE]["params"].items():
        if name == "hidden_0/kernel":
            assert np.abs(np.array(values) - alone["params"][name]).max() > 1e-3


@pytest.mark.parametrize(("microbatch_size", "place"), CASES)
def test_tables_lie_where_they_should(reports: Reports, microbatch_size: int, place: tuple[int, str]) -> None:
    """Likewise the momentum, the average and a restored checkpoint; replicas are equal to the bit."""
    report, (devices, tables) = reports[microbatch_size, place], place
    for name, rows in VOCABULARIES.items():
        cut = tables == "row_sharded" and name in CUT
        expected = [CUT[name][devices] // devices if cut else rows] * devices
        kinds = ("table_shards", "momentum_shards", "average_shards", "restored_shards")
        assert [report[kind][name] for kind in kinds] == [expected] * 4
    assert report["replicas_equal"]
    assert report["restored_equal"]


def assert_noise_is_drawn_once(report: Any) -> None:
    """χ² test on every array of more than 20 numbers; one seed in 10⁶ fails by chance (fixed here).

    If each of n devices added its own noise, the deviation would be √n times larger.
    """
    everything = []
    for name, values in report["noise"].items():
        standard = np.ravel(values) / (NOISE_MULTIPLIER * SENSITIVITY * L2_CLIP_NORM)
        everything.append(standard)
        if standard.size > 20:
            low, high = stats.chi2.ppf([5e-7, 1 - 5e-7], standard.size)
            assert low < np.sum(standard**2) < high, name
    drawn = np.concatenate(everything)
    # Repeated draws would show as equal numbers.
    assert len(np.unique(np.round(drawn, 4))) > 0.95 * len(drawn)


@pytest.mark.parametrize(("microbatch_size", "place"), CASES)
def test_noise_is_drawn_once(reports: Reports, microbatch_size: int, place: tuple[int, str]) -> None:
    report = reports[microbatch_size, place]
    assert_noise_is_drawn_once(report)
    for name, values in reports[microbatch_size, ALONE]["noise"].items():
        np.testing.assert_allclose(report["noise"][name], values, rtol=1e-4, atol=1e-4)


def test_two_processes_train_what_one_does(reports: Reports, together: list[Any]) -> None:
    first, second = together
    assert_same_model(first, reports[4, ALONE])
    assert first["params"] == second["params"]
    for report in together:
        assert_noise_is_drawn_once(report)
        assert report["replicas_equal"]
        assert report["restored_equal"]
        for name, rows in VOCABULARIES.items():
            assert report["table_shards"][name] == [CUT[name][4] // 4 if name in CUT else rows] * 2


def test_each_process_fetches_its_own_rows(together: list[Any]) -> None:
    asked = [report["asked"] for report in together]
    assert asked == [list(range(ROWS // 2)), list(range(ROWS // 2, ROWS))]


def test_more_devices_than_there_are() -> None:
    seen = len(jax.devices())
    with pytest.raises(ValueError, match=f"asks for 100000 devices, but JAX sees {seen}"):
        Placement(100_000).copied(np.zeros(1))


def test_rows_that_are_added_to_tables_are_taken_off_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "LARGE_ARRAY", 20)
    rng = np.random.default_rng(0)
    params = {
        "embedding_0": {"table": rng.normal(size=(13, 2))},
        "embedding_1": {"table": rng.normal(size=(3, 2))},
        "output": {"kernel": rng.normal(size=(13, 2))},
    }
    place = Placement(8, "row_sharded")
    padded = place.pad_tables(params)
    assert jax.tree.map(np.shape, padded) == {
        "embedding_0": {"table": (16, 2)},
        "embedding_1": {"table": (3, 2)},
        "output": {"kernel": (13, 2)},
    }
    assert jax.tree.map(np.shape, Placement(8).pad_tables(params)) == jax.tree.map(np.shape, params)
    trimmed = place.trim_tables(padded, {"embedding_0": 13, "embedding_1": 3})
    jax.tree.map(np.testing.assert_array_equal, trimmed, params)
