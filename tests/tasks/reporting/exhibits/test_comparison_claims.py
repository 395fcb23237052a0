"""What the general exhibit claims is what was chosen, measured and tested."""

from __future__ import annotations

import functools

import pytest

from dp_core.models.spec import DCNv2Spec, MLPSpec
from tasks.reporting.exhibits.common import Exhibit
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, verdicts
from tests.support.sweeps import Sweeping, baseline, of_labels, private, settings, show

RATES_AND_CLIPS = Sweeping(settings(baseline), settings(learning_rate=[0.01, 0.1], l2_clip_norm=[1.0, 3.0]))
COLUMNS = ("learning_rate", "l2_clip_norm")


def compare(loss: object, sweeping: Sweeping, columns: tuple[str, ...], **options: object) -> Exhibit:
    return show("clip_norm", loss, sweeping, exhibit="comparison", columns=columns, paper={}, **options)  # type: ignore[arg-type]


def disagreeing(trial: Trial) -> float:
    """On the test split, the clip norm's best value is the one that validation likes least."""
    return 0.2 + 0.01 * (trial.learning_rate == 0.01) - 0.03 * (trial.l2_clip_norm == 3.0)


def by_validation(trial: Trial) -> float:
    return 0.2 + 0.01 * (trial.learning_rate == 0.01) + 0.02 * (trial.l2_clip_norm == 3.0)


def test_the_headline_is_of_what_validation_chose() -> None:
    """C = 3 has a higher AUC, but validation chose C = 1, and nothing calls that the best."""
    shown = compare(disagreeing, RATES_AND_CLIPS, COLUMNS, validation=by_validation)
    assert "chosen by validation: at ε = 1 learning rate 0.1 · C = 1 reaches 0.7850" in shown.headline
    assert "best" not in shown.headline
    assert "best test" not in "".join(table.caption for table in shown.tables)


def test_one_difference_ranks_settings_everywhere() -> None:
    """Between C = 1 and C = 3 the difference is −0.03, not a spread of 0.03: it is below the learning rate's 0.01."""
    shown = compare(disagreeing, RATES_AND_CLIPS, COLUMNS, validation=by_validation)
    rows = [[cell.text for cell in row] for row in shown.tables[1].rows]
    assert [row for row in rows if row[1] == "difference"] == [
        ["learning rate", "difference", "0.0100", "0.0100"],
        ["clip norm C", "difference", "-0.0300", "-0.0300"],
    ]
    assert {row["difference"] for row in csv_of(shown.tables[1])} == {"0.01", "-0.03"}
    assert shown.findings[0].claim == "At ε = 1, the learning rate matters: 0.1 is better than 0.01"
    assert "next is the clip norm C with a difference of -0.0300 (difference 0.0100" in shown.findings[0].evidence
    assert shown.tables[1].caption.count("The difference is") == 1


def test_a_setting_that_diverges_comes_first_in_table_and_finding() -> None:
    """C = 30 diverges, and the rest of the clip norms differ less than the learning rates do."""

    def loss(trial: Trial) -> float | None:
        if trial.l2_clip_norm == 30.0 and trial.epsilon is not None:
            return None
        return 0.2 + 0.1 * (trial.learning_rate == 0.01) + 0.001 * (trial.l2_clip_norm == 3.0)

    sweeping = RATES_AND_CLIPS._replace(methods=settings(learning_rate=[0.01, 0.1], l2_clip_norm=[1.0, 3.0, 30.0]))
    shown = compare(loss, sweeping, COLUMNS)
    assert shown.tables[1].rows[0][0].text == "clip norm C"
    assert shown.findings[0].claim == "At ε = 1, the clip norm C matters: 1 is better than 3"
    assert "training diverges with 30; next is the learning rate" in shown.findings[0].evidence


def test_one_seed_marks_nothing_as_noise() -> None:
    shown = compare(disagreeing, RATES_AND_CLIPS._replace(seeds=1), COLUMNS)
    assert "≈" not in "".join(cell.text for table in shown.tables for row in table.rows for cell in row)
    for table in shown.tables:
        assert "One seed cannot show what is noise." in table.caption
        assert "t-test" not in table.caption
    assert "Each cell is one training." in shown.tables[0].caption
    assert "Error bars" not in shown.figures[0].caption
    assert set(verdicts(shown)) == {"within noise"}
    chosen = compare(disagreeing, RATES_AND_CLIPS._replace(seeds=1), COLUMNS[:1])
    assert "Each cell is one training, which validation loss chose out of 2." in chosen.tables[0].caption


@pytest.mark.parametrize(("columns", "said"), [(("batch_size",), True), (("batch_size", "epochs"), False)])
def test_zipped_settings_that_are_no_column_are_named(columns: tuple[str, ...], said: bool) -> None:
    methods = [
        functools.partial(private, task="pctr", batch_size=size, epochs=epochs)
        for size, epochs in ((512, 1), (1024, 8))
    ]
    sweeping = RATES_AND_CLIPS._replace(methods=methods)
    shown = compare(lambda trial: 0.2 + 0.1 / trial.epochs, sweeping, columns, together=("batch_size", "epochs"))
    sentence = "Epochs change with the batch size (`together`)"
    assert (sentence in shown.tables[0].caption) == said
    assert (sentence in " ".join(shown.notes)) == said


def test_debiasing_in_words() -> None:
    sweeping = RATES_AND_CLIPS._replace(methods=settings(of_labels, debias=[False, True]))
    shown = compare(lambda trial: 0.2 + 0.1 * (trial.debias is False), sweeping, ("debias",))
    assert shown.tables[0].title == "AUC by debiasing and ε"
    assert shown.findings[0].claim == "At ε = 1, debiasing matters: debiased is better than not debiased"
    assert "when debiased, 0.6850 ± 0.0129 when not debiased" in shown.findings[0].evidence


def test_one_epoch_and_layers_in_words() -> None:
    methods = settings(
        epochs=[1.0, 2.0], model=[MLPSpec(hidden_layers=(8,)), DCNv2Spec(cross_layers=2, hidden_layers=(8,))]
    )
    shown = compare(lambda trial: 0.2, RATES_AND_CLIPS._replace(methods=methods), ("epochs", "model"))
    methods_named = {row["method"] for row in csv_of(shown.tables[0])}
    assert "1 epoch · mlp, layers 8" in methods_named
    assert "2 epochs · dcn_v2 (cross_layers 2), layers 8" in methods_named
