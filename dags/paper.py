"""Registers one DAG with Airflow for each pipeline of ``pipelines.yaml``."""

from __future__ import annotations

from dags.factory import pipeline_dag
from tasks.config.loading import load_config

_CONFIG = load_config()
for _name in _CONFIG.pipelines:
    pipeline_dag(_CONFIG, _name)
