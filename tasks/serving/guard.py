"""Whether a trained model may be packaged, logged and registered: the one place that decides."""

from __future__ import annotations

from dp_core.models.digest import parameters_digest
from tasks.privacy.guarantees import no_guarantee
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.training.finished import PARAMETERS, PUBLIC_NAME, FinishedTrial


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


def trial_called(public_name: str) -> FinishedTrial | None:
    """Returns the trial with a public name, if it is in this home."""
    for path in sorted((home() / "trials").glob(f"*/{PUBLIC_NAME}")):
        if path.read_text(encoding="utf-8", errors="replace").strip() == public_name:
            return FinishedTrial.open(path.parent.name)
    return None
