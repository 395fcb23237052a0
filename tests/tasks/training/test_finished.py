"""Finished trials: one folder, written whole, and each of its files parsed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tasks.training.finished
from dp_core.labels.record import LabelRecord
from dp_core.models.spec import MLPSpec
from tasks.data.prepared import Prepared
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, short_hash, write_json
from tasks.training.finished import FinishedTrial, is_trained, write_finished
from tasks.training.trial import TRAINING_VERSION
from tests.support.records import record
from tests.support.trials import label_trial, make_prepared, make_trial, without_privacy


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were parsed."""
    names: list[str] = []

    def read(path: Path) -> Any:
        names.append(path.name)
        return read_json(path)

    monkeypatch.setattr(tasks.training.finished, "read_json", read)
    return names


def stored(trial: Any, **values: Any) -> dict[str, Any]:
    return {"trial": trial.model_dump(mode="json"), "mechanism": None, **values}


def test_a_finished_trial_round_trips(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    assert not is_trained(trial)
    evidence: Any = {"sampling": {"sizes": [3]}, "probe": None, "canaries": None}
    parameters = {"hidden_0": {"kernel": np.ones((2, 3), np.float32), "bias": np.zeros(3, np.float32)}}
    write_finished(trial, stored(trial, mechanism=record().to_json()), evidence, parameters)  # type: ignore[arg-type]
    assert is_trained(trial)
    finished = FinishedTrial.open(trial.key)
    assert finished == FinishedTrial.open(trial)
    assert finished.trial == trial
    assert finished.mechanism == record()
    assert finished.evidence == evidence
    with np.load(finished.folder / "parameters.npz") as file:
        assert set(file) == {"hidden_0/kernel", "hidden_0/bias"}
        np.testing.assert_array_equal(file["hidden_0/kernel"], np.ones((2, 3)))


def test_a_folder_is_written_whole_or_not_at_all(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    unwritable: Any = {"sampling": float("nan")}
    with pytest.raises(ValueError, match="JSON"):
        write_finished(trial, stored(trial), unwritable, {"output": {"bias": np.zeros(1)}})  # type: ignore[arg-type]
    assert not is_trained(trial)
    assert not trial.folder.exists()
    assert list(trial.folder.parent.iterdir()) == []


def test_each_file_is_parsed_once(prepared: Prepared, parsed: list[str]) -> None:
    trial = make_trial(prepared)
    write_json(trial.folder / "record.json", stored(trial, test_loss=0.5))
    write_json(trial.folder / "audit.json", {"verdict": "passed"})
    for _ in range(3):
        finished = FinishedTrial.open(trial)
        assert finished.record["test_loss"] == 0.5
        assert finished.mechanism is None
        assert finished.trial == trial
        assert finished.audit["verdict"] == "passed"
    assert sorted(parsed) == ["audit.json", "record.json"]


def test_a_file_that_is_replaced_is_parsed_again(prepared: Prepared) -> None:
    """Also by one of the same length within the clock's resolution: nothing stale is served."""
    trial = make_trial(prepared)
    for number in range(50):
        write_json(trial.folder / "record.json", stored(trial, steps=100 + number))
        assert FinishedTrial.open(trial).record["steps"] == 100 + number
    finished = FinishedTrial.open(trial)
    for verdict in ("passed", "failed", "passed"):
        result: Any = {"verdict": verdict}
        finished.write_audit(result, f"It {verdict}.")
        assert finished.audit == result
        assert finished.statement.read_text() == f"It {verdict}."


def test_a_trial_that_is_not_trained_has_no_folder_to_open(prepared: Prepared) -> None:
    with pytest.raises(UserError, match="no trained trial has the key 'nothing'"):
        FinishedTrial.open("nothing")
    with pytest.raises(UserError, match=r"there is no .*record\.json"):
        FinishedTrial.open(make_trial(prepared))


def test_a_damaged_record_is_named(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    write_json(trial.folder / "record.json", {"mechanism": None})
    with pytest.raises(UserError, match=r"record\.json is damaged: it has no 'trial'"):
        _ = FinishedTrial.open(trial).trial
    (trial.folder / "record.json").write_text('{"trial": ')
    with pytest.raises(UserError, match=r"record\.json is damaged: it is not JSON"):
        _ = FinishedTrial.open(trial).record


def test_a_models_number_does_not_hide_a_setting_of_the_trial(prepared: Prepared) -> None:
    class Seeded(MLPSpec):
        seed: int = 17
        factors: int = 2

    trial = make_trial(prepared)
    flat = trial.model_copy(update={"model": Seeded(hidden_layers=(4,))}).flat_settings()
    assert (flat["seed"], flat["model_seed"], flat["factors"], flat["model"]) == (trial.seed, 17, 2, "mlp")
    assert set(flat) - set(trial.flat_settings()) == {"model_seed", "factors"}


def test_missing_evidence_is_none(prepared: Prepared) -> None:
    trial = make_trial(prepared)
    write_json(trial.folder / "record.json", stored(trial))
    assert FinishedTrial.open(trial).evidence is None


def test_the_mechanism_is_of_the_kind_that_the_trial_has(prepared: Prepared) -> None:
    ran = LabelRecord(
        kind="binary",
        examples=2400,
        values=(0.0, 1.0),
        starts=(0, 1),
        keep_probability=0.9,
        histogram_epsilon=0.0,
        debiased=False,
        draw="a draw",
    )
    trial = label_trial(prepared)
    write_json(trial.folder / "record.json", stored(trial, mechanism=ran.to_json()))
    assert FinishedTrial.open(trial).mechanism == ran
    baseline = without_privacy(prepared)
    write_json(baseline.folder / "record.json", stored(baseline))
    assert FinishedTrial.open(baseline).mechanism is None


def written(trial: Any, **values: Any) -> FinishedTrial:
    evidence: Any = {"sampling": {"sizes": [3]}}
    parameters = {"hidden_0": {"kernel": np.ones((2, 3), np.float32)}}
    write_finished(trial, stored(trial, test_loss=0.5, **values), evidence, parameters)  # type: ignore[arg-type]
    return FinishedTrial.open(trial)


def test_a_trial_gets_its_public_name_when_it_is_written(prepared: Prepared) -> None:
    finished = written(make_trial(prepared))
    assert (finished.folder / "public_name.txt").read_text().strip() == finished.public_name
    assert len(finished.public_name) == 16


def test_a_record_belongs_to_its_key(prepared: Prepared) -> None:
    one, other = written(make_trial(prepared)), written(make_trial(prepared, seed=1))
    parked = one.folder.with_name("parked")
    one.folder.rename(parked)
    other.folder.rename(one.folder)
    parked.rename(other.folder)
    for finished in (FinishedTrial.open(one.folder.name), FinishedTrial.open(other.folder.name)):
        with pytest.raises(UserError, match=r"record\.json is the record of another trial than .* Delete .* run again"):
            _ = finished.record


def test_the_key_may_be_of_an_earlier_version_of_the_training_code(prepared: Prepared) -> None:
    described = make_trial(prepared).model_dump(mode="json")
    folder = make_trial(prepared).folder.with_name(short_hash([TRAINING_VERSION - 1, described]))
    write_json(folder / "record.json", {"trial": described, "mechanism": None})
    assert FinishedTrial.open(folder.name).record["trial"] == described


@pytest.mark.parametrize("name", ["record.json", "evidence.json", "parameters.npz", "public_name.txt"])
def test_a_changed_or_missing_file_is_named(prepared: Prepared, name: str) -> None:
    trial = make_trial(prepared)
    path = written(trial).folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for ask in (is_trained, FinishedTrial.open):
        with pytest.raises(UserError, match=rf"{name} is damaged: .* Delete the folder {trial.folder} and run again"):
            ask(trial)
    path.unlink()
    with pytest.raises(UserError, match=rf"{name} is missing\. Delete the folder {trial.folder} and run again"):
        is_trained(trial)


def test_a_folder_that_is_no_trial_is_said_before_anything_is_trained(prepared: Prepared) -> None:
    """Training would find the folder in its way at the end, every time."""
    trial = make_trial(prepared)
    trial.folder.mkdir(parents=True)
    with pytest.raises(UserError, match=r"is no finished trial: there is no .*record\.json\. Delete "):
        is_trained(trial)
    trial.folder.rmdir()
    trial.folder.write_text("a file")
    with pytest.raises(UserError, match=r"is no finished trial: there is no .*record\.json\. Delete "):
        is_trained(trial)


def test_an_audit_is_of_the_files_beside_it(prepared: Prepared) -> None:
    result: Any = {"verdict": "passed", "epsilon": 0.998}
    one, other = written(make_trial(prepared)), written(make_trial(prepared, seed=1))
    for finished in (one, other):
        finished.write_audit(result, "It passed.")
        assert finished.audit == result
    path, again = one.folder / "audit.json", "Delete it and run `python -m tasks audit` again"
    whole = path.read_text()
    for text in (whole.replace("0.998", "0.123"), json.dumps(result), "[]", "", (other.folder / path.name).read_text()):
        path.write_text(text)
        with pytest.raises(UserError, match=again if text.startswith("{") else "is damaged"):
            _ = one.audit
    path.write_text(whole)
    one.statement.write_text("It Passed.")
    with pytest.raises(UserError, match=rf"privacy_statement\.md is not the one that audit\.json is about\. {again}"):
        _ = one.audit
    one.write_audit(result, "It passed.")
    assert one.audit == result


def test_damaged_segments_are_computed_again(prepared: Prepared, capsys: pytest.CaptureFixture[str]) -> None:
    finished, facts = written(make_trial(prepared)), [{"name": "red", "rows": 3, "auc": 0.75}]
    path = finished.folder / "segments.json"
    for damage in ("0.25", "", "{"):
        finished.write_segments("color", facts)  # type: ignore[arg-type]
        assert finished.read_segments("color") == facts
        assert capsys.readouterr().out == ""
        path.write_text(path.read_text().replace("0.75", damage) if damage == "0.25" else damage)
        assert finished.read_segments("color") is None
        assert f"{path} is damaged" in capsys.readouterr().out
        assert not path.exists()
