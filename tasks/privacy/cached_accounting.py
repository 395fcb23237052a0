"""Accounting with a cache on disk: every question is worked out once.

A cached answer is returned without loading an accountant, which takes longer than reading the file. The cache
key is the question, the version of dp-accounting and the code that works the answer out:

- all of ``dp_core/accounting/`` and what it imports (``tasks.privacy.accounting_sources``);
- this module, which turns settings into events and splits δ;
- the module of the function that works the answer out, if it is another one (``tasks.privacy.questions``).
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.privacy.accounting_sources import accounting_sources
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT, home, read_json, short_hash, write_json

if TYPE_CHECKING:
    from dp_core.accounting.epsilon import EpsilonBound
    from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease


# The share of δ that is set aside for the missing tails of the noise. Only very little noise, or very many steps of
# balls in bins, needs more.
NOISE_TAIL_SHARE_OF_DELTA = 1e-3


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
    """Returns the noise multiplier that keeps a training within a budget of (ε, δ).

    The budget also covers truncating large batches, which takes a fixed share of δ; the missing tails of the noise,
    for the largest model and the noise of secret runs; and ``vocabulary``, a private vocabulary released from the
    same examples.
    """

    def calibrate() -> float:
        import dp_accounting

        from dp_core.accounting.epsilon import calibrate_noise
        from dp_core.accounting.noise_tails import NoiseTails, least_noise_multiplier, tail_charge
        from dp_core.sampling import TRUNCATION_SHARE_OF_DELTA, make_sampler

        made = make_sampler(sampler, examples=examples, expected_batch_size=batch_size, steps=steps, target_delta=delta)
        left = delta * (1 - TRUNCATION_SHARE_OF_DELTA) - (0.0 if vocabulary is None else vocabulary.delta)
        tails = functools.partial(tail_charge, made, steps=steps, tails=NoiseTails())

        def event(noise_multiplier: float) -> dp_accounting.DpEvent:
            training = made.event(noise_multiplier=noise_multiplier, steps=steps)
            if vocabulary is None:
                return training
            return dp_accounting.ComposedDpEvent([training, dp_accounting.GaussianDpEvent(vocabulary.noise_multiplier)])

        def at(reserved: float) -> float:
            return calibrate_noise(
                event,
                target_epsilon=epsilon,
                target_delta=(left - reserved) * (1 - tails(noise_multiplier=1.0).share),
                neighboring_relation=made.neighboring_relation,
                accountant=accountant,
            )

        # More noise makes both ε and the charge for tails smaller. So what too little noise needs is enough.
        # The compiled step gets the noise multiplier as a float32 number, which may be below by one part in 10⁷.
        reserved = NOISE_TAIL_SHARE_OF_DELTA * left
        enough = at(reserved)
        needed = tails(noise_multiplier=enough * (1 - 1e-6)).delta
        if needed > reserved:
            reserved = min(needed, left / 2)
            least = least_noise_multiplier(made, steps=steps, tails=NoiseTails(), allowed=reserved)
            enough = max(at(reserved), least * (1 + 1e-6))
        return enough

    # Two draws of a vocabulary cost the same, so ``draw`` is not part of the question.
    covered = None if vocabulary is None else [vocabulary.noise_multiplier, vocabulary.delta]
    question = ["calibrate", epsilon, delta, examples, batch_size, steps, sampler, covered, accountant]
    return remembered(question, calibrate)


def epsilon_of(
    records: MechanismRecord | Iterable[MechanismRecord], delta: float, *, group_size: int = 1
) -> EpsilonBound:
    """Returns the upper bound on ε of one mechanism as it ran, or of several on the same examples together."""
    from dp_core.accounting.epsilon import EpsilonBound
    from dp_core.accounting.mechanism import MechanismRecord, compose

    ran = compose([records] if isinstance(records, MechanismRecord) else records, group_size=group_size)
    question = ["epsilon", repr(ran.event), delta, ran.spent_delta, ran.lost_share, ran.neighboring_relation.name]
    return EpsilonBound(*remembered(question, lambda: list(ran.epsilon_bound(delta))))


def epsilon_lower_of(record: MechanismRecord, delta: float) -> float | None:
    """Returns a lower bound on every valid ε of a mechanism; None if none is known for its sampler."""
    question = ["epsilon_lower", record.sampler, repr(record.training_event()), delta, record.truncation_delta()]
    return remembered(question, lambda: record.epsilon_lower(delta))


def selected_epsilon_of(record: MechanismRecord, delta: float, *, mean_trials: float) -> float:
    """Returns ε of publishing the best of a random number of trials that all run this mechanism."""
    from dp_core.accounting.tuning import repeat_and_select_epsilon

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
    """Returns the answer to a question from the cache, or works it out and caches it.

    Question and answer must be JSON-able, except that numbers in the answer may be infinite. Raises
    ``UserError`` if the accountant fails on the numbers.
    """
    key = short_hash([version("dp-accounting"), code_version(_module_of(answer)), question])
    path = home() / "cache" / "accounting" / f"{key}.json"
    if path.exists():
        return _from_json(read_json(path, alone=True)["answer"])
    try:
        value = answer()
    except (ArithmeticError, MemoryError, ValueError) as error:
        # The settings are too extreme for the accountant; only the user can change them.
        raise UserError(f"the accountant cannot work this out: {error}") from None
    write_json(path, {"question": question, "answer": _to_json(value)})
    return value


def _to_json(value: Any) -> Any:
    """Replaces infinity, which JSON does not have, by a string."""
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return "inf" if value == math.inf else value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(item) for item in value]
    return math.inf if value == "inf" else value


@functools.cache
def code_version(asking: Path, checkout: Path = CHECKOUT) -> str:
    """Returns the hash of our code that an answer depends on, where ``asking`` is the module that works it out."""
    this = checkout / Path(__file__).relative_to(CHECKOUT)
    files = {*accounting_sources(checkout).values(), this, asking}
    return short_hash(sorted(path.read_text(encoding="utf-8") for path in files))


def _module_of(function: Callable[[], Any]) -> Path:
    return Path(inspect.getfile(function))
