"""Registers one DAG with Airflow for each entry of ``nightly`` in ``pipelines.yaml``."""

from __future__ import annotations

from dags.nights import nightly_dag
from tasks.config.loading import load_config

_CONFIG = load_config()
for _name in _CONFIG.nightly:
    nightly_dag(_CONFIG, _name)
