"""Evaluation: which of two models is better on the same labelled rows, and how well calibrated each is.

Everything here works on logits and labels in NumPy, without JAX. ``paired`` and ``calibration`` compute exact values,
which are not private; ``private_comparison`` answers the same questions through one release with Gaussian noise.

Doors: ``paired`` (paired tests of losses), ``calibration`` (sum of predictions over sum of labels) and
``private_comparison`` (both of them, with noise). ``integer_noise`` draws that noise.

Not here: the losses that training minimises and reports (``dp_core.training.losses``).
"""
