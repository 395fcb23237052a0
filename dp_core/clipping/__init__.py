"""Clipping: sums of per-example gradients with bounded norms.

Here are the layers that can be clipped, the clip factors, and the one-pass computation that training
uses, next to the slow oracle that tests compare it with. Noise, optimisers and the step are in
``dp_core.training``; ε is in ``dp_core.accounting``.

Doors: ``layers`` to build models, ``factors`` to list or register clip factors, ``signals`` for
``Batch``, ``microbatches``, ``one_pass`` and ``adaptive`` for the step. ``oracle`` and ``two_pass`` are
for comparison only; nothing trains with them.
"""
