"""Audit: checks of what a training run did, against what its record states.

Here are the measurements and tests: the compiled step (``probe``), the sampled batches (``sampling_counts`` and
``sampling_checks``), the noise of other releases than training (``release_noise``) and an attack with canaries
(``one_run``). They judge evidence that a run left. Collecting the evidence and the verdict are in ``tasks``; ε of a
record is in ``dp_core.accounting``.

Doors: ``probe``, ``sampling_counts``, ``sampling_checks``, ``release_noise`` and ``one_run``. The others have the tests
of each sampler (``poisson_checks``, ``dealt_checks``) and what these need (``chances``, ``coincidences``).
"""
