"""The steps of the pipeline and its command line.

Doors: one module per step, named as the DAG's tasks are: ``check``, ``prepare``, ``plan``, ``train``,
``next_round``, ``audit``, ``measure`` and ``report``; and ``verify``, for the command line alone.

A step is a plain function with small JSON-able arguments and results; the DAGs, the command line (``cli``,
``cli_verbs``, ``cli_score``) and the tests call the same function. Everything that a step uses is in a room:
``config``, ``logs``, ``data``, ``rounds``, ``training``, ``privacy``, ``serving``, ``reporting``, ``speed``,
``integrity`` and ``runtime``.
Nothing here imports Airflow.
"""

import os

# Before anything imports MLflow, which would otherwise send usage data to its makers.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
