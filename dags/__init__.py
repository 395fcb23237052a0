"""The DAGs that Airflow shows. They only wire: a task's body is a local import and one call of a step in ``tasks``.

A file here registers DAGs when it is imported, except ``factory``, which builds them for the others. To add a DAG, add
one file that calls ``factory.pipeline_dag`` or wires steps itself. From Airflow, import only ``airflow.sdk``. Import
nothing heavy at module level: Airflow forks its task processes, and a fork after JAX has started can deadlock.
"""
