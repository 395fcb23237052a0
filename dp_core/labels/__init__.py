"""LabelDP: randomising labels before training, and accounting for it. Needs no JAX.

Doors: ``bins`` (which values stand for the labels), ``randomized_response`` (drawing responses to them) and ``record``
(what was drawn, its ε, and a test of whether it is true).

Not here: training on the responses (``tasks.training.noisy_labels``).
"""
