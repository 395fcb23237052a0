"""The mathematics of private training: sampling, clipping, noise, accounting and audits.

It knows nothing of Airflow, MLflow, Dask, YAML or files; ``tasks`` builds on it.

Doors: the rooms ``clipping``, ``models``, ``training``, ``accounting``, ``labels``, ``audit`` and ``evaluation``,
and the modules ``sampling``, ``cyclic_sampling``, ``epochs`` and ``partition_selection``.
"""
