"""The training step: trains a group of trials that share one compiled program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import jax

from tasks.config.loading import load_config
from tasks.data.prepared import open_prepared
from tasks.outages.unlogged import is_unlogged
from tasks.owners.locks import one_at_a_time
from tasks.runtime.trial_runs import live_run
from tasks.training.checkpoint import checkpoint_of
from tasks.training.finished import is_trained
from tasks.training.hardware import is_first_process
from tasks.training.items import PlannedTrial, TrainedTrial, TrialGroup
from tasks.training.logged import log_finished
from tasks.training.loop import run_trial
from tasks.training.side_by_side import side_by_side, trials_at_once
from tasks.training.trial import Trial


def train(group: TrialGroup) -> list[TrainedTrial] | None:
    """Trains the trials of a group that are not finished yet, and logs each trial as its own MLflow run.

    Returns the trials in the order of the group. If several processes train together, only the first one logs, and the
    others return None. If a trial fails, the finished ones are kept, and the next attempt finds them.
    """
    hardware = load_config().hardware
    trials = {item["number"]: Trial.model_validate(item["trial"]) for item in group["items"]}
    missing = [item for item in group["items"] if not is_trained(trials[item["number"]])]
    logged: dict[int, TrainedTrial] = {}
    logging = threading.Lock()

    def log(item: PlannedTrial, *, reused: bool) -> None:
        with logging:
            logged[item["number"]] = log_finished(item, reused=reused)

    def train_one(item: PlannedTrial, should_stop: Callable[[], bool]) -> None:
        trial = trials[item["number"]]
        with one_run_at_a_time(trial, should_stop):
            if jax.process_count() == 1 and is_trained(trial):
                log(item, reused=True)  # another run has trained it in the meantime
                return
            prepared = open_prepared(Path(item["prepared"]))
            with live_run(item, shown=is_first_process() and not is_unlogged(item["run"])) as watch:
                run_trial(trial, prepared, hardware=hardware, should_stop=should_stop, watch=watch)
            if is_first_process():
                log(item, reused=False)

    side_by_side(train_one, missing, at_once=trials_at_once(hardware))
    if not is_first_process():
        return None
    for item in group["items"]:
        if item["number"] not in logged:
            log(item, reused=True)
        # What a run leaves that was killed between writing its folder and deleting its checkpoints.
        checkpoint_of(trials[item["number"]].key).discard()
    return [logged[item["number"]] for item in group["items"]]


@contextlib.contextmanager
def one_run_at_a_time(trial: Trial, should_stop: Callable[[], bool]) -> Iterator[None]:
    """Lets one run at a time train a trial. Processes that train together are one run, and take no lock."""
    if jax.process_count() > 1:
        yield
        return
    with one_at_a_time(f"trial {trial.key}", f"is training {trial.label()}", should_stop=should_stop):
        yield
