"""The DAGs that Airflow shows. They only wire: a task's body is a local import and one call of a step in ``tasks``.

``paper``, ``prepare_data`` and ``nightly`` register DAGs when they are imported. The others do not: ``factory`` builds
the DAG of a pipeline, ``form`` its fields, ``nights`` the DAG of a nightly retrain, ``alerts`` tells people of it,
``links`` are the buttons of tasks, and ``steps`` says what is tried again. In Airflow's
API server, ``run_requests`` checks and names runs; ``plugins`` registers it.

To add a DAG, add one file that calls ``factory.pipeline_dag`` or wires steps itself. From Airflow, import only
``airflow.sdk``. Import nothing heavy at module level: Airflow forks its task processes, and a fork after JAX has
started can deadlock.
"""
