"""Rot: a bit is flipped in each file of a finished home in turn, each is truncated, emptied and deleted.

Damage is found and named, or harmless: never a traceback, never another number.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from dp_core.models.digest import parameters_digest
from tasks.cli import main
from tasks.data.prepared import open_prepared
from tasks.privacy.cached_accounting import cache_folder, epsilon_of
from tasks.privacy.verdict import judge
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.training.checkpoint import checkpoint_of
from tasks.training.finished import FinishedTrial, is_trained
from tasks.training.loop import run_trial
from tasks.training.trial import Trial
from tasks.verify import verify
from tests.support.records import record
from tests.support.trials import make_prepared, make_trial, without_privacy

DELTA = 1e-5


class Home(NamedTuple):
    """A small home with prepared data, two audited trials, an unfinished one and a cached answer."""

    prepared: Path
    trials: tuple[Trial, ...]
    unfinished: Trial
    kept: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    folder = tmp_path_factory.mktemp("rot")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        prepared = make_prepared(folder / "raw")
        trials = make_trial(prepared, epochs=0.5), without_privacy(prepared, epochs=0.5)
        for trial in trials:
            run_trial(trial, prepared)
            finished = FinishedTrial.open(trial)
            evidence = finished.evidence
            assert evidence is not None
            result, statement = judge(trial, finished.record, evidence, name=finished.public_name)
            finished.write_audit(result, statement)
            finished.write_segments("color", [{"name": "red", "rows": 3}])  # type: ignore[typeddict-item]
        unfinished = make_trial(prepared, seed=9)
        for steps in (3, 6):
            run_trial(unfinished, prepared, stop_after=steps)
        epsilon_of(record(), DELTA)
        shutil.copytree(home(), folder / "kept", copy_function=shutil.copy2)
        yield Home(prepared.path, trials, unfinished, folder / "kept")


@pytest.fixture
def whole(made: Home) -> Iterator[Home]:
    """The home, as it was made, for one test."""
    yield made
    shutil.rmtree(home())
    shutil.copytree(made.kept, home(), copy_function=shutil.copy2)


def numbers(made: Home) -> Any:
    """What tables, models and statements are made of."""
    prepared = open_prepared(made.prepared)
    seen: list[Any] = [prepared]
    for split in prepared.splits:
        for task in prepared.tasks:
            seen += [part.tobytes() for part in prepared.split(split, task).take(range(100))]
    for trial in made.trials:
        assert is_trained(trial)
        finished = FinishedTrial.open(trial)
        seen += [finished.trial, finished.record, finished.evidence, parameters_digest(finished.read_parameters())]
        seen += [finished.audit, finished.statement.read_text(), finished.public_name]
        # What is thrown away is computed again.
        seen += [finished.read_segments("color") or [{"name": "red", "rows": 3}]]
    return [*seen, epsilon_of(record(), DELTA)]


def outcome(made: Home) -> Any:
    """Returns the numbers, or the message that refuses them; None without an audit, which the next run writes."""
    if not all(FinishedTrial(trial.folder).is_audited for trial in made.trials):
        return None
    try:
        return numbers(made)
    except UserError as error:
        return str(error)


def flip(path: Path, at: float = 0.5) -> None:
    content = bytearray(path.read_bytes())
    content[int(len(content) * at)] ^= 1 << (int(8 * at) % 8)
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    **{f"a bit at {at:.0%}": lambda path, at=at: flip(path, at) for at in (0.0, 0.1, 0.37, 0.5, 0.83, 0.99)},
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "emptied": lambda path: path.write_bytes(b""),
    "deleted": Path.unlink,
}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_named_or_harmless(whole: Home, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    expected = numbers(whole)
    found, harmless = [], []
    folders = [whole.prepared, *(trial.folder for trial in whole.trials), cache_folder()]
    for path in [path for folder in folders for path in files(folder)]:
        content = path.read_bytes()
        DAMAGES[damage](path)
        problems = verify()["problems"]
        seen = outcome(whole)
        if isinstance(seen, str):
            assert str(path) in seen or path.name == "audit.json", (path, seen)
            assert "elete" in seen, "it says what to delete"
            assert any(str(path) in line for line in problems), (path, problems)
            found.append(path.name)
        elif seen is not None:
            assert seen == expected, path
            harmless.append(path.name)
        else:
            assert (damage, path.name) == ("deleted", "audit.json"), path
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    print(f"{damage}: {len(found)} found and named, {len(harmless)} harmless")
    # The cached answer and the segments are made again. Without its manifest, a folder is one of an earlier version.
    made_again = {"segments.json", *(path.name for path in files(whole.kept / "cache" / "accounting"))}
    assert set(harmless) <= made_again | ({"manifest.json"} if damage == "deleted" else set())
    assert len(found) >= 20
    assert numbers(whole) == expected


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_is_whole_or_not_used(whole: Home, damage: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = home() / "trials" / ".unfinished"
    newest = folder / f"{whole.unfinished.key}.6"
    with np.load(newest / "state.npz") as file:
        fresh = [file[f"leaf_{index}"] for index in range(len(file.files))]
    for name in [path.name for path in files(newest)]:
        DAMAGES[damage](newest / name)
        assert any(str(newest) in line for line in verify()["problems"])
        capsys.readouterr()
        _, progress = checkpoint_of(whole.unfinished.key).restore(fresh)
        assert progress.steps == 3
        assert f"the checkpoint {newest} is not used" in capsys.readouterr().out
        shutil.copytree(whole.kept / "trials" / ".unfinished" / newest.name, newest)


def test_swapped_records_are_found(whole: Home) -> None:
    one, other = (trial.folder / "record.json" for trial in whole.trials)
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)
    for trial in whole.trials:
        with pytest.raises(UserError, match=r"record\.json is damaged"):
            is_trained(trial)
    assert len(verify()["problems"]) == 2
    # Also in folders of earlier versions, which have no manifest.
    for path in (one, other):
        (path.parent / "manifest.json").unlink()
        with pytest.raises(UserError, match=r"record\.json is the record of another trial"):
            _ = FinishedTrial.open(path.parent.name).record
    assert len(verify()["problems"]) == 2


def test_a_digit_of_a_loss_is_found(whole: Home) -> None:
    path = whole.trials[0].folder / "record.json"
    text = path.read_text()
    digit = json.loads(text)["test_loss"]
    path.write_text(text.replace(str(digit), str(digit)[:-1] + ("1" if str(digit)[-1] != "1" else "2")))
    with pytest.raises(UserError, match=r"record\.json is damaged: its contents do not have the checksum"):
        FinishedTrial.open(whole.trials[0])


def test_the_verb_says_what_is_wrong(whole: Home, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().out == (
        "verified 1 prepared data, 2 trials, 2 checkpoints, 1 cached answers, 0 databases: 0 problems\n"
    ).replace("1 cached", f"{len(files(cache_folder()))} cached")
    (whole.trials[0].folder / "manifest.json").unlink()
    assert main(["verify"]) == 0
    assert "1 folder of earlier versions without checksums" in capsys.readouterr().out
    labels = whole.prepared / "test" / "label_pcvr.npy"
    flip(labels)
    flip(whole.trials[1].folder / "evidence.json")
    assert main(["verify"]) == 1
    first, second, _, last = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{labels} is damaged: ")
    assert second.startswith(f"{whole.trials[1].folder / 'evidence.json'} is damaged: ")
    assert last.endswith(": 2 problems")
    assert main(["verify", "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


def test_an_empty_home_is_whole(own_home: Path) -> None:
    found = verify()
    assert (found["problems"], set(found["checked"].values())) == ([], {0})


def test_checking_again_costs_next_to_nothing(whole: Home) -> None:
    is_trained(whole.trials[0])
    start = time.perf_counter()
    for _ in range(100):
        is_trained(whole.trials[0])
    assert (time.perf_counter() - start) / 100 < 0.01
