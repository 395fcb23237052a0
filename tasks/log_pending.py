"""Logs pipeline runs to MLflow that went on without it because its server did not answer."""

from __future__ import annotations

from pathlib import Path

from tasks.config.loading import load_config
from tasks.data.prepared import open_prepared
from tasks.outages.unlogged import is_unlogged, unlogged_runs
from tasks.report import report
from tasks.runtime.errors import UserError
from tasks.runtime.progress import say
from tasks.training.finished import is_trained
from tasks.training.items import read_plan
from tasks.training.trial import Trial


def log_pending() -> list[str]:
    """Logs every such run, with its trials, audits and report, and writes its page again. Returns their folders.

    A run that was interrupted before its report is left: the run that continues it logs the trials.

    Raises:
        UserError: The server still does not answer.
    """
    load_config()  # imports the plug-ins, which may have registered a trial's model
    done = []
    for run in unlogged_runs():
        if not _is_whole(run):
            say(f"{run} was interrupted before its report: run its pipeline again, which logs its trials")
            continue
        say(f"logging {run}")
        report(str(run))
        if is_unlogged(run):
            raise UserError(f"{run} could not be logged: try again when the server answers")
        done.append(str(run))
    return done


def _is_whole(run: Path) -> bool:
    """Returns whether all that a run planned is there."""
    if not (run / "plan.json").exists():
        return False
    plan = read_plan(run)
    for path in plan["prepared"].values():
        open_prepared(Path(path))
    return all(is_trained(Trial.model_validate(item["trial"])) for item in plan["items"])
