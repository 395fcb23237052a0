"""Rounds: what a run trains after its first plan, once the outcomes of what it has trained are known.

The first round of a run is its grid. A planner of rounds reads the outcomes of the earlier rounds and lists the trials
of the next one; a run asks its planners one after the other, each until it has nothing more to train. A planner decides
by validation loss alone, and its answer follows from the plan and the finished trials, so that a run that was killed
comes to the same trials. Belongs here: what to train next. Does not belong here: how trials are trained or judged.

Doors: ``registry`` (planners and the number of rounds of a pipeline), ``history`` (what a planner is given), ``cells``
(what a planner asks for, and the best so far), ``finalists`` (what a search has chosen), ``extending``, ``halving`` and
``rungs`` (names and limits of the searches), ``rates`` (rates as a grid writes them), ``searched`` and ``picture`` (a
search in a report), ``decomposition`` (the trials that take a private one apart).
"""
