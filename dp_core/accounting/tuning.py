"""What choosing the best of several trials costs, by the theorem of Papernot and Steinke (2022).

If the *number* of trials and each trial's settings are drawn at random, publishing the best one costs little
more than a single trial. A grid that is run completely is not such a choice: it costs the composition of all
its trials.
"""

from __future__ import annotations

import dp_accounting
from dp_accounting import dp_event

from dp_core.accounting.epsilon import rdp_bound
from dp_core.accounting.mechanism import MechanismRecord

# The shape of the truncated negative binomial distribution of the number of trials: 1 is geometric.
_GEOMETRIC = 1.0


def repeat_and_select_epsilon(record: MechanismRecord, target_delta: float, *, mean_trials: float) -> float:
    """Returns an upper bound on ε of publishing the best of a random number of trials.

    The number of trials is geometric, and every trial runs the record's mechanism with settings drawn at random.
    A private vocabulary is counted once, because it was chosen before all trials. The bound is by RDP, in which
    the theorem is stated (Papernot and Steinke, 2022, "Hyperparameter tuning with Rényi differential privacy",
    Theorem 2).

    Args:
        record: The mechanism of one trial.
        target_delta: The δ of the guarantee.
        mean_trials: The mean of the number of trials, above 1.

    Returns:
        ε, or infinity if RDP has no bound for the mechanism.

    Raises:
        ValueError: If ``mean_trials`` is out of range, or truncation uses up all of δ.
    """
    if mean_trials <= 1:
        raise ValueError(f"mean_trials must be above 1, got {mean_trials}")
    events: list[dp_accounting.DpEvent] = [
        dp_event.RepeatAndSelectDpEvent(record.training_event(), mean_trials, _GEOMETRIC)
    ]
    # Union bound: truncation may happen in any trial, and there are ``mean_trials`` trials in expectation.
    left = target_delta - mean_trials * record.truncation_delta()
    if record.vocabulary is not None:
        events.append(dp_accounting.GaussianDpEvent(record.vocabulary.noise_multiplier))
        left -= record.vocabulary.delta
    if left <= 0:
        raise ValueError(f"truncating large batches uses up all of δ = {target_delta:.2g} over {mean_trials:g} trials")
    return rdp_bound(dp_accounting.ComposedDpEvent(events), left, record.neighboring_relation)
