"""Searches in rounds and relative learning rates that cannot work: one line each, with what would be right."""

from __future__ import annotations

import pytest

from tasks.config.loading import load_config
from tasks.rounds.registry import most_rounds
from tests.support.yaml_files import SMALL, Load, edit, mistakes

GRID = "pipelines.sweep.grids.tiny"
LISTS = "              l2_clip_norm: [1, 4]\n"


def with_search(text: str) -> str:
    return edit(SMALL, "        seeds: 1\n", f"        seeds: 1\n{text}")


@pytest.mark.parametrize(
    ("search", "rounds"),
    [("", 1), ("search: extend", 7), ("search: extend\n        trainings: 2", 4)],
)
def test_a_search_has_so_many_rounds(load: Load, search: str, rounds: int) -> None:
    """The grid, at most five rounds of further values and no more than trainings, and the other seeds."""
    config = load(with_search(f"        {search}\n") if search else SMALL)
    assert most_rounds(config.pipeline("sweep"), config.grids("sweep", "tiny")) == rounds


@pytest.mark.parametrize(("rates", "rungs"), [("[0.1, 0.2]", 2), ("[0.1, 0.2, 0.3, 0.4, 0.5]", 3)])
def test_halving_has_a_rung_for_each_factor_of_three(load: Load, rates: str, rungs: int) -> None:
    text = edit(with_search("        search: halving\n"), LISTS, f"{LISTS}              learning_rate: {rates}\n")
    text = edit(text, "              learning_rate: 0.1\n", "")
    config = load(text)
    assert most_rounds(config.pipeline("sweep"), config.grids("sweep", "tiny")) == rungs + 1, "and one of other seeds"


def test_what_cannot_work(load: Load) -> None:
    single = edit(with_search("        search: extend\n"), LISTS, "              l2_clip_norm: 1\n")
    (only,) = mistakes(load, single)
    assert "`search: extend` has no list to extend: give two or more values of learning_rate, l2_clip_norm" in only
    (only,) = mistakes(load, with_search("        search: halving\n"))
    assert "`search: halving` needs 3 or more settings" in only
    (only,) = mistakes(load, with_search("        trainings: 3\n"))
    assert "limits a search in rounds, and `search: all` has one round" in only


@pytest.mark.parametrize(
    ("optimizer", "per", "message"),
    [
        ("adam", "clip_norm", "no optimiser of the grid scales with the gradient (sgd does)"),
        ("[sgd, adam]", "guess", "there is a guess for sgd, not for adam"),
        ("[sgd, adam]", "clip_norm", None),
        ("sgd", "guess", None),
    ],
)
def test_relative_rates_need_steps_that_scale(load: Load, optimizer: str, per: str, message: str | None) -> None:
    text = edit(SMALL, LISTS, f"{LISTS}              learning_rate_per: {per}\n")
    text = edit(text, "              optimizer: sgd\n", f"              optimizer: {optimizer}\n")
    if message is None:
        assert load(text)
    else:
        (only,) = mistakes(load, text)
        assert message in only


def test_a_page_that_compares_rates_has_no_relative_ones(load: Load) -> None:
    text = edit(SMALL, LISTS, f"{LISTS}              learning_rate_per: clip_norm\n")
    (only,) = mistakes(load, edit(text, "    title: A sweep\n", "    title: A sweep\n    columns: [learning_rate]\n"))
    assert "drop learning_rate from columns" in only


def test_the_shipped_grids_have_one_round_unless_they_search() -> None:
    config = load_config()
    for pipeline in config.pipelines.values():
        for grids in pipeline.grids.values():
            if grids.search == "all":
                assert most_rounds(pipeline, grids) == (2 if pipeline.exhibit == "decomposition" else 1)
