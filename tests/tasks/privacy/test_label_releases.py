"""Publishing LabelDP models: trainings on one draw of responses cost it once, other draws add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.cli import main
from tasks.data.prepared import Prepared
from tasks.privacy.releases import releases
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tests.support.label_trials import run_once
from tests.support.records import record
from tests.support.trials import label_trial, make_prepared, make_trial


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("labels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


def test_models_of_one_draw_cost_once_and_of_two_add_up(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    first, faster, debiased = (
        label_trial(prepared, **change) for change in ({}, {"learning_rate": 0.05}, {"debias": True})
    )
    other_seed, larger = label_trial(prepared, seed=1), label_trial(prepared, epsilon=3.0)
    for trial in (first, faster, debiased, other_seed, larger):
        run_once(trial, prepared)
    (one,) = releases([first.key])
    assert (one["epsilon"], one["delta"], one["protects"]) == (pytest.approx(2), 0.0, "labels")
    (same,) = releases([first.key, faster.key, debiased.key])
    assert same["epsilon"] == one["epsilon"]
    assert same["trials"] == [first.key, faster.key, debiased.key]
    (two,) = releases([first.key, faster.key, other_seed.key])
    assert two["epsilon"] == pytest.approx(4)
    (three,) = releases([first.key, other_seed.key, larger.key])
    assert three["epsilon"] == pytest.approx(7)
    assert main(["releases", first.key, other_seed.key]) == 0
    assert "publishing 2 models has ε = 4.0000 at δ = 0 for labels only" in capsys.readouterr().out


def test_budgets_that_kept_every_label_can_be_published_together(prepared: Prepared) -> None:
    trials = [label_trial(prepared, epsilon=epsilon) for epsilon in (25.0, 30.0)]
    for trial in trials:
        run_once(trial, prepared)
    (both,) = releases([trial.key for trial in trials])
    assert both["epsilon"] == pytest.approx(55, rel=1e-3)


def test_examples_and_labels_have_no_common_epsilon(prepared: Prepared) -> None:
    labels, examples = label_trial(prepared), make_trial(prepared, seed=71)
    run_once(labels, prepared)
    stored = {"trial": examples.model_dump(mode="json"), "mechanism": record(examples=2400).to_json()}
    write_json(examples.folder / "record.json", stored)
    with pytest.raises(UserError, match=r"protect whole examples \(dp_sgd\) and others only labels \(label_dp\)"):
        releases([labels.key, examples.key])
