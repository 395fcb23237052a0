"""Whether a relative loss is the price of privacy, or of something else: an unfinished search, a weak baseline, chance.

A relative loss says what a budget costs only if both models are the best that can be had. Each module asks what else
could explain the numbers of a run and answers with doubts: ``tuning`` (was the search finished?), ``learning`` (was the
training?), ``budgets`` (does the loss behave over ε as the price of privacy must?), ``sampling`` (is the test split
large enough?). Belongs here: tests on the outcomes of a run, with their thresholds. Does not belong here: how a doubt
is shown (``page``, ``terminal``), or what to train next (``tasks.rounds``).

Doors: ``judge`` collects the doubts about a run, ``doubts`` has their type and the verdict,
``sampling`` the labels that a judgement is given.
"""
