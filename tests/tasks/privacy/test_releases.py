"""Publishing several models of the same data costs more than publishing one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease
from dp_core.labels.record import LabelRecord
from tasks.cli import main
from tasks.data.prepared import Prepared
from tasks.privacy.guarantees import no_guarantee
from tasks.privacy.releases import releases
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.training.finished import FinishedTrial
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tests.support.records import store
from tests.support.trials import label_trial, make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


def stored(trial: Trial, verdict: str | None = "passed", test_loss: float | None = 0.2, **changes: Any) -> Trial:
    values: dict[str, Any] = {"examples": 2400, "expected_batch_size": 100, "max_batch_size": 200, "steps": 48}
    record = MechanismRecord(sampler="poisson", noise_multiplier=2.0, l2_clip_norm=1.0, **{**values, **changes})
    return store(trial, None if trial.epsilon is None else record, verdict=verdict, test_loss=test_loss)


def secret_trial(prepared: Prepared, **changes: Any) -> Trial:
    return make_trial(prepared, randomness="secret", **changes)


def test_models_of_one_dataset_add_up_and_of_two_do_not(prepared: Prepared) -> None:
    first, second = (stored(secret_trial(prepared, seed=seed)) for seed in (0, 1))
    other = stored(secret_trial(prepared, dataset="other_clicks"))
    (one,) = releases([first.key])
    (two,) = releases([first.key, second.key])
    assert one["epsilon"] < two["epsilon"] < 2 * one["epsilon"]
    # Two runs of the same mechanism cost the same as one of twice the length.
    (long,) = releases([stored(secret_trial(prepared, seed=2), steps=96).key])
    assert two["epsilon"] == pytest.approx(long["epsilon"], rel=1e-3)
    assert [item["dataset"] for item in releases([first.key, other.key])] == ["tiny_clicks", "other_clicks"]
    assert releases([first.key, first.key]) == [one]


def test_a_private_vocabulary_that_models_share_is_paid_for_once(prepared: Prepared) -> None:
    shared = VocabularyRelease(5.0, 1e-6, "first draw")
    keys = [stored(secret_trial(prepared, seed=seed), vocabulary=shared).key for seed in (0, 1)]
    # The same logs prepared again have the same numbers but other noise.
    another = stored(secret_trial(prepared, seed=2), vocabulary=shared._replace(draw="second draw")).key
    (two,) = releases(keys)
    (without,) = releases([stored(secret_trial(prepared, seed=seed)).key for seed in (3, 4)])
    (mixed,) = releases([keys[0], another])
    assert without["epsilon"] < two["epsilon"] < mixed["epsilon"]


def test_what_cannot_be_published(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    baseline = stored(without_privacy(prepared))
    with pytest.raises(UserError, match=r"no privacy guarantee.*\n.*it is a non-private baseline"):
        releases([baseline.key])
    with pytest.raises(UserError, match="no trained trial has the key 'nothing'"):
        releases(["nothing"])
    assert main(["releases", stored(secret_trial(prepared)).key]) == 0
    assert "tiny_clicks: publishing 1 model has ε = " in capsys.readouterr().out


def test_trials_without_a_guarantee_are_named_with_what_to_do(prepared: Prepared) -> None:
    """Seeded trials share noise that can be subtracted; one that diverged, or failed, promises nothing."""
    seeded = [stored(make_trial(prepared, seed=seed)) for seed in (0, 1)]
    diverged = stored(secret_trial(prepared, seed=2), verdict="diverged", test_loss=None)
    failed = stored(secret_trial(prepared, seed=3), verdict="failed")
    unaudited = stored(secret_trial(prepared, seed=4), verdict=None)
    good = stored(secret_trial(prepared, seed=5))
    expected = {
        seeded[0].key: "train with `randomness: secret`",
        seeded[1].key: "train with `randomness: secret`",
        diverged.key: "it diverged",
        failed.key: "its audit failed",
        unaudited.key: "it was not audited",
    }
    for key, why in expected.items():
        with pytest.raises(UserError, match=why):
            releases([good.key, key])
    with pytest.raises(UserError) as refused:
        releases([good.key, *expected])
    lines = str(refused.value).splitlines()[1:]
    assert len(lines) == len(expected)
    for line, (key, why) in zip(lines, expected.items(), strict=True):
        assert line.startswith(f"trial {key} (")
        assert why in line
    assert main(["releases", seeded[0].key]) != 0


def test_a_label_model_that_diverged_may_be_published(prepared: Prepared) -> None:
    """What LabelDP releases are the responses; a training on them costs nothing more, however it ends."""
    response = LabelRecord(
        kind="binary",
        examples=2400,
        values=(0.0, 1.0),
        starts=(0, 1),
        keep_probability=0.75,
        histogram_epsilon=0.0,
        debiased=False,
        draw="first",
    )
    (only,) = releases([store(label_trial(prepared, randomness="secret"), response, test_loss=None).key])
    assert only["protects"] == "labels"


def test_secret_trials_that_were_trained_and_audited_can_be_published(prepared: Prepared) -> None:
    keys = []
    for seed in (0, 1):
        trial = secret_trial(prepared, seed=seed, noise_multiplier=2.0, epochs=1)
        run_trial(trial, prepared)
        finished = FinishedTrial.open(trial)
        evidence = finished.evidence
        assert evidence is not None
        finished.write_audit(*judge(trial, finished.record, evidence, name=finished.public_name))
        assert no_guarantee(finished) is None
        assert finished.public_name in finished.statement.read_text()
        keys.append(trial.key)
    (both,) = releases(keys)
    (one,) = releases(keys[:1])
    assert one["epsilon"] < both["epsilon"] < 8.0
