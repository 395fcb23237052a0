"""Training: from a planned trial to a finished one on disk.

Here are a trial's description and its enumeration from a grid, the set-up and loop that train it, the randomness,
canaries and noisy labels that enter its data, its checkpoints, and its finished folder. The mathematics of a step is in
``dp_core``; what a finished trial is worth in privacy is in ``tasks.privacy``.

Doors: ``items`` (what steps hand on), ``trial`` (a trial's description), ``enumeration`` (the trials of a run),
``night_trials`` (the trials of a night within its budget), ``sweep_names`` (what varies, and names), ``groups`` (trials
that share a program), ``side_by_side`` (trains several at once), ``loop`` (trains a trial), ``warm_start`` (initial
parameters from another trial), ``checkpoint`` (a run's progress), ``finished`` (a finished trial's files), ``logged``
(finished trials in MLflow), ``hardware`` (devices and physical batches) and ``model_size`` (the number of parameters).
"""
