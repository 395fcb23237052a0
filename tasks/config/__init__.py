"""``pipelines.yaml``: its sections as frozen, validated models, and the checks of what a user writes.

``plugins`` imports the user's own modules. No step and no result belongs here. DAG files import this room, so it
imports nothing heavy: no JAX, Dask, MLflow, pyarrow or pandas.

Doors: ``loading`` (``load_config``, ``Config``), ``selection`` (the options of one run), ``dataset``, ``pipeline`` and
``nightly`` (the sections, and the names that they allow), ``grid_settings`` (the combinations of a grid's values),
``limits`` (the most steps of a training), ``raw_roots`` (what runs of the servers may read),
``sections`` (their base class and validators).
"""
