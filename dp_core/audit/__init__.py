"""Audit: checks of what a training run did, against what its record states.

Here are the measurements and tests: the rows that each step computed with (``step_log``), the compiled step
(``probe``), the dispatches of the training run again (``replay``), the keys of noise and batches (``key_checks``), the
sampled batches (``sampling_counts`` and ``sampling_checks``), the noise of other releases than training
(``release_noise``) and an attack with canaries (``one_run``). They judge evidence that a run left. Collecting the
evidence and the verdict are in ``tasks``; ε of a record is in ``dp_core.accounting``.

Doors: ``step_log``, ``probe``, ``probe_batches``, ``replay``, ``key_checks``, ``sampling_counts``, ``sampling_checks``,
``release_noise``, ``one_run`` and ``chances``. The others are what these need: the probe's program and oracle
(``laboratory``, ``single_steps``, ``step_oracle``, ``correlation``, ``lazy_noise``), the tests of noise
(``noise_checks``) and of each sampler (``poisson_checks``, ``cyclic_checks``, ``dealt_checks``, ``coincidences``).
"""
