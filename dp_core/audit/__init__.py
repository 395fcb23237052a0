"""Audit: checks of what a training run did, against what its record states.

Here are the measurements and tests: the compiled step (``probe``), the sampled batches
(``sampling_checks``) and an attack with canaries (``one_run``). They judge evidence that a run left.
Collecting the evidence and the verdict are in ``tasks``; ε of a record is in ``dp_core.accounting``.

Doors: ``probe``, ``sampling_checks`` and ``one_run``, which are all modules of this room.
"""
