"""A model without a guarantee gets out by no public way, and the sentence says why."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dp_core.models.digest import parameters_digest
from tasks.cli import main
from tasks.config.loading import load_config
from tasks.data.prepared import Prepared
from tasks.days import deliveries
from tasks.days.deliveries import DeliveredFile
from tasks.ledger.book import Ledger
from tasks.nights.budgets import charged_budget, raw_files
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json, write_json
from tasks.runtime.tracking import open_client
from tasks.serving.guard import require_guarantee, why_not_released
from tasks.serving.packaging import log_model, save_model
from tasks.serving.registry import register, set_champion, versions
from tasks.training.finished import FinishedTrial
from tests.support.trials import without_privacy
from tests.tasks.ledger.support import JANUARY, TOTAL, metric
from tests.tasks.serving.conftest import Made
from tests.tasks.serving.tiny_log import NAME, describe, finish, log_rows, prepare_log, secret_trial

Spoil = Callable[[Prepared], FinishedTrial]


def seeded(prepared: Prepared) -> FinishedTrial:
    return finish(secret_trial(prepared).model_copy(update={"randomness": "seeded"}), prepared)


def not_private(prepared: Prepared) -> FinishedTrial:
    return finish(without_privacy(prepared, randomness="secret"), prepared)


def failed(prepared: Prepared) -> FinishedTrial:
    return finish(secret_trial(prepared, seed=1), prepared, verdict="failed")


def not_audited(prepared: Prepared) -> FinishedTrial:
    return finish(secret_trial(prepared, seed=2), prepared, verdict=None)


def diverged(prepared: Prepared) -> FinishedTrial:
    return changed(finish(secret_trial(prepared, seed=3), prepared, verdict="diverged"), "record.json", test_loss=None)


def pending(prepared: Prepared) -> FinishedTrial:
    return finish(secret_trial(prepared, seed=4), prepared, releases_the_last_state=False)


def other_parameters(prepared: Prepared) -> FinishedTrial:
    finished = finish(secret_trial(prepared, seed=5), prepared)
    parameters: dict[str, Any] = finished.read_parameters()
    parameters["output/bias"] = parameters["output/bias"] + np.float32(1e-6)
    np.savez(finished.folder / "parameters.npz", **parameters)
    return finished


def no_digest(prepared: Prepared) -> FinishedTrial:
    return finish(secret_trial(prepared, seed=6), prepared, released=None)


def no_evidence(prepared: Prepared) -> FinishedTrial:
    finished = finish(secret_trial(prepared, seed=7), prepared)
    (finished.folder / "evidence.json").unlink()
    return finished


def no_statement(prepared: Prepared) -> FinishedTrial:
    finished = finish(secret_trial(prepared, seed=8), prepared)
    finished.statement.unlink()
    return finished


def no_parameters(prepared: Prepared) -> FinishedTrial:
    finished = finish(secret_trial(prepared, seed=9), prepared)
    (finished.folder / "parameters.npz").unlink()
    return finished


def infinite(prepared: Prepared) -> FinishedTrial:
    return changed(finish(secret_trial(prepared, seed=10), prepared), "audit.json", epsilon=None)


def changed(finished: FinishedTrial, file: str, **values: Any) -> FinishedTrial:
    write_json(finished.folder / file, {**read_json(finished.folder / file), **values})
    return finished


REASONS: dict[Spoil, str] = {
    seeded: "its noise came from a seed",
    not_private: "a non-private baseline",
    failed: "its audit failed",
    not_audited: "it was not audited",
    diverged: "it diverged",
    pending: "noise may be pending",
    other_parameters: "parameters.npz was changed after the training",
    no_digest: "kept no digest",
    no_evidence: "no evidence of its training",
    no_statement: "no privacy_statement.md",
    no_parameters: "it has no parameters.npz",
    infinite: "no finite ε",
}


@pytest.mark.parametrize("spoil", REASONS, ids=lambda spoil: spoil.__name__)
def test_no_public_way_is_open(
    made: Made, run_id: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: Spoil
) -> None:
    finished, why = spoil(made.prepared), REASONS[spoil]
    with pytest.raises(UserError, match=f"cannot be packaged or registered: .*{why}"):
        save_model(finished, made.prepared, made.dataset, tmp_path / "model")
    with pytest.raises(UserError, match=why):
        log_model(finished, made.prepared, made.dataset, mlflow_run=run_id)
    assert main(["register", finished.folder.name, "--name", "spoilt"]) == 2
    assert why in capsys.readouterr().err
    # Nothing was written that someone could register.
    client = open_client()
    assert not (tmp_path / "model").exists()
    assert not client.get_run(run_id).outputs.model_outputs
    assert client.search_logged_models([client.get_run(run_id).info.experiment_id]) == []
    assert client.search_registered_models() == []


def test_a_good_trial_passes(made: Made) -> None:
    assert why_not_released(made.finished) is None
    require_guarantee(made.finished)


def test_a_model_whose_trial_is_found_out_later_cannot_be_registered(own_store: Path, tmp_path: Path) -> None:
    """It was logged while its audit had passed; the registry asks again."""
    client = open_client()
    run = client.create_run(client.create_experiment("later", (own_store / "mlflow/artifacts").as_uri())).info.run_id
    prepared = prepare_log(tmp_path)
    finished = finish(secret_trial(prepared), prepared)
    uri = log_model(finished, prepared, describe("tsv"), mlflow_run=run)
    version = register(uri, "clicks")
    changed(finished, "audit.json", verdict="failed")
    with pytest.raises(UserError, match="its audit failed"):
        register(uri, "another")
    with pytest.raises(UserError, match="its audit failed"):
        set_champion("clicks", version)
    assert [one.aliases for one in versions("clicks")] == [()]


def test_what_we_did_not_package_cannot_be_registered(own_store: Path, tmp_path: Path) -> None:
    """A model that someone logged by hand."""
    client = open_client()
    experiment = client.create_experiment("by hand", (own_store / "mlflow/artifacts").as_uri())
    logged = client.create_logged_model(experiment, "model")
    (tmp_path / "by hand").mkdir()
    (tmp_path / "by hand/MLmodel").write_text("flavors: {}\n")
    client.log_model_artifacts(logged.model_id, str(tmp_path / "by hand"))
    with pytest.raises(UserError, match="is not a released model"):
        register(f"models:/{logged.model_id}", "by_hand")
    # Registered by MLflow's own means, it still does not become the champion of ours.
    client.create_registered_model("by_hand")
    client.create_model_version("by_hand", logged.artifact_location)
    with pytest.raises(UserError, match="is not a released model"):
        set_champion("by_hand", 1)


def test_parameters_of_another_trial_are_found_out(own_store: Path, tmp_path: Path) -> None:
    client = open_client()
    run = client.create_run(client.create_experiment("forged", (own_store / "mlflow/artifacts").as_uri())).info.run_id
    prepared = prepare_log(tmp_path, rows=log_rows(seed=2))
    finished = finish(secret_trial(prepared), prepared)
    uri = log_model(finished, prepared, describe("tsv"), mlflow_run=run)
    folder = next((own_store / "mlflow/artifacts").rglob("data/released"))
    facts = read_json(folder / "model.json")
    parameters: dict[str, Any] = finished.read_parameters()
    parameters["output/bias"] = parameters["output/bias"] + 1
    np.savez(folder / "parameters.npz", **parameters)
    with pytest.raises(UserError, match="is not what was released"):
        register(uri, "forged")
    write_json(folder / "model.json", {**facts, "parameters_digest": parameters_digest(parameters)})
    with pytest.raises(UserError, match="are not those of the trial that it names"):
        register(uri, "forged")
    # A copy with the parameters of the trial that promises something else, or names another trial.
    np.savez(folder / "parameters.npz", **finished.read_parameters())  # type: ignore[arg-type]
    for change, why in (
        ({"epsilon": 0.1}, "the guarantee in .* is not that of the trial"),
        ({"epsilon": float("nan")}, "the guarantee in .* is not that of the trial"),
        ({"covers_vocabulary": True}, "the guarantee in .* is not that of the trial"),
        ({"public_name": "0123456789abcdef"}, "names a trial that is not in .*/trials, so that nothing tells"),
    ):
        (folder / "model.json").write_text(json.dumps({**facts, "guarantee": {**facts["guarantee"], **change}}))
        with pytest.raises(UserError, match=why):
            register(uri, "forged")
    assert open_client().search_registered_models() == []
    write_json(folder / "model.json", {**facts, "guarantee": {**facts["guarantee"], "epsilon": 2.5}})
    assert register(uri, "chosen_from_several_trainings") == 1


def test_what_the_ledger_charges_is_not_registered_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither under the name of a nightly entry, nor a model of a dataset that has a budget."""
    assert main(["register", "0123456789abcdef", "--name", "conversions"]) == 2
    assert "its versions come from its nights, which charge them to the ledger" in capsys.readouterr().err

    class OfNights:
        trial = type("Trial", (), {"dataset": "synthetic_days"})

    monkeypatch.setattr("tasks.training.finished.FinishedTrial.open", lambda key: OfNights)
    assert main(["register", "0123456789abcdef", "--name", "mine"]) == 2
    assert "synthetic_days has a budget in the ledger" in capsys.readouterr().err


def test_what_the_ledger_has_charged_before_is_not_registered_by_hand_either(own_store: Path, tmp_path: Path) -> None:
    """Also when the entry of ``nightly`` is gone, and when an experiment has another name for the files of a day."""
    config = load_config()
    prepared = prepare_log(tmp_path)
    (source,) = raw_files(prepared)
    assert charged_budget(config, NAME, [source]) is None
    file = DeliveredFile(path=source, size=1, modified=1, contents="c", rows=400)
    delivered = {"files": [file], "contents": "c", "rows": 400, "first_seen": "", "missed": None}
    deliveries.record("logs", {**delivered, "day": JANUARY[0], "changes": [], "uses": []})  # type: ignore[typeddict-item]
    assert charged_budget(config, NAME, [source]) is None, "nothing was charged yet"
    Ledger.open().reserve("night", [metric(9.0, JANUARY[0], dataset="logs")], TOTAL)
    assert charged_budget(config, NAME, [source]) == "logs"
    assert charged_budget(config, NAME) is None
    Ledger.open().reserve("another", [metric(9.0, JANUARY[0], dataset=NAME)], TOTAL)
    assert charged_budget(config, NAME) == NAME
    shutil.rmtree(own_store / "data" / NAME / "parts")
    with pytest.raises(UserError, match=f"nothing tells which files .*: prepare {NAME} again"):
        raw_files(prepared)
