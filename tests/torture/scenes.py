"""The steps that are tortured: what must be there before each, the step, and what it must come to.

Each step is called again after a kill, in a new process, as a rerun does. What it comes to is JSON: equal for equal
models, data, tables and ledgers.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tasks.config.nightly import TotalBudget
from tasks.ledger.book import Ledger
from tasks.ledger.release import Release, gaussian
from tasks.runtime.home import home, read_json, write_json

DAY = "2026-01-04"
_TOTAL = TotalBudget(epsilon=3.0, delta=5e-6)
_OPTIONS = {"pipeline": "losses", "profile": "tiny"}


class Scene(NamedTuple):
    """A step under torture.

    Attributes:
        before: Scenes that have come to their end in the home folder before.
        step: The step.
        outcome: Returns what must be the same as without a kill.
        imports: What is imported before processes are forked.
        config: The configuration.
    """

    before: Sequence[str]
    step: Callable[[], Any]
    outcome: Callable[[], Any]
    imports: Sequence[str] = ()
    config: str = "pipelines.yaml"


def _prepare() -> None:
    from tasks.prepare import prepare_datasets

    write_json(home() / "scenes" / "prepared.json", prepare_datasets(_OPTIONS))


def _prepared() -> Any:
    [found] = read_json(home() / "scenes" / "prepared.json")
    folder = Path(found["path"])
    return found["fingerprint"], {str(path.relative_to(folder)): _digest(path) for path in folder.rglob("*.npy")}


def _plan() -> None:
    from tasks.plan import plan

    write_json(home() / "scenes" / "planned.json", plan(_OPTIONS, read_json(home() / "scenes" / "prepared.json")))


def _train() -> None:
    from tasks.train import train
    from tasks.training.loop import run_trial

    # A checkpoint after every dispatch instead of every minute.
    assert run_trial.__kwdefaults__ is not None
    run_trial.__kwdefaults__["checkpoint_seconds"] = 0.0
    groups = read_json(home() / "scenes" / "planned.json")["groups"]
    trained = [one for group in groups for one in train(group) or ()]
    write_json(home() / "scenes" / "trained.json", trained)


def _trained() -> Any:
    import numpy as np

    found = {}
    for folder in sorted((home() / "trials").iterdir()):
        if folder.name.startswith("."):
            assert not list(folder.iterdir()), "no checkpoint is left"
            continue
        with np.load(folder / "parameters.npz") as file:
            parameters = {name: hashlib.blake2b(file[name].tobytes()).hexdigest() for name in sorted(file)}
        record = read_json(folder / "record.json")
        found[folder.name] = parameters, record["test_loss"], record["validation_loss"], record["steps"]
    return found


def _audit() -> None:
    from tasks.audit import audit_group

    write_json(home() / "scenes" / "audited.json", audit_group(read_json(home() / "scenes" / "trained.json")))


def _audited() -> Any:
    found = {}
    for item in read_json(home() / "scenes" / "trained.json"):
        folder = home() / "trials" / item["trial"]
        found[item["trial"]] = read_json(folder / "audit.json"), (folder / "privacy_statement.md").read_text()
    return found


def _report() -> None:
    from tasks.report import report

    run = read_json(home() / "scenes" / "planned.json")["run"]
    write_json(home() / "scenes" / "report.json", report(run, read_json(home() / "scenes" / "audited.json")))


def _reported() -> Any:
    made = read_json(home() / "scenes" / "report.json")
    folder = Path(made["page"]).parent
    # Pages and summaries say when they were written.
    texts = {path.name: path.read_text() for path in sorted(folder.glob("*.csv"))}
    return texts, sorted(path.name for path in folder.iterdir())


def _ledger() -> None:
    for number in range(2):
        key, ledger = f"night {number}", Ledger.open()
        releases = [Release("metric", gaussian(9.0), "clicks", (f"2026-01-{number + 1:02d}",))]
        ledger.reserve(key, releases, _TOTAL)
        ledger.commit(key, releases)


def _charged() -> Any:
    ledger = Ledger.open()
    assert ledger.verify().problems == ()
    return [(entry.key, entry.state, len(entry.releases)) for entry in ledger.entries()]


def _open_night() -> None:
    from tasks.nights import steps, training_steps

    night = steps.open_night("rates", DAY)
    assert steps.has_data(night)
    for step in (steps.check_data, steps.prepare):
        night = step(night)
    night = training_steps.reserve(night)
    write_json(home() / "scenes" / "night.json", training_steps.audit(training_steps.train(night)))


def _night() -> None:
    from tasks.nights import steps, training_steps

    ended = training_steps.decide(training_steps.register(read_json(home() / "scenes" / "night.json")))
    steps.report(ended)


def _decided() -> Any:
    from tasks.nights.champions import present
    from tasks.nights.record import read_night
    from tasks.serving.registry import versions

    night = read_night("rates", DAY)
    assert night is not None
    assert Ledger.open().verify().problems == ()
    charged = [(entry.key, entry.state, len(entry.releases)) for entry in Ledger.open().entries()]
    return night["status"], night["version"], present("rates"), len(versions("rates")), charged


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes()).hexdigest()


_TRAINING = ("jax", "tasks.train", "tasks.audit", "mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store")
_NIGHT = (*_TRAINING, "tasks.nights.steps", "tasks.nights.training_steps", "tasks.serving.registry", "mlflow.pyfunc")

SCENES = {
    "prepare": Scene((), _prepare, _prepared, ("tasks.prepare",)),
    "ledger": Scene((), _ledger, _charged, ("sqlalchemy.dialects.sqlite",)),
    "train": Scene(("prepare", "plan"), _train, _trained, _TRAINING),
    "audit": Scene(("prepare", "plan", "train"), _audit, _audited, _TRAINING),
    "report": Scene(("prepare", "plan", "train", "audit"), _report, _reported, ("tasks.report", *_TRAINING)),
    "night": Scene(("open night",), _night, _decided, _NIGHT, "nights.yaml"),
}
# What only leads to a scene.
LEADING = {"plan": _plan, "open night": _open_night}


def import_all(names: Sequence[str]) -> None:
    """Imports what the scenes need, so that forked processes find it imported."""
    for name in names:
        for module in SCENES[name].imports:
            importlib.import_module(module)


def steps_before(name: str) -> list[Callable[[], Any]]:
    """Returns the steps that lead to a scene."""
    return [LEADING.get(step) or SCENES[step].step for step in SCENES[name].before]


def told(outcome: Any) -> str:
    """Returns an outcome as text, to compare it."""
    return json.dumps(outcome, sort_keys=True)
