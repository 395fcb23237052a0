"""What MLflow calls to load a released model and to predict with it. It is part of released models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.exceptions import MlflowException

from tasks.serving.frames import InvalidRows
from tasks.serving.predictor import Predictor


class ServedModel:
    """A released model with the interface that MLflow expects of one."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Returns the predictions for raw rows, in a column named for the task."""
        try:
            return self._predictor.predict(model_input)
        except InvalidRows as error:
            # MLflow's own kind of error: a server answers with its message.
            raise MlflowException.invalid_parameter_value(str(error)) from None


def _load_pyfunc(path: str) -> ServedModel:
    return ServedModel(Predictor.load(Path(path)))
