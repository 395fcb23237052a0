"""Released models: packaged for MLflow, registered, and used to score logs.

What belongs here: everything about a model after its audit. Only a model with a guarantee gets here, as ``guard``
decides. The modules ``pyfunc``, ``predictor`` and ``frames``, and what they import, are also copied into every model.

Doors: ``packaging`` (from a finished trial to an MLflow model), ``registry`` (names, versions and the champion),
``guard`` (who may be released), ``released`` (opens a model) and ``scoring`` (predicts for whole logs).
"""
