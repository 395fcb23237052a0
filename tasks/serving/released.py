"""A released model as this checkout uses it: its predictor, and the description of the log that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from pydantic import ValidationError

from tasks.config.dataset import Dataset
from tasks.runtime.errors import UserError
from tasks.serving.predictor import DESCRIPTION, MODEL, STATEMENT, DamagedModel, Predictor

# The folder of our files inside an MLflow model.
DATA = "data/released"


class Guarantee(TypedDict):
    """What a released model promises: (ε, δ), for whole examples or only for their labels.

    ``covers_vocabulary`` is whether that includes which tokens the model knows. ``recalibration_epsilon`` is what its
    recalibration costs the examples of the validation split, which no training saw; only if there was one.
    """

    epsilon: float
    delta: float
    protects: str
    mechanism: str
    covers_vocabulary: bool
    public_name: str
    recalibration_epsilon: NotRequired[float]


@dataclass(frozen=True)
class ReleasedModel:
    """A released model, opened.

    Attributes:
        folder: The folder of its files.
        predictor: Predicts for rows.
        dataset: The description of the log that it was trained on, without its files.
        dataset_name: The name of the dataset.
    """

    folder: Path
    predictor: Predictor
    dataset: Dataset
    dataset_name: str

    @classmethod
    def load(cls, folder: Path) -> ReleasedModel:
        """Opens an MLflow model of ours. Raises ``UserError`` if it is none, or not as it was released."""
        inside = folder if (folder / MODEL).exists() else folder / DATA
        if not (inside / MODEL).exists():
            raise UserError(f"{folder} is not a released model: there is no {DATA}/{MODEL} in it")
        try:
            predictor = Predictor.load(inside)
            dataset = Dataset.model_validate_json((inside / DESCRIPTION).read_text(encoding="utf-8"))
        except (DamagedModel, OSError) as error:
            raise UserError(f"cannot open the model in {folder}: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise UserError(f"cannot read the log description of the model in {folder}: {first['msg']}") from None
        return cls(inside, predictor, dataset, predictor.facts["dataset"])

    @property
    def task(self) -> str:
        return self.predictor.task

    @property
    def guarantee(self) -> Guarantee:
        return self.predictor.facts["guarantee"]

    @property
    def parameters_digest(self) -> str:
        return self.predictor.facts["parameters_digest"]

    @property
    def statement(self) -> str:
        return (self.folder / STATEMENT).read_text(encoding="utf-8")
