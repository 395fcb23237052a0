"""Training: the DP-SGD step, from a sampled batch to new parameters.

Here are the step and its trainer, losses, optimisers, averages, noise, update rules, and how batches and
parameters are laid out on devices. Clipping is in ``dp_core.clipping``, sampling in
``dp_core.sampling``. Reading data, checkpoints and the training loop are in ``tasks``.

Doors: ``method`` says what to compile, ``step`` has the trainer, ``losses`` the tasks' objectives,
``physical_batches`` and ``placement`` the layout, ``optimizers`` the names for the configuration,
``rate_guess`` a first guess at the rate, ``averaging`` the averages of iterates, ``label_rate`` the noisy
label rate of an initial bias, ``updates`` the update rules that ``tasks/speed`` measures, ``lazy_updates`` those with
lazy tables and ``pending_noise`` what their rows owe, ``noise`` all noise of a training, ``correlated`` that which
is correlated from step to step and ``generators`` the keys that it is drawn with, ``witness`` what a step
reports of the rows it computed with.
"""
