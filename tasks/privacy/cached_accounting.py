"""Accounting with a memory on disk: the same question is worked out once.

A remembered answer is given without loading an accountant, which takes longer than reading it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.errors import UserError
from tasks.home import CHECKOUT, home, read_json, short_hash, write_json

if TYPE_CHECKING:
    from dp_core.accounting import EpsilonBound
    from dp_core.mechanism import MechanismRecord, VocabularyRelease

# The modules of dp_core that an answer depends on.
_SOURCES = (
    "accounting",
    "adaptive_clipping",
    "binomials",
    "events",
    "loss_cells",
    "lower_bound",
    "mechanism",
    "privacy_loss",
    "random_allocation",
    "sampling",
    "tuning",
)


def noise_multiplier_for(
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: int,
    steps: int,
    sampler: str = "poisson",
    vocabulary: VocabularyRelease | None = None,
    accountant: Literal["tightest", "RDP"] = "tightest",
) -> float:
    """The noise multiplier for a budget, of which cutting batches gets its share of δ.

    ``vocabulary`` is a private one that the budget must also cover.
    """

    def calibrate() -> float:
        import dp_accounting

        from dp_core.accounting import calibrate_noise
        from dp_core.sampling import TRUNCATION_SHARE_OF_DELTA, make_sampler

        made = make_sampler(sampler, examples=examples, expected_batch_size=batch_size, steps=steps, target_delta=delta)
        left = delta * (1 - TRUNCATION_SHARE_OF_DELTA)

        def event(noise_multiplier: float) -> dp_accounting.DpEvent:
            training = made.event(noise_multiplier=noise_multiplier, steps=steps)
            if vocabulary is None:
                return training
            return dp_accounting.ComposedDpEvent([training, dp_accounting.GaussianDpEvent(vocabulary.noise_multiplier)])

        return calibrate_noise(
            event,
            target_epsilon=epsilon,
            target_delta=left if vocabulary is None else left - vocabulary.delta,
            neighboring_relation=made.neighboring_relation,
            accountant=accountant,
        )

    # Which draw of a vocabulary it is makes no difference.
    covered = None if vocabulary is None else [vocabulary.noise_multiplier, vocabulary.delta]
    question = ["calibrate", epsilon, delta, examples, batch_size, steps, sampler, covered, accountant]
    return remembered(question, calibrate)


def epsilon_of(
    records: MechanismRecord | Iterable[MechanismRecord], delta: float, *, group_size: int = 1
) -> EpsilonBound:
    """ε of a mechanism as it was run, or of several on the same examples."""
    from dp_core.accounting import EpsilonBound
    from dp_core.mechanism import MechanismRecord, compose

    ran = compose([records] if isinstance(records, MechanismRecord) else records, group_size=group_size)
    question = ["epsilon", repr(ran.event), delta, ran.spent_delta, ran.neighboring_relation.name]
    return EpsilonBound(*remembered(question, lambda: list(ran.epsilon_bound(delta))))


def epsilon_lower_of(record: MechanismRecord, delta: float) -> float | None:
    """What no accounting of a mechanism can be below; None where that is not known."""
    question = ["epsilon_lower", record.sampler, repr(record.training_event()), delta, record.truncation_delta()]
    return remembered(question, lambda: record.epsilon_lower(delta))


def selected_epsilon_of(record: MechanismRecord, delta: float, *, mean_trials: float) -> float:
    """ε of the best of a random number of trials, each with this mechanism."""
    from dp_core.tuning import repeat_and_select_epsilon

    question = [
        "select",
        repr(record.training_event()),
        record.vocabulary,
        record.truncation_delta(),
        delta,
        mean_trials,
    ]
    return remembered(question, lambda: repeat_and_select_epsilon(record, delta, mean_trials=mean_trials))


def remembered(question: list[Any], answer: Callable[[], Any]) -> Any:
    """The answer to a question, worked out unless it was before; both are JSON-able, but for infinity."""
    path = home() / "cache" / "accounting" / f"{short_hash([_accounting_version(), question])}.json"
    if path.exists():
        return _from_json(read_json(path)["answer"])
    try:
        value = answer()
    except (ArithmeticError, MemoryError, ValueError) as error:
        # Numbers so far out that the accountant fails on them are the user's to change.
        raise UserError(f"the accountant cannot work this out: {error}") from None
    write_json(path, {"question": question, "answer": _to_json(value)})
    return value


def _to_json(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return "inf" if value == math.inf else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return math.inf if value == "inf" else value


def _accounting_version() -> list[str]:
    """What an answer depends on besides the question: dp_accounting, and our code on top of it."""
    sources = [Path(CHECKOUT / "dp_core" / f"{name}.py").read_text(encoding="utf-8") for name in _SOURCES]
    return [version("dp-accounting"), short_hash(sources)]
