"""Whether a trained model may be packaged, logged and registered: the one place that decides."""

from __future__ import annotations

from dp_core.models.digest import parameters_digest
from tasks.privacy.guarantees import no_guarantee
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.serving.released import Guarantee, ReleasedModel
from tasks.training.finished import PARAMETERS, PUBLIC_NAME, FinishedTrial

# ε of the same mechanism can come out slightly different where time decides how far it is refined.
_SAME_EPSILON = 1e-2


def why_not_released(finished: FinishedTrial) -> str | None:
    """Returns why a trial's model may not leave the house, as the end of a sentence; None if it may.

    It may if its privacy statement holds (``no_guarantee``), and if the parameters on disk are those that the audited
    run released: without pending noise, and unchanged since.
    """
    reason = no_guarantee(finished)
    if reason is not None:
        return reason.why
    again = "delete its folder and train it again"
    if finished.diverged or not (finished.folder / PARAMETERS).exists():
        return f"it has no {PARAMETERS}, because it diverged or the file was deleted"
    if not finished.statement.exists():
        return "it has no privacy_statement.md: run `python -m tasks audit`"
    if finished.audit["epsilon"] is None:
        return "its audit found no finite ε"
    evidence = finished.evidence
    if evidence is None:
        return f"there is no evidence of its training: {again}"
    if not evidence["releases_the_last_state"]:
        return f"its parameters are not those of the last state, so noise may be pending: {again}"
    released = evidence.get("released")
    if released is None:
        return f"an earlier version trained it, which kept no digest of its parameters: {again}"
    if parameters_digest(finished.read_parameters()) != released:
        return f"its {PARAMETERS} was changed after the training: {again}"
    return None


def require_guarantee(finished: FinishedTrial) -> None:
    """Raises ``UserError`` if a trial's model may not leave the house."""
    why = why_not_released(finished)
    if why is not None:
        raise UserError(
            f"the model of trial {finished.folder.name} ({finished.trial.label()}) cannot be packaged or registered: "
            f"{why}"
        )


def guarantee_of(finished: FinishedTrial, with_choice: float | None = None) -> Guarantee:
    """Returns what the model of a trial that may leave the house promises.

    ``with_choice`` is ε of all trainings that this one was chosen from; by default there were no others.
    """
    audit, trial = finished.audit, finished.trial
    assert audit["epsilon"] is not None  # `require_guarantee` has asked
    guarantee: Guarantee = {
        "epsilon": max(audit["epsilon"], with_choice or 0.0),
        "delta": audit["target_delta"],
        "protects": "labels" if trial.mechanism == "label_dp" else "examples",
        "mechanism": trial.mechanism,
        "covers_vocabulary": finished.record["vocabulary"]["kind"] != "threshold",
        "public_name": finished.public_name,
    }
    if (extra := audit.get("recalibration_epsilon")) is not None:
        guarantee["recalibration_epsilon"] = extra
    return guarantee


def require_same(model: ReleasedModel, finished: FinishedTrial) -> None:
    """Raises ``UserError`` if a trial may not leave the house, or if a model of it is not what it released."""
    require_guarantee(finished)
    evidence = finished.evidence
    if evidence is None or evidence.get("released") != model.parameters_digest:
        raise UserError(f"the parameters in {model.folder} are not those of the trial that it names")
    promised, own = model.guarantee, guarantee_of(finished)
    # A model that was chosen from several trainings promises the ε of all of them, which is more than that of its own.
    enough = promised["epsilon"] >= own["epsilon"] * (1 - _SAME_EPSILON)
    if not enough or {**promised, "epsilon": None} != {**own, "epsilon": None}:
        raise UserError(f"the guarantee in {model.folder} is not that of the trial that it names")


def trial_called(public_name: str) -> FinishedTrial | None:
    """Returns the trial with a public name, if it is in this home."""
    for path in sorted((home() / "trials").glob(f"*/{PUBLIC_NAME}")):
        if path.read_text(encoding="utf-8", errors="replace").strip() == public_name:
            return FinishedTrial.open(path.parent.name)
    return None
