"""Accounting: from a description of what was released to ε, and from a budget to noise. Needs no JAX.

Doors: ``mechanism`` (the record of what a run released, and its ε), ``epsilon`` (upper bounds and calibration),
``tuning`` (what choosing among trials costs), ``noise_split`` (the noise of an adaptive clip norm), ``noise_tails``
(what the noise's limited range costs), ``banded_noise`` (correlated noise) and, for samplers,
``events``, ``lower_bound``, ``shuffled_lower_bound`` and ``binomials``. The other modules compute the bounds:
``privacy_loss`` and ``random_allocation`` from above, ``loss_cells`` from below.

Not here: drawing batches (``dp_core.sampling``), LabelDP (``dp_core.labels``), and the cache on disk
(``tasks.privacy.cached_accounting``).
"""
