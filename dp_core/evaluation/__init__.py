"""Evaluation: how good a model is on labelled rows, which of two is better, and how well calibrated each is.

Everything here works on logits and labels in NumPy, without JAX. ``metrics``, ``reliability``, ``segments``, ``paired``
and ``calibration`` compute exact values, which are not private; ``private_comparison`` and ``recalibration`` answer
through noisy sums.

Doors: ``metrics`` (AUC, log loss, normalised entropy, calibration), ``reliability`` (mean labels by prediction),
``segments`` (metrics of parts of a split), ``paired`` (paired tests of losses), ``calibration`` (sum of predictions
over sum of labels), ``private_comparison`` (the last two, with noise) and ``recalibration`` (the shift of all logits
that makes predictions right on average). ``integer_noise`` draws that noise.

Not here: the losses that training minimises (``dp_core.training.losses``).
"""
