"""What the steps run on and report to: files, processes and the programs around us.

Doors: ``home`` (the folder for generated files, atomic writes), ``errors`` (``UserError``), ``progress`` (lines for a
person), ``parallel`` (Dask), ``tracking`` (MLflow), ``memory`` (of the machine), ``running_servers`` (what ``make up``
runs, and where). For the command line: ``dag_run``, ``servers``, ``airflow_home`` and ``interrupted_make``. No step, no
setting and no mathematics belongs here.
"""
