"""Privacy: what trained models guarantee, in numbers and in words.

Doors: ``cached_accounting`` (ε and noise, worked out once), ``best_bands`` (of correlated noise), ``questions`` (the
command line's questions about accounting), ``verdict`` (the audit's judgement of a trial) with its types
``audit_evidence`` and ``audit_result``, ``statement`` and ``label_statement`` (the privacy statements), ``guarantees``
(whether a model has one), ``releases`` and ``choice_cost`` (several models on the same examples), ``label_rate`` (the
noisy label rate that an initial bias follows from) with its part of a budget in ``label_rate_budget``, and
``noise_curves`` (Figure 2).

Not here: the mathematics (``dp_core.accounting``, ``dp_core.labels``, ``dp_core.audit``), and measuring a run
(``tasks.training.evidence``).
"""
