"""The audit step: judges a finished trial, writes the verdict and the privacy statement, and logs both."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.config.loading import load_config
from tasks.outages.unlogged import logged
from tasks.owners.locks import one_at_a_time
from tasks.privacy.statement import summary
from tasks.privacy.verdict import AuditFailure, judge
from tasks.runtime.progress import note
from tasks.runtime.trial_runs import log_audit
from tasks.training.finished import FinishedTrial
from tasks.training.items import AuditedTrial, TrainedTrial
from tasks.training.warm_start import start_of


def audit_group(trained: Sequence[TrainedTrial]) -> list[AuditedTrial]:
    """Audits the trials of a group. Raises ``AuditFailure`` if any failed, after all have been audited."""
    load_config()  # imports the plug-ins, which may have registered a trial's model
    audited, failures = [], []
    for one in trained:
        try:
            audited.append(audit(one))
        except AuditFailure as failure:
            failures.append(str(failure))
    if failures:
        raise AuditFailure("\n".join(failures))
    return audited


def audit(trained: TrainedTrial) -> AuditedTrial:
    """Audits a finished trial, writes its verdict and privacy statement, and logs both.

    Raises ``AuditFailure`` if the trial is over its budget or did not run what its record says.
    """
    finished = FinishedTrial.open(trained["trial"])
    trial, evidence = finished.trial, finished.evidence
    if evidence is None:
        raise AuditFailure(
            f"audit of {trial.label()} failed: there is no evidence in {finished.folder}. "
            "Delete the folder and train again"
        )
    result, statement = judge(trial, finished.record, evidence, name=finished.public_name, start=start_of(trial))
    with one_at_a_time(f"audit {trial.key}", f"is auditing {trial.label()}"):
        finished.write_audit(result, statement)
    if trained["mlflow_run"]:
        logged(trained["run"], lambda: log_audit(trained["mlflow_run"], result, finished.statement), None)
    if result["verdict"] == "failed":
        raise AuditFailure(
            f"audit of {trial.label()} failed: {'; '.join(result['findings'])}. See {finished.folder}; "
            "delete it to train the trial again"
        )
    note(f"audited {trial.label()}: {summary(result)}")
    return {**trained, "epsilon": result["epsilon"]}
