"""The exhibit of any sweep: every combination has its score, and the setting that matters most is found."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest

from dp_core.models.spec import DCNv2Spec, MLPSpec
from tasks.reporting.document import Verdict
from tasks.reporting.exhibits.common import Exhibit
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, rows_of, verdicts
from tests.support.sweeps import (
    VERDICTS,
    Loss,
    Sweeping,
    baseline,
    by_chance,
    of_labels,
    private,
    settings,
    show,
    text_of,
)

COLUMNS = ("optimizer", "learning_rate", "l2_clip_norm")
RATES = [0.01, 0.1, 1.0]
SWEEP = Sweeping(settings(baseline), settings(optimizer=["sgd", "yogi"], learning_rate=RATES, l2_clip_norm=[1.0, 3.0]))


def compare(loss: Loss, sweeping: Sweeping = SWEEP, columns: tuple[str, ...] = COLUMNS, **options: Any) -> Exhibit:
    return show("clip_norm", loss, sweeping, exhibit="comparison", columns=columns, paper={}, **options)


def planted(trial: Trial) -> float:
    """The learning rate matters most, then the optimiser, then the clip norm; privacy costs a bit."""
    if trial.epsilon is None:
        return 0.1
    rate = {0.01: 0.1, 0.1: 0.0, 1.0: 0.05}[trial.learning_rate]
    return 0.2 + rate + 0.02 * (trial.optimizer == "yogi") + 0.001 * (trial.l2_clip_norm or 0) + 0.02 / trial.epsilon


def table_rows(shown: Exhibit, number: int = 0) -> list[list[str]]:
    return [[cell.text for cell in row] for row in shown.tables[number].rows]


def test_every_combination_has_a_row_with_its_settings() -> None:
    shown = compare(planted)
    table, effects = shown.tables
    assert list(table.columns) == ["optimiser", "learning rate", "clip norm C", "ε = 1", "ε = 8"]
    assert table.title == "AUC by optimiser, learning rate, clip norm C and ε"
    found = {tuple(row[:3]): row[3:] for row in table_rows(shown)}
    assert set(found) == set(itertools.product(["sgd", "yogi"], ["0.01", "0.1", "1"], ["1", "3"]))
    assert found["yogi", "1", "3"] == [text_of(1 - 0.293), text_of(1 - 0.2755)]
    # Best first, and the best of each budget is strong.
    assert table_rows(shown)[0] == ["sgd", "0.1", "1", text_of(1 - 0.221), text_of(1 - 0.2035)]
    assert [[cell.strong for cell in row] for row in table.rows] == [
        [False, False, False, first, first] for first in [True] + [False] * 11
    ]
    # Numbers sort as numbers.
    assert [row[1].sort for row in table.rows][:2] == [0.1, 0.1]
    assert "Each cell is the mean over the seeds of one setting." in table.caption
    assert f"baseline has {text_of(0.9)}." in table.caption
    assert effects.title == "Which setting matters"
    assert shown.headline == (
        "pCTR, test AUC, chosen by validation: at ε = 1 sgd · 0.1 · C = 1 reaches 0.7640, "
        "at ε = 8 sgd · 0.1 · C = 1 reaches 0.7815, without privacy 0.8850."
    )


def test_the_numbers_of_a_comparison_as_csv() -> None:
    records = csv_of(compare(planted).tables[0])
    assert len(records) == 1 + 2 * 12
    assert (records[0]["mechanism"], records[0]["epsilon"]) == ("non_private", "inf")
    row = next(row for row in records if row["method"] == "yogi · 1 · C = 3" and row["epsilon"] == "8")
    assert float(row["loss_mean"]) == pytest.approx(0.2755 + 0.015)
    assert float(row["relative_loss_percent"]) == pytest.approx(100 * (0.2905 - 0.115) / 0.115)
    assert (row["optimizer"], row["learning_rate"], row["l2_clip_norm"]) == ("yogi", "1", "3")
    assert (row["seeds"], row["trainings"]) == ("4", "4")


def test_which_setting_matters() -> None:
    shown = compare(planted)
    assert table_rows(shown, 1)[:4] == [
        ["learning rate", "0.01", text_of(1 - 0.321), text_of(1 - 0.3035)],
        ["learning rate", "0.1", text_of(1 - 0.221), text_of(1 - 0.2035)],
        ["learning rate", "1", text_of(1 - 0.271), text_of(1 - 0.2535)],
        ["learning rate", "difference", "0.1000", "0.1000"],
    ]
    differences = {row[0]: row[2:] for row in table_rows(shown, 1) if row[1] == "difference"}
    assert differences == {
        "learning rate": ["0.1000", "0.1000"],
        "optimiser": ["0.0200", "0.0200"],
        "clip norm C": ["0.0020", "0.0020"],
    }
    assert list(differences) == ["learning rate", "optimiser", "clip norm C"]
    assert [finding.claim for finding in shown.findings] == [
        f"At ε = {epsilon}, the learning rate matters: 0.1 is better than 0.01" for epsilon in (1, 8)
    ]
    assert verdicts(shown) == ["shown", "shown"]
    assert shown.findings[0].evidence == (
        f"AUC {text_of(1 - 0.221)} with 0.1, {text_of(1 - 0.321)} with 0.01; next is the optimiser with a difference "
        "of 0.0200 (difference 0.1000 ± 0.0000 over 4 seeds)"
    )
    records = csv_of(shown.tables[1])
    assert len(records) == 2 * (3 + 2 + 2)
    first = records[0]
    assert (first["setting"], first["value"], first["epsilon"]) == ("learning rate", "0.01", "1")
    assert first["method"] == "sgd · 0.01 · C = 1"
    assert float(first["difference"]) == pytest.approx(0.1)


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_an_effect_is_shown_only_if_it_exceeds_noise(effect: float, verdict: Verdict) -> None:
    """Validation prefers C = 1; on the test split that holds, does not hold, or is noise."""

    def loss(trial: Trial) -> float:
        return 0.2 + (effect + by_chance(trial)) * (trial.l2_clip_norm == 3)

    def validation(trial: Trial) -> float:
        return 0.2 + 0.1 * (trial.l2_clip_norm == 3)

    sweeping = SWEEP._replace(methods=settings(l2_clip_norm=[1.0, 3.0]))
    shown = compare(loss, sweeping, ("l2_clip_norm",), validation=validation)
    assert verdicts(shown) == [verdict] * 2
    marks = [row[1].endswith(" ≈") for row in table_rows(shown)]
    assert marks == [False, verdict == "within noise"]


def test_validation_chooses_the_settings_that_are_not_columns() -> None:
    shown = compare(planted, columns=("learning_rate",))
    assert [row[:2] for row in table_rows(shown)] == [
        ["0.1", text_of(1 - 0.221)],
        ["1", text_of(1 - 0.271)],
        ["0.01", text_of(1 - 0.321)],
    ]
    sentence = (
        "the mean over seeds at the settings that validation loss chose, given 16 trainings (settings times seeds)."
    )
    assert sentence in shown.tables[0].caption
    assert "learning rate 0.1 reaches" in shown.headline


def test_a_figure_draws_the_best_of_many_combinations() -> None:
    shown = compare(planted)
    figure = shown.figures[0]
    assert figure.caption.startswith(
        "7 of 12 combinations: the winner by validation loss at each ε, then those with the best rank averaged"
    )
    assert figure.svg.count(" · C = ") >= 7
    assert "sgd · 0.1 · C = 1" in figure.svg
    assert "yogi · 0.01 · C = 3" not in figure.svg
    few = compare(planted, columns=("optimizer", "learning_rate"))
    assert "Error bars: one standard deviation over 4 seeds" in few.figures[0].caption
    assert "yogi · 0.01" in few.figures[0].svg


def test_a_figure_has_the_winner_of_every_budget() -> None:
    """At ε = 8 the combination that is worst at ε = 1 wins."""

    def loss(trial: Trial) -> float:
        worst = (trial.optimizer, trial.learning_rate, trial.l2_clip_norm) == ("yogi", 0.01, 3.0)
        return 0.15 if worst and trial.epsilon == 8 else planted(trial)

    assert "yogi · 0.01 · C = 3" in compare(loss).figures[0].svg


def test_no_columns_is_a_table_of_one_method() -> None:
    shown = compare(planted, columns=())
    (table,) = shown.tables
    assert rows_of(table) == {"DP-SGD": {"ε = 1": text_of(1 - 0.221), "ε = 8": text_of(1 - 0.2035)}}
    assert (list(table.columns), table.title) == (["mechanism", "ε = 1", "ε = 8"], "AUC by mechanism and ε")
    assert shown.findings == []
    assert shown.notes == []
    assert shown.headline.startswith("pCTR, test AUC: at ε = 1 DP-SGD reaches 0.7640")


BOTH = SWEEP._replace(
    methods=[*settings(learning_rate=RATES, l2_clip_norm=[1.0, 3.0]), *settings(of_labels, learning_rate=RATES)]
)


def test_both_mechanisms_side_by_side() -> None:
    """LabelDP has no clip norm, and is 0.2 worse."""
    shown = compare(lambda trial: planted(trial) + 0.2 * (trial.mechanism == "label_dp"), BOTH, COLUMNS[1:])
    table = shown.tables[0]
    assert list(table.columns[:3]) == ["mechanism", "learning rate", "clip norm C"]
    rows = {tuple(row[:3]): row[3:] for row in table_rows(shown)}
    assert rows["LabelDP", "0.1", "–"] == [text_of(1 - 0.42), text_of(1 - 0.4025)]
    assert rows["DP-SGD", "0.1", "3"] == [text_of(1 - 0.223), text_of(1 - 0.2055)]
    assert len(rows) == 6 + 3
    assert "at ε = 1 DP-SGD · learning rate 0.1 · C = 1 reaches" in shown.headline
    assert "DP-SGD · learning rate 0.1 · C = 3" in shown.figures[0].svg
    assert "LabelDP · learning rate 0.1" in shown.figures[0].svg
    assert shown.findings[0].claim == "At ε = 1, the mechanism matters: DP-SGD is better than LabelDP"
    assert f"{text_of(1 - 0.221)} with DP-SGD, {text_of(1 - 0.42)} with LabelDP" in shown.findings[0].evidence
    levels = [row[1] for row in table_rows(shown, 1) if row[0] == "clip norm C"]
    assert levels == ["1", "3", "difference"], "only of the mechanism that clips"
    # A sampler or a microbatch size is no setting of LabelDP either, though its trials carry one.
    sizes = compare(planted, BOTH, ("microbatch_size",))
    assert [row[:2] for row in table_rows(sizes)] == [["LabelDP", "–"], ["DP-SGD", "1"]]


def test_both_mechanisms_without_columns() -> None:
    shown = compare(lambda trial: planted(trial) + 0.2 * (trial.mechanism == "label_dp"), BOTH, ())
    assert list(rows_of(shown.tables[0])) == ["DP-SGD", "LabelDP"]
    assert {row[0] for row in table_rows(shown, 1)} == {"mechanism"}


def test_several_tasks_have_tables_and_figures_of_their_own() -> None:
    tasks = ("pctr", "pconvs")
    sweeping = SWEEP._replace(
        baselines=settings(baseline, task=tasks), methods=settings(task=tasks, l2_clip_norm=[1.0, 3.0])
    )
    shown = compare(planted, sweeping, ("l2_clip_norm",))
    assert [table.name for table in shown.tables] == [
        *("table", "table_pconvs", "settings_that_matter", "settings_that_matter_pconvs")
    ]
    assert [figure.name for figure in shown.figures] == ["figure", "figure_pconvs"]
    assert shown.tables[1].title == "pConvs: Poisson log loss by clip norm C and ε"
    assert table_rows(shown, 1)[0] == ["1", text_of(0.221, task="pconvs"), text_of(0.2035, task="pconvs")]
    assert [finding.claim.split(":")[0] for finding in shown.findings] == ["pCTR", "pCTR", "pConvs", "pConvs"]
    assert "; pConvs, test Poisson log loss, chosen by validation: at ε = 1 C = 1 reaches" in shown.headline


@pytest.mark.parametrize("task", ["pctr", "pconvs"])
def test_a_value_that_always_diverges_matters_most(task: str) -> None:
    def loss(trial: Trial) -> float | None:
        return None if trial.learning_rate == 1.0 and trial.epsilon is not None else planted(trial)

    change = functools.partial(functools.partial, task=task)
    sweeping = SWEEP._replace(baselines=list(map(change, SWEEP.baselines)), methods=list(map(change, SWEEP.methods)))
    shown = compare(loss, sweeping)
    assert sum(cell.text == "diverged" for row in shown.tables[0].rows for cell in row) == 4 * 2
    assert ["learning rate", "1", "diverged", "diverged"] in table_rows(shown, 1)
    assert shown.findings[0].claim == "At ε = 1, the learning rate matters: 0.1 is better than 0.01"
    assert "training diverges with 1;" in shown.findings[0].evidence
    assert verdicts(shown) == ["shown", "shown"], "0.1 is better than 0.01"
    only = SWEEP._replace(methods=settings(learning_rate=[0.1, 1.0]))
    shown = compare(loss, only, ("learning_rate",))
    assert shown.findings[0].evidence == f"AUC {text_of(1 - 0.221)} with 0.1; training diverges with 1"
    assert shown.findings[0].claim.endswith("the learning rate matters: training diverges with 1, but not with 0.1")
    assert verdicts(shown) == ["shown", "shown"]


def test_where_everything_diverges() -> None:
    shown = compare(lambda trial: None if trial.epsilon is not None else 0.1)
    assert "at ε = 1 every method diverges" in shown.headline
    assert shown.findings == []
    for columns in ((), COLUMNS[:1]):
        assert "every method diverges" in compare(lambda t: None if t.epsilon else 0.1, columns=columns).headline


def test_one_seed_shows_nothing_for_sure() -> None:
    shown = compare(planted, SWEEP._replace(seeds=1))
    assert set(verdicts(shown)) == {"within noise"}
    assert "±" not in "".join(cell.text for table in shown.tables for row in table.rows for cell in row)
    only = SWEEP._replace(methods=settings(learning_rate=[0.1, 1.0]), seeds=1)
    diverging = compare(lambda t: None if t.learning_rate == 1.0 else planted(t), only, ("learning_rate",))
    assert set(verdicts(diverging)) == {"within noise"}


def test_one_budget() -> None:
    shown = compare(planted, SWEEP._replace(epsilons=(3.0,)))
    assert list(shown.tables[0].columns)[3:] == ["ε = 3"]
    assert [finding.claim for finding in shown.findings] == [
        "At ε = 3, the learning rate matters: 0.1 is better than 0.01"
    ]
    assert shown.headline.count("at ε = ") == 1
    figure = shown.figures[0]
    assert figure.title == "Test AUC at ε = 3"
    assert "rank by validation loss" in figure.svg
    assert compare(lambda t: None if t.epsilon else 0.1, SWEEP._replace(epsilons=(3.0,))).figures


def test_one_value_for_each_column_has_nothing_to_compare() -> None:
    shown = compare(planted, SWEEP._replace(methods=settings(learning_rate=[0.1])))
    assert len(shown.tables) == 1
    assert table_rows(shown) == [["sgd", "0.1", "1", text_of(1 - 0.221), text_of(1 - 0.2035)]]
    assert shown.findings == []


def test_zipped_columns_count_as_one_setting() -> None:
    methods = [
        functools.partial(private, task="pctr", batch_size=size, epochs=epochs, l2_clip_norm=clip)
        for (size, epochs), clip in itertools.product([(1024, 8), (8192, 32)], [1.0, 3.0])
    ]
    shown = compare(
        lambda trial: planted(trial) - 0.05 * (trial.batch_size == 8192),
        SWEEP._replace(methods=methods),
        ("batch_size", "l2_clip_norm", "epochs"),
        together=("batch_size", "epochs"),
    )
    assert list(shown.tables[0].columns[:3]) == ["batch size", "clip norm C", "epochs"]
    assert {row[0] for row in table_rows(shown, 1)} == {"batch size and epochs", "clip norm C"}
    assert "8,192 and 32" in [row[1] for row in table_rows(shown, 1)]
    assert "the batch size and the number of epochs matter: 8,192 and 32 is better than" in shown.findings[0].claim
    assert "zipped" in shown.notes[-1]


def test_a_setting_that_applies_to_some_combinations_only() -> None:
    """A quantile belongs to adaptive clipping."""
    methods = [
        *settings(clipping=["fixed"]),
        *settings(clipping=["adaptive"], clip_quantile=[0.5, 0.9]),
    ]
    shown = compare(
        lambda trial: planted(trial) + 0.1 * (trial.clip_quantile == 0.5),
        SWEEP._replace(methods=methods),
        ("clipping", "clip_quantile"),
    )
    assert [row[:2] for row in table_rows(shown)] == [["fixed", "–"], ["adaptive", "0.9"], ["adaptive", "0.5"]]
    assert shown.headline.startswith("pCTR, test AUC, chosen by validation: at ε = 1 fixed clipping reaches")
    assert [row[1] for row in table_rows(shown, 1) if row[0] == "clip quantile"] == ["0.5", "0.9", "difference"]


def test_models_are_told_apart_by_their_layers() -> None:
    models = [MLPSpec(hidden_layers=(8,)), MLPSpec(hidden_layers=(16, 8)), DCNv2Spec(hidden_layers=(8,))]

    def loss(trial: Trial) -> float:
        return planted(trial) + 0.01 * len(trial.model.layers)

    shown = compare(loss, SWEEP._replace(methods=settings(learning_rate=[0.1], model=models)), ("model",))
    names = ["mlp, layers 8", "mlp, layers 16-8", "dcn_v2, layers 8"]
    assert {row[0] for row in table_rows(shown)} == set(names)
    assert [row[1] for row in table_rows(shown, 1)] == [*names, "difference"]
    assert {row["model"] for row in csv_of(shown.tables[0])} >= set(names)
