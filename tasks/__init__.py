"""The steps of the pipeline, each a plain function that the DAGs, the command line and the tests call."""

import os

# Nothing here tells anyone how it is used: MLflow would report calls to its makers.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
