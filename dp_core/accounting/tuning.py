"""What choosing among several trials costs, by the theorem of Papernot and Steinke (2022).

If the *number* of trials is drawn at random, and each trial's settings too, the best of them is
private at little more than the price of one. A grid that is worked through from end to end is not
such a choice: it costs what all its trials cost together, by composition.
"""

from __future__ import annotations

import dp_accounting
from dp_accounting import dp_event

from dp_core.accounting import rdp_bound
from dp_core.mechanism import MechanismRecord

# The shape of the distribution of the number of trials: this one is geometric.
_GEOMETRIC = 1.0


def repeat_and_select_epsilon(record: MechanismRecord, target_delta: float, *, mean_trials: float) -> float:
    """ε of the best of a geometric number of trials with the given mean, each with the record's mechanism.

    From RDP, which is all that the theorem is stated in. A private vocabulary was chosen once, before all trials.
    """
    if mean_trials <= 1:
        raise ValueError(f"mean_trials must be above 1, got {mean_trials}")
    events: list[dp_accounting.DpEvent] = [
        dp_event.RepeatAndSelectDpEvent(record.training_event(), mean_trials, _GEOMETRIC)
    ]
    # Over a random number of trials batches are cut so many times as often, in the mean.
    left = target_delta - mean_trials * record.truncation_delta()
    if record.vocabulary is not None:
        events.append(dp_accounting.GaussianDpEvent(record.vocabulary.noise_multiplier))
        left -= record.vocabulary.delta
    if left <= 0:
        raise ValueError(f"cutting large batches takes all of δ = {target_delta:.2g} over {mean_trials:g} trials")
    return rdp_bound(dp_accounting.ComposedDpEvent(events), left, record.neighboring_relation)
