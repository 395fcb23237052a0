"""Finished trials on disk: the one module that knows the files of a finished trial's folder.

Training writes ``record.json``, ``evidence.json``, ``parameters.npz`` and ``public_name.txt``, the name of the trial
where its privacy statement leaves the house, all at once and with a manifest; a run that diverged has no
``parameters.npz``. The audit adds ``privacy_statement.md`` and ``audit.json``, which is sealed with the checksums of
what it judged and wrote. The report adds ``segments.json``, metrics by segment, sealed too. Folders of earlier versions
have neither manifest nor seals; they are taken as they are.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np

from tasks.data.schema import VocabularyFacts
from tasks.integrity.manifest import check_folder, checksum_of, read_manifest, write_manifest
from tasks.integrity.sealed import Damaged, seal, unseal
from tasks.owners.attempts import Interruption
from tasks.privacy.audit_evidence import Evidence
from tasks.privacy.audit_result import AuditResult
from tasks.runtime.errors import UserError
from tasks.runtime.home import as_fields, home, read_json, whole_directory, write_json, write_text
from tasks.runtime.progress import say
from tasks.training.trial import Trial, is_key_of

# A plan asks only whether a trial is trained: it should not wait for the accounting and SciPy.
if TYPE_CHECKING:
    from dp_core.accounting.mechanism import MechanismRecord
    from dp_core.labels.record import LabelRecord

RECORD = "record.json"
EVIDENCE = "evidence.json"
PARAMETERS = "parameters.npz"
AUDIT = "audit.json"
STATEMENT = "privacy_statement.md"
PUBLIC_NAME = "public_name.txt"
SEGMENTS = "segments.json"


class CurvePoint(TypedDict):
    """The losses at one evaluation of the validation split; None where they are not finite.

    ``validation_metrics`` has the metrics that are finite, by the names of ``losses.OBJECTIVES``. Records of earlier
    versions have none.
    """

    step: int
    train_loss: float | None
    validation_loss: float | None
    validation_metrics: NotRequired[dict[str, float]]


class ReliabilityBin(TypedDict):
    """Rows of the test split with similar predictions (``dp_core.evaluation.reliability.Bin``)."""

    rows: int
    predicted: float
    observed: float


class SegmentFacts(TypedDict):
    """A segment's name and the model's metrics there (``dp_core.evaluation.segments.SegmentMetrics``)."""

    name: str
    rows: int
    mean_label: float
    auc: float | None
    normalized_entropy: float | None
    calibration: float | None
    calibration_error: float | None


class TrialRecord(TypedDict):
    """What ran and how well it did.

    Attributes:
      trial: ``Trial.model_dump(mode="json")``.
      interruptions: What attempts before the last one ran in vain; only if there were any.
      mechanism: ``to_json()`` of the ``MechanismRecord`` or ``LabelRecord``; None without privacy. If the run diverged,
        it is of the steps that were planned.
      vocabulary: The kind and numbers of the dataset's vocabulary.
      validation_loss: At the last evaluation; None if it was not finite.
      test_loss: None if the run diverged.
      test_metrics: Finite metrics of the test split, by the names of ``losses.OBJECTIVES``; none if the run diverged.
        Records of earlier versions have none.
      reliability: Bins of the test split by prediction; none if the run diverged. Records of earlier versions have
        none, nor ``calibration_error``.
      calibration_error: The standard error of the logarithm of the test split's calibration, from the choice of rows;
        None if there is no calibration.
      recalibration: ``Recalibration.to_json()``, if the released model was recalibrated: its output bias has the shift,
        and metrics of the test split and ``validation_loss``, but not those of the curve, are with it.
      loss_name: The name of the reported loss, such as ``auc_loss``.
      curve: The losses at each evaluation.
      steps: The number of steps that updated the model.
      seconds: The time spent on steps and evaluations, over all attempts.
      started: When the first attempt began, in seconds since 1970. Records of earlier versions have neither this nor
        ``ended``.
      ended: When the last attempt ended.
      final_l2_clip_norm: The clip norm after the last step; differs from the first if it is adaptive.
      parameters: The number of parameters.
      examples: The number of training examples, without canaries.
      physical_batch_size: The number of rows that the device computes with at once.
      device: The kind of device.
      devices: The number of devices.
      jax: The version of JAX.
    """

    trial: dict[str, Any]
    interruptions: NotRequired[list[Interruption]]
    mechanism: dict[str, Any] | None
    vocabulary: VocabularyFacts
    validation_loss: float | None
    test_loss: float | None
    test_metrics: NotRequired[dict[str, float]]
    reliability: NotRequired[list[ReliabilityBin]]
    calibration_error: NotRequired[float | None]
    recalibration: NotRequired[dict[str, Any]]
    loss_name: str
    curve: list[CurvePoint]
    steps: int
    seconds: float
    started: NotRequired[float]
    ended: NotRequired[float]
    steps_per_second: float
    final_l2_clip_norm: float | None
    parameters: int
    examples: int
    physical_batch_size: int
    device: str
    devices: int
    jax: str


@dataclasses.dataclass(frozen=True)
class FinishedTrial:
    """The folder of a finished trial. Each file is parsed once per process, and again only if it was replaced."""

    folder: Path

    @classmethod
    def open(cls, trial: Trial | str) -> FinishedTrial:
        """Opens the folder of a trial, given the trial or its key, and checks the files that training wrote.

        Raises ``UserError`` if it is not trained, or a file is missing or not what was written.
        """
        key = trial if isinstance(trial, str) else trial.key
        finished = cls(home() / "trials" / key)
        if os.path.lexists(finished.folder):
            finished.check()
        else:
            raise UserError(f"no trained trial has the key {key!r}: there is no {finished.folder / RECORD}")
        return finished

    def check(self, *, fully: bool = False) -> None:
        """Raises ``UserError`` if a file that training wrote is missing or not what was written."""
        check_folder(self.folder, fully=fully)
        if not (self.folder / RECORD).is_file():
            raise Damaged(f"{self.folder} is no finished trial: there is no {self.folder / RECORD}. {self._advice}")

    @property
    def _advice(self) -> str:
        return f"Delete {self.folder} and run again: the trial is trained again"

    @property
    def trial(self) -> Trial:
        return Trial.model_validate(self.record["trial"])

    @property
    def record(self) -> TrialRecord:
        """What ran and how well it did. Raises ``UserError`` if it is the record of another trial."""
        path = self.folder / RECORD
        record = _read_once(path)
        if not is_key_of(self.folder.name, record["trial"]):
            raise Damaged(f"{path} is the record of another trial than {self.folder.name}. {self._advice}")
        return record

    @property
    def mechanism(self) -> MechanismRecord | LabelRecord | None:
        """The record of the mechanism that ran; None without privacy."""
        mechanism = self.record["mechanism"]
        if mechanism is None:
            return None
        from dp_core.accounting.mechanism import MechanismRecord
        from dp_core.labels.record import LabelRecord

        kind = LabelRecord if self.record["trial"]["mechanism"] == "label_dp" else MechanismRecord
        return kind.from_json(mechanism)

    @property
    def evidence(self) -> Evidence | None:
        """What was measured; None if the file is missing. The audit must fail such a trial."""
        path = self.folder / EVIDENCE
        # Used by the audit alone, and large: not worth keeping.
        return as_fields(path, read_json(path)) if path.exists() else None

    @property
    def audit(self) -> AuditResult:
        """The audit's verdict. Raises ``UserError`` if it is damaged, or of other files than those in the folder."""
        path, advice = self.folder / AUDIT, "Delete it and run `python -m tasks audit` again"
        required = read_manifest(self.folder) is not None
        result, about = unseal(path, _read_once(path), advice=advice, required=required)
        for name, checksum in about.items():
            if not (self.folder / name).is_file() or checksum_of(self.folder / name) != checksum:
                raise Damaged(f"{self.folder / name} is not the one that {AUDIT} is about. {advice}")
        return as_fields(path, result)

    @property
    def diverged(self) -> bool:
        return self.record["test_loss"] is None

    @property
    def is_audited(self) -> bool:
        return (self.folder / AUDIT).exists()

    @property
    def public_name(self) -> str:
        """A random name, drawn once. The key would let someone who knows all rows but one test candidates for it."""
        path = self.folder / PUBLIC_NAME
        if not path.exists():  # in a folder of an earlier version
            write_text(path, _new_name())
        return path.read_text(encoding="utf-8", errors="replace").strip()

    @property
    def statement(self) -> Path:
        return self.folder / STATEMENT

    def read_parameters(self) -> dict[str, np.ndarray]:
        """Reads the released parameters, by names such as ``hidden_0/kernel``.

        Raises ``UserError`` if they are missing or damaged.
        """
        path = self.folder / PARAMETERS
        try:
            with np.load(path, allow_pickle=False) as file:
                return dict(file)
        except (OSError, ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile) as error:
            raise UserError(f"cannot read {path}: {error}. {self._advice}") from None

    def read_segments(self, column: str) -> list[SegmentFacts] | None:
        """Reads the metrics by the segments of a column; None if they were not computed."""
        return self._segments().get(column)

    def write_segments(self, column: str, segments: list[SegmentFacts]) -> None:
        """Adds the metrics by the segments of a column to those of other columns."""
        value = {**self._segments(), column: segments}
        write_json(self.folder / SEGMENTS, seal(value, {RECORD: checksum_of(self.folder / RECORD)}))

    def _segments(self) -> dict[str, list[SegmentFacts]]:
        """Returns the metrics by column; none, and says so, if the file is damaged: they are computed again."""
        path = self.folder / SEGMENTS
        if not path.exists():
            return {}
        try:
            required = read_manifest(self.folder) is not None
            value, about = unseal(path, _read_once(path), advice="It is computed again", required=required)
            if about and about.get(RECORD) != checksum_of(self.folder / RECORD):
                raise Damaged(f"{path} is of another {RECORD}. It is computed again")
        except UserError as error:
            say(str(error))
            path.unlink(missing_ok=True)
            return {}
        return value

    def write_audit(self, result: AuditResult, statement: str) -> None:
        write_text(self.statement, statement)
        judged = [name for name in (RECORD, EVIDENCE, STATEMENT) if (self.folder / name).exists()]
        write_json(self.folder / AUDIT, seal({**result}, {name: checksum_of(self.folder / name) for name in judged}))


def is_trained(trial: Trial) -> bool:
    """Returns whether a trial is trained. Raises ``UserError`` if it has a folder that is not whole."""
    if not os.path.lexists(trial.folder):
        return False
    FinishedTrial.open(trial)
    return True


def _new_name() -> str:
    return secrets.token_hex(8) + "\n"


def write_finished(trial: Trial, record: TrialRecord, evidence: Evidence, parameters: Mapping[str, Any] | None) -> None:
    """Writes a finished trial's folder, whole or not at all.

    ``parameters`` is the nested dict of the model's arrays. They are saved under names such as ``hidden_0/kernel``,
    so that NumPy alone can read them. None for a run that diverged, which releases nothing.
    """
    with whole_directory(trial.folder) as folder:
        if parameters is not None:
            arrays: dict[str, Any] = flat_parameters(parameters)
            np.savez(folder / PARAMETERS, **arrays)
        write_json(folder / EVIDENCE, evidence)
        write_json(folder / RECORD, record)
        write_text(folder / PUBLIC_NAME, _new_name())
        write_manifest(folder)


def flat_parameters(parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Returns the arrays of a nested dict of parameters under names such as ``hidden_0/kernel``."""
    return dict(_flat(parameters))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, np.ndarray]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", np.asarray(value)


# Path -> (the file's identity, its parsed contents). A rewritten file is a new inode, so nothing stale is served.
_parsed: dict[Path, tuple[tuple[int, int, int], Any]] = {}


def _read_once(path: Path) -> Any:
    stat = path.stat()
    identity = stat.st_ino, stat.st_mtime_ns, stat.st_size
    kept = _parsed.get(path)
    if kept is None or kept[0] != identity:
        kept = _parsed[path] = identity, as_fields(path, read_json(path))
    return kept[1]
