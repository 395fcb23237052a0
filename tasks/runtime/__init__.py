"""What the steps run on and report to: files, processes and the programs around us.

Doors: ``home`` (the folder for generated files, atomic writes), ``errors`` (``UserError``), ``progress`` (lines for a
person), ``parallel`` (Dask), ``memory`` (of the machine), ``running_servers`` (what ``make up`` runs, and where).
MLflow: ``tracking`` (pipeline runs), ``trial_runs`` (trials), ``mlflow_views`` (paths and views of its UI),
``moved_store`` (a home that was moved). For the command line: ``dag_run``, ``servers``, ``airflow_home`` and
``interrupted_make``. No step, no setting and no mathematics belongs here.
"""
