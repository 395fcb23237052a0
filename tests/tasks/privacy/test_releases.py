"""Publishing several models of the same data costs more than publishing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease
from tasks.cli import main
from tasks.data.prepared import Prepared
from tasks.privacy.releases import releases
from tasks.runtime.errors import UserError
from tasks.runtime.home import write_json
from tasks.training.trial import Trial
from tests.support.trials import make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def stored(trial: Trial, **changes: Any) -> Trial:
    values: dict[str, Any] = {"examples": 2400, "expected_batch_size": 100, "max_batch_size": 200, "steps": 48}
    record = MechanismRecord(sampler="poisson", noise_multiplier=2.0, l2_clip_norm=1.0, **{**values, **changes})
    mechanism = None if trial.epsilon is None else record.to_json()
    write_json(trial.folder / "record.json", {"trial": trial.model_dump(mode="json"), "mechanism": mechanism})
    return trial


def test_models_of_one_dataset_add_up_and_of_two_do_not(prepared: Prepared) -> None:
    first, second = (stored(make_trial(prepared, seed=seed)) for seed in (0, 1))
    other = stored(make_trial(prepared, dataset="other_clicks"))
    (one,) = releases([first.key])
    (two,) = releases([first.key, second.key])
    assert one["epsilon"] < two["epsilon"] < 2 * one["epsilon"]
    # Two runs of the same mechanism cost the same as one of twice the length.
    (long,) = releases([stored(make_trial(prepared, seed=2), steps=96).key])
    assert two["epsilon"] == pytest.approx(long["epsilon"], rel=1e-3)
    assert [item["dataset"] for item in releases([first.key, other.key])] == ["tiny_clicks", "other_clicks"]
    assert releases([first.key, first.key]) == [one]


def test_a_private_vocabulary_that_models_share_is_paid_for_once(prepared: Prepared) -> None:
    shared = VocabularyRelease(5.0, 1e-6, "first draw")
    keys = [stored(make_trial(prepared, seed=seed), vocabulary=shared).key for seed in (0, 1)]
    # The same logs prepared again have the same numbers but other noise.
    another = stored(make_trial(prepared, seed=2), vocabulary=shared._replace(draw="second draw")).key
    (two,) = releases(keys)
    (without,) = releases([stored(make_trial(prepared, seed=seed)).key for seed in (3, 4)])
    (mixed,) = releases([keys[0], another])
    assert without["epsilon"] < two["epsilon"] < mixed["epsilon"]


def test_what_cannot_be_published(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = stored(without_privacy(prepared))
    with pytest.raises(UserError, match="has no privacy guarantee"):
        releases([baseline.key])
    with pytest.raises(UserError, match="no trained trial has the key 'nothing'"):
        releases(["nothing"])
    assert main(["releases", stored(make_trial(prepared)).key]) == 0
    assert "tiny_clicks: publishing 1 model has ε = " in capsys.readouterr().out
