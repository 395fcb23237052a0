"""The mathematics of private training. Knows nothing of Airflow, MLflow, Dask or YAML."""
