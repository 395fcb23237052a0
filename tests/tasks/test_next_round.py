"""Rounds of a run, on a landscape of validation losses in place of training: real plans and runs in MLflow."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.config.loading import load_config
from tasks.data.prepared import Prepared
from tasks.next_round import history_of, next_round
from tasks.plan import plan
from tasks.reporting.results import choose
from tasks.rounds.finalists import finalists
from tasks.rounds.picture import search_figures, search_notes, search_tables
from tasks.rounds.registry import most_rounds
from tasks.rounds.searched import SearchedRounds
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tasks.training.items import Plan, planned_rounds, read_plan
from tasks.training.trial import Trial
from tests.support.sweep_config import CONFIG, PAPER_RECIPE, TWO_RECIPES, use
from tests.support.trials import make_prepared

# The best rate of the baseline is beyond its list, and so are the best rate and the best clip norm of DP-SGD.
BEST = {"non_private": (0.3, None), "dp_sgd": (3.0, 0.3)}
EXTEND = CONFIG.replace("search: random", "search: extend").replace(
    "learning_rate: 0.01, batch", "learning_rate: [0.003, 0.01], batch"
)
HALVING = CONFIG.replace("search: random", "search: halving").replace("[0.1, 0.3, 1.0]", "[0.1, 0.3, 1.0, 3.0, 10.0]")


def landscape(trial: Trial) -> float:
    """A loss that grows with the distance, in factors, from the best settings; longer trainings are better."""
    rate, norm = BEST[trial.mechanism]
    far = abs(math.log(trial.learning_rate / rate)) + 1 / trial.epochs
    return 0.3 + 0.01 * (far + (0 if norm is None else abs(math.log((trial.l2_clip_norm or 1) / norm))))


def train(run: str, loss: Callable[[Trial], float | None] = landscape) -> None:
    """Writes what training would: a record for each planned trial. Other seeds have another loss."""
    for item in read_plan(run)["items"]:
        trial = Trial.model_validate(item["trial"])
        value = loss(trial)
        value = value if value is None else value + trial.seed
        losses = {"validation_loss": value, "test_loss": value}
        write_json(trial.folder / "record.json", {"trial": trial.model_dump(mode="json"), **losses})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Prepared]]:
    """A home with prepared data and a store of MLflow, for all tests here: each has runs of its own."""
    folder = tmp_path_factory.mktemp("rounds")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        prepared = make_prepared(folder / "raw")
        prepared.data_card.write_text("a card")
        yield folder, prepared


@pytest.fixture
def planned(shared: tuple[Path, Prepared], monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    folder, prepared = shared
    monkeypatch.setenv("DP_ADS_HOME", str(folder / "home"))

    def make(text: str, **options: Any) -> str:
        use(text.replace("raw: clicks.parquet", f"raw: {folder / 'raw' / 'clicks.parquet'}"), folder, monkeypatch)
        card = str(prepared.data_card)
        dataset: Any = {"dataset": "tiny_clicks", "path": str(prepared.path), "fingerprint": "any", "data_card": card}
        return str(plan({"pipeline": "sweep", "profile": "tiny", **options}, [dataset])["run"])

    return make


def to_the_end(run: str, loss: Callable[[Trial], float | None] = landscape) -> Plan:
    """Trains and plans until nothing is left, and returns the plan."""
    for _ in itertools.count():
        train(run, loss)
        if next_round(run) is None:
            return read_plan(run)
    raise AssertionError("unreachable")


def chosen(run: str) -> dict[str, Trial]:
    history = history_of(load_config(), read_plan(run))
    found = finalists(history.rounds, history.pipeline.columns, history.grids.search)
    return {trial.mechanism: trial for trial in found}


def test_a_grid_whose_best_lies_outside_is_left_with_the_best_inside(planned: Callable[..., str]) -> None:
    run = planned(EXTEND)
    written = to_the_end(run)
    trials = [Trial.model_validate(item["trial"]) for item in written["items"]]
    for mechanism, best in chosen(run).items():
        cell = [trial for trial in trials if trial.mechanism == mechanism and trial.seed == 0]
        rates = sorted({trial.learning_rate for trial in cell})
        assert rates[0] < best.learning_rate < rates[-1]
        assert abs(math.log(best.learning_rate / BEST[mechanism][0])) < math.log(3.4) / 2, (
            "as near as the factor allows"
        )
    best = chosen(run)["dp_sgd"]
    norms = sorted({trial.l2_clip_norm for trial in trials if trial.mechanism == "dp_sgd"})
    assert norms[0] < (best.l2_clip_norm or 0) < norms[-1]
    # The grid, rounds of the search until the best is inside, and the other seed of what it chose.
    rounds = planned_rounds(written)
    assert rounds == ["grid", *["extend"] * (len(rounds) - 2), "seeds"]
    assert len(rounds) <= most_rounds(load_config().pipelines["sweep"], load_config().grids("sweep", "tiny"))
    last = [Trial.model_validate(item["trial"]) for item in written["items"] if item.get("round") == len(rounds)]
    assert last == [trial.model_copy(update={"seed": 1}) for trial in chosen(run).values()]
    assert all(trial.seed == 0 for trial in trials if trial not in last), "the search judges by the first seed"
    assert [item["number"] for item in written["items"]] == list(range(1, len(trials) + 1))
    assert {item["of"] for item in written["items"]} == {len(trials)}


def searched_of(run: str) -> SearchedRounds:
    config, written = load_config(), read_plan(run)
    history = history_of(config, written)
    pipeline, grids = config.pipelines["sweep"], config.grids("sweep", "tiny")
    return SearchedRounds.of(written, pipeline, grids, history.prepared, history.outcomes)


def test_the_page_shows_what_was_tried_and_what_was_chosen(planned: Callable[..., str]) -> None:
    run = planned(EXTEND)
    written = to_the_end(run)
    searched = searched_of(run)
    assert searched.finalists == set(chosen(run).values())
    assert [figure.name for figure in search_figures(searched)] == [
        "search_pcvr_learning_rate",
        "search_pcvr_l2_clip_norm",
    ]
    for figure in search_figures(searched):
        assert all(words in figure.svg for words in ("DP-SGD, ε = 4", "chosen", "round 2"))
        assert "later rounds" not in figure.svg, "the caption says what hollow marks are"
    (table,) = search_tables(searched)
    of_the_first_seed = [item for item in written["items"] if item["trial"]["seed"] == 0]
    assert sum(int(row[4].text) for row in table.rows) == len(of_the_first_seed)
    assert [row[1].text for row in table.rows if row[7].text == "✓ chosen"] == ["non-private", "DP-SGD"]
    assert len(search_notes(searched)) == 1, "the best of each is inside"

    short = planned(EXTEND.replace("search: extend", "search: extend\n        trainings: 1"), seeds=1)
    to_the_end(short)
    assert "the best value still at the edge of what was tried" in search_notes(searched_of(short))[1]

    plain = planned(CONFIG.replace("        search: random\n", ""), seeds=1)
    train(plain)
    nothing = searched_of(plain)
    assert not any((search_figures(nothing), search_tables(nothing), search_notes(nothing), nothing.finalists))


def test_a_plan_is_the_same_again_and_a_planned_round_stays(planned: Callable[..., str]) -> None:
    """A second run, of trials that are all trained, comes to the same plan; so does a step that is retried."""
    first = to_the_end(planned(EXTEND))
    run = planned(EXTEND)
    groups = next_round(run, 2)
    assert groups == []
    after = read_plan(run)
    assert next_round(run, 2) == []
    assert read_plan(run) == after
    assert next_round(run, 4) is None, "round 3 is not planned yet"
    second = to_the_end(run)
    assert [item["trial"] for item in second["items"]] == [item["trial"] for item in first["items"]]
    assert planned_rounds(second) == planned_rounds(first)


def test_a_search_keeps_within_its_limit(planned: Callable[..., str]) -> None:
    run = planned(EXTEND.replace("search: extend", "search: extend\n        trainings: 1"), seeds=1)
    written = to_the_end(run)
    assert planned_rounds(written) == ["grid", "extend"]
    mechanisms = [item["trial"]["mechanism"] for item in written["items"] if item.get("round") == 2]
    assert mechanisms == ["non_private", "dp_sgd"], "the same for the baseline as for a budget"


def test_a_setting_that_was_tried_takes_no_training_from_the_search(planned: Callable[..., str]) -> None:
    """At C = 1 the smaller rate is worse, and at C = 3 it is better: the one training goes to the larger rate."""

    def twisted(trial: Trial) -> float:
        if trial.mechanism != "dp_sgd":
            return landscape(trial)
        sign = 1 if trial.l2_clip_norm == 1 else -1
        return 0.3 + 0.1 * (trial.l2_clip_norm or 0) - 0.01 * sign * math.log(trial.learning_rate)

    text = EXTEND.replace("[0.1, 0.3, 1.0]", "[0.3, 1.0]").replace("l2_clip_norm: [1, 3]", "l2_clip_norm: [1, 1.5]")
    run = planned(text.replace("search: extend", "search: extend\n        trainings: 1"), seeds=1)
    written = to_the_end(run, twisted)
    added = [item["trial"] for item in written["items"] if item.get("round") == 2]
    (private,) = [trial for trial in added if trial["mechanism"] == "dp_sgd"]
    assert (private["learning_rate"], private["l2_clip_norm"]) == (pytest.approx(10 / 3), 1)


def test_what_diverges_is_extended_to_smaller_rates(planned: Callable[..., str]) -> None:
    def diverges(trial: Trial) -> float | None:
        return None if trial.mechanism == "dp_sgd" and trial.learning_rate > 0.05 else landscape(trial)

    run = planned(EXTEND, seeds=1)
    to_the_end(run, diverges)
    assert chosen(run)["dp_sgd"].learning_rate < 0.05


@pytest.mark.parametrize("mechanism", ["non_private", "dp_sgd"])
def test_a_chosen_setting_that_diverges_with_another_seed_makes_way_for_the_next(
    planned: Callable[..., str], mechanism: str
) -> None:
    """The search judges by one seed, so this is found out when everything is trained: the table must not be lost."""
    run = planned(EXTEND)
    to_the_end(run, lambda trial: None if (trial.mechanism, trial.seed) == (mechanism, 1) else landscape(trial))
    history = history_of(load_config(), read_plan(run))
    found = finalists(history.rounds, history.pipeline.columns, history.grids.search)
    results = {result.trial.mechanism: result for result in choose(history.outcomes, among=found)}
    (only,) = results[mechanism].chosen
    assert only.test_loss is not None
    losses = sorted(landscape(trial) for trial in results[mechanism].tried if trial.seed == 0)
    assert landscape(only.trial) == losses[1], "the second best of the first seed"
    assert len(results["dp_sgd" if mechanism == "non_private" else "non_private"].chosen) == 2


def test_halving_keeps_the_better_third_for_three_times_as_long(planned: Callable[..., str]) -> None:
    """Ten settings for 2/9 of an epoch, four for 2/3 and two for 2 epochs; the noise is that of 2 epochs."""
    run = planned(HALVING)
    written = to_the_end(run)
    assert planned_rounds(written) == ["grid", "halving", "halving", "seeds"]
    trials = [(item.get("round"), Trial.model_validate(item["trial"])) for item in written["items"]]
    private = [(number, trial) for number, trial in trials if trial.mechanism == "dp_sgd"]
    rungs = [[trial for at, trial in private if at == number] for number in (1, 2, 3)]
    assert [len(rung) for rung in rungs] == [10, 4, 2]
    assert [{trial.epochs for trial in rung} for rung in rungs] == [{2 / 9}, {2 / 3}, {2.0}]
    assert len({trial.noise_multiplier for _, trial in private}) == 1
    for before, after in itertools.pairwise(rungs):
        kept = [trial.model_copy(update={"epochs": after[0].epochs}) for trial in sorted(before, key=landscape)]
        assert after == kept[: len(after)]
    assert chosen(run)["dp_sgd"] in rungs[2]
    # A whole training is the same trial as that of a grid without a search.
    whole = planned(HALVING.replace("search: halving", "search: all"))
    assert {trial.key for trial in rungs[2]} <= {
        Trial.model_validate(item["trial"]).key for item in read_plan(whole)["items"]
    }
    # The baseline has one setting, which is trained whole at once.
    assert [trial.epochs for number, trial in trials if trial.mechanism == "non_private"] == [1.0, 1.0]


def test_halving_begins_with_at_most_so_many(planned: Callable[..., str]) -> None:
    run = planned(HALVING.replace("search: halving", "search: halving\n        trainings: 4"))
    trials = [Trial.model_validate(item["trial"]) for item in read_plan(run)["items"]]
    assert [trial.epochs for trial in trials if trial.mechanism == "dp_sgd"] == [2 / 3] * 4


def test_our_search_takes_over_a_setting_of_the_paper(planned: Callable[..., str]) -> None:
    """The paper's grid has the setting that our search comes to: it belongs to both, and is trained once."""
    alone = planned(EXTEND)
    to_the_end(alone)
    best = chosen(alone)["dp_sgd"]
    paper = PAPER_RECIPE.replace("0.1", repr(best.learning_rate)).replace("[3, 9]", f"[{best.l2_clip_norm!r}, 9]")
    run = planned(EXTEND.replace(*TWO_RECIPES) + paper)
    begun = [item for item in read_plan(run)["items"] if item["trial"] == best.model_dump(mode="json")]
    assert [item["recipes"] for item in begun] == [["paper_recipe"]]
    written = to_the_end(run)
    (item,) = [item for item in written["items"] if item["trial"] == best.model_dump(mode="json")]
    assert item["recipes"] == ["ours", "paper_recipe"]
    assert item["round"] > 1
    assert chosen(run)["dp_sgd"] == best
    edges = searched_of(run)
    assert all(edges.at_edge(key) == [] for key in edges.cells)


def test_a_batch_is_not_extended_beyond_what_correlated_noise_allows(planned: Callable[..., str]) -> None:
    """Larger batches are better here, and an epoch of the 2,400 examples has room for 4 bands up to batches of 600."""
    text = EXTEND.replace(
        "learning_rate: [0.1, 0.3, 1.0], batch_size: 100", "learning_rate: 0.3, batch_size: [100, 200]"
    )
    run = planned(text.replace("l2_clip_norm: [1, 3]", "l2_clip_norm: 1, bands: 4"), seeds=1)
    to_the_end(run, lambda trial: landscape(trial) - 0.1 * math.log(trial.batch_size))
    sizes = {one.trial.batch_size for one in history_of(load_config(), read_plan(run)).outcomes if one.trial.bands == 4}
    assert sizes == {100, 200, 400}


def test_a_rung_has_a_setting_that_is_part_of_a_longer_one(planned: Callable[..., str]) -> None:
    """The baseline's 3 epochs are a whole training of one setting and a third of the other's 9."""
    text = HALVING.replace(
        "learning_rate: 0.01, batch_size: 100, epochs: 1", "learning_rate: 0.01, batch_size: 100, epochs: [3, 9]"
    )
    run = planned(text, seeds=1)
    # Short trainings are the better ones, so that the setting of 3 epochs survives.
    written = to_the_end(run, lambda trial: 0.3 + 0.01 * trial.epochs)
    found = [
        (item.get("round", 1), item["trial"]["epochs"])
        for item in written["items"]
        if item["trial"]["mechanism"] == "non_private"
    ]
    assert sorted(found) == [(1, 1 / 3), (2, 1.0), (3, 3.0)]
    assert chosen(run)["non_private"].epochs == 3


def test_the_whole_trainings_of_partial_ones(planned: Callable[..., str]) -> None:
    run = planned(HALVING)
    to_the_end(run)
    shortened = searched_of(run).shortened()
    assert {short.epochs for short in shortened} == {2 / 9, 2 / 3}
    assert {whole.epochs for whole in shortened.values()} == {2.0}
    assert chosen(run)["dp_sgd"] in set(shortened.values())


def test_a_round_waits_for_the_one_before(planned: Callable[..., str]) -> None:
    run = planned(EXTEND.replace("0.003, 0.01", "0.002, 0.02"))
    with pytest.raises(UserError, match=r"trial 1 .* is not trained yet, and the next round depends on it"):
        next_round(run)
