"""Publishing LabelDP models: trainings on one draw of responses cost it once, other draws add up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dp_core.labels.record import LabelRecord
from tasks.cli import main
from tasks.data.prepared import Prepared
from tasks.privacy.releases import releases
from tasks.runtime.errors import UserError
from tasks.training.trial import Trial
from tests.support.label_trials import run_once
from tests.support.records import record, store
from tests.support.trials import label_trial, make_prepared, make_trial


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("labels")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield make_prepared(folder / "raw")


def as_if_secret(trial: Trial, prepared: Prepared) -> str:
    """Trains a seeded trial, stores its record as that of a secret one, and returns the key of that one."""
    ran, _ = run_once(trial, prepared)
    secret = trial.model_copy(update={"randomness": "secret"})
    return store(secret, LabelRecord.from_json(ran["mechanism"])).key


def test_models_of_one_draw_cost_once_and_of_two_add_up(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    first, faster, debiased = (
        label_trial(prepared, **change) for change in ({}, {"learning_rate": 0.05}, {"debias": True})
    )
    other_seed, larger = label_trial(prepared, seed=1), label_trial(prepared, epsilon=3.0)
    keys = {trial: as_if_secret(trial, prepared) for trial in (first, faster, debiased, other_seed, larger)}
    with pytest.raises(UserError, match="randomness: secret"):
        releases([first.key])
    (one,) = releases([keys[first]])
    assert (one["epsilon"], one["delta"], one["protects"]) == (pytest.approx(2), 0.0, "labels")
    (same,) = releases([keys[first], keys[faster], keys[debiased]])
    assert same["epsilon"] == one["epsilon"]
    assert same["trials"] == [keys[first], keys[faster], keys[debiased]]
    (two,) = releases([keys[first], keys[faster], keys[other_seed]])
    assert two["epsilon"] == pytest.approx(4)
    (three,) = releases([keys[first], keys[other_seed], keys[larger]])
    assert three["epsilon"] == pytest.approx(7)
    assert main(["releases", keys[first], keys[other_seed]]) == 0
    assert "publishing 2 models has ε = 4.0000 at δ = 0 for labels only" in capsys.readouterr().out


def test_budgets_that_kept_every_label_can_be_published_together(prepared: Prepared) -> None:
    trials = [label_trial(prepared, epsilon=epsilon) for epsilon in (25.0, 30.0)]
    (both,) = releases([as_if_secret(trial, prepared) for trial in trials])
    assert both["epsilon"] == pytest.approx(55, rel=1e-3)


def test_examples_and_labels_have_no_common_epsilon(prepared: Prepared) -> None:
    labels = as_if_secret(label_trial(prepared), prepared)
    examples = store(make_trial(prepared, seed=71, randomness="secret"), record(examples=2400))
    with pytest.raises(UserError, match=r"protect whole examples \(dp_sgd\) and others only labels \(label_dp\)"):
        releases([labels, examples.key])
