"""Accounting with a cache on disk: every question is worked out once.

A cached answer is returned without loading an accountant, which takes longer than reading the file. An answer is
worked out by a function of the question's own numbers: ``remembered`` takes the function and its arguments, makes the
cache key of all of them, and refuses functions that see anything else. So two questions with different answers cannot
share a key. Records are part of a question whole, whichever of their fields the answer depends on.

Besides, the key has the version of dp-accounting and the code that works the answer out:

- all of ``dp_core/accounting/`` and what it imports (``tasks.privacy.accounting_sources``);
- this module, which turns settings into events and splits δ;
- the module of the function that works the answer out, if it is another one (``tasks.privacy.questions``).

An answer is sealed with its checksum. One that was changed on disk is thrown away, said, and worked out again: an ε
that someone lowered would pass for a guarantee.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tasks.integrity.sealed import Damaged, seal, unseal
from tasks.privacy.accounting_sources import accounting_sources
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT, home, read_json, short_hash, write_json
from tasks.runtime.progress import say

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
    trainings: int = 1,
    label_rate_noise_multiplier: float | None = None,
    bands: int = 1,
) -> float:
    """Returns the noise multiplier that keeps a training, or several equal ones together, within a budget of (ε, δ).

    The budget also covers truncating large batches, which takes a fixed share of δ for each training; the missing
    tails of the noise, for the largest model and the noise of secret runs; ``vocabulary``, a private vocabulary
    released from the same examples; and the noisy label rate that each training releases, if it has a
    ``label_rate_noise_multiplier``.
    With ``bands`` above 1, the noise is correlated over that many steps.
    """
    return remembered(
        _noise_multiplier,
        epsilon=epsilon,
        delta=delta,
        examples=examples,
        batch_size=batch_size,
        steps=steps,
        sampler=sampler,
        # Two draws of a vocabulary cost the same, so ``draw`` is not part of the question.
        vocabulary=None if vocabulary is None else [vocabulary.noise_multiplier, vocabulary.delta],
        accountant=accountant,
        trainings=trainings,
        label_rate_noise_multiplier=label_rate_noise_multiplier,
        bands=bands,
    )


def _noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    examples: int,
    batch_size: int,
    steps: int,
    sampler: str,
    vocabulary: list[float] | None,
    accountant: Literal["tightest", "RDP"],
    trainings: int,
    label_rate_noise_multiplier: float | None,
    bands: int,
) -> float:
    import dp_accounting

    from dp_core.accounting.epsilon import calibrate_noise
    from dp_core.accounting.noise_tails import NoiseTails, least_noise_multiplier, tail_charge
    from dp_core.sampling import TRUNCATION_SHARE_OF_DELTA, make_sampler

    made = make_sampler(
        sampler, examples=examples, expected_batch_size=batch_size, steps=steps, target_delta=delta, bands=bands
    )
    left = delta * (1 - trainings * TRUNCATION_SHARE_OF_DELTA) - (0.0 if vocabulary is None else vocabulary[1])
    tails = functools.partial(tail_charge, made, steps=steps, tails=NoiseTails())

    def event(noise_multiplier: float) -> dp_accounting.DpEvent:
        training = made.event(noise_multiplier=noise_multiplier, steps=steps)
        if label_rate_noise_multiplier is not None:
            rate = dp_accounting.GaussianDpEvent(label_rate_noise_multiplier)
            training = dp_accounting.ComposedDpEvent([training, rate])
        if trainings > 1:
            training = dp_accounting.SelfComposedDpEvent(training, trainings)
        if vocabulary is None:
            return training
        return dp_accounting.ComposedDpEvent([training, dp_accounting.GaussianDpEvent(vocabulary[0])])

    def at(reserved: float) -> float:
        return calibrate_noise(
            event,
            target_epsilon=epsilon,
            target_delta=(left - reserved) * (1 - min(1.0, trainings * tails(noise_multiplier=1.0).share)),
            neighboring_relation=made.neighboring_relation,
            accountant=accountant,
        )

    # More noise makes both ε and the charge for tails smaller. So what too little noise needs is enough.
    # The compiled step gets the noise multiplier as a float32 number, which may be below by one part in 10⁷.
    reserved = NOISE_TAIL_SHARE_OF_DELTA * left
    enough = at(reserved)
    needed = trainings * tails(noise_multiplier=enough * (1 - 1e-6)).delta
    if needed > reserved:
        reserved = min(needed, left / 2)
        least = least_noise_multiplier(made, steps=steps, tails=NoiseTails(), allowed=reserved / trainings)
        enough = max(at(reserved), least * (1 + 1e-6))
    return enough


def epsilon_of(
    records: MechanismRecord | Iterable[MechanismRecord], delta: float, *, group_size: int = 1
) -> EpsilonBound:
    """Returns the upper bound on ε of one mechanism as it ran, or of several on the same examples together."""
    from dp_core.accounting.epsilon import EpsilonBound
    from dp_core.accounting.mechanism import MechanismRecord

    ran = [_at_any_clip_norm(one) for one in ([records] if isinstance(records, MechanismRecord) else records)]
    return EpsilonBound(*remembered(_epsilon_bound, records=ran, delta=delta, group_size=group_size))


def _epsilon_bound(*, records: list[MechanismRecord], delta: float, group_size: int) -> list[Any]:
    from dp_core.accounting.mechanism import compose

    return list(compose(records, group_size=group_size).epsilon_bound(delta))


def _at_any_clip_norm(record: MechanismRecord) -> MechanismRecord:
    """Returns the record that is asked about: noise is in clip norms, so that their length does not matter."""
    return dataclasses.replace(record, l2_clip_norm=1.0)


def epsilon_lower_of(record: MechanismRecord, delta: float) -> float | None:
    """Returns a lower bound on every valid ε of a mechanism; None if none is known for its sampler."""
    return remembered(_epsilon_lower, record=_at_any_clip_norm(record), delta=delta)


def _epsilon_lower(*, record: MechanismRecord, delta: float) -> float | None:
    return record.epsilon_lower(delta)


def selected_epsilon_of(records: Sequence[MechanismRecord], delta: float, *, mean_trials: float) -> float:
    """Returns ε of publishing the best of a random number of trials that all run the same mechanism.

    Raises ``UserError`` if the records are not of the same mechanism: the theorem has no answer for those.
    """
    if not same_mechanism(records):
        raise UserError(
            "repeat-and-select needs trainings of equal privacy, but these have different noise, batches or steps: "
            "train them again with one value of each setting that affects them, or with `search: all`"
        )
    return remembered(_selected_epsilon, record=_at_any_clip_norm(records[0]), delta=delta, mean_trials=mean_trials)


def _selected_epsilon(*, record: MechanismRecord, delta: float, mean_trials: float) -> float:
    from dp_core.accounting.tuning import repeat_and_select_epsilon

    return repeat_and_select_epsilon(record, delta, mean_trials=mean_trials)


def same_mechanism(records: Sequence[MechanismRecord]) -> bool:
    """Returns whether all records have the same accounting: events, truncation and vocabulary."""
    return all(
        one.training_event() == records[0].training_event()
        and one.truncation_delta() == records[0].truncation_delta()
        and one.vocabulary == records[0].vocabulary
        for one in records[1:]
    )


def remembered(answer: Callable[..., Any], /, **asked: Any) -> Any:
    """Returns ``answer(**asked)`` from the cache, or works it out and caches it.

    The question, which is the function's name and all of its arguments, must be JSON-able, except for dataclasses,
    which count with all their fields; numbers in the answer may be infinite. Raises ``UserError`` if the accountant
    fails on the numbers.
    """
    if answer.__closure__ or inspect.ismethod(answer):
        raise TypeError(f"{answer.__qualname__} sees more than its arguments: its answers must not be cached")
    question = {"of": f"{answer.__module__}.{answer.__qualname__}", "asked": _plain(asked)}
    key = short_hash([_accounting_version(), code_version(_module_of(answer)), question])
    path = cache_folder() / f"{key}.json"
    if path.exists():
        try:
            kept = read_answer(path)
            if kept["question"] != json.loads(json.dumps(question)):
                raise Damaged(f"{path} is damaged: it answers another question")
            return _from_json(kept["answer"])
        except (UserError, OSError) as error:
            say(f"{str(error).partition('. ')[0]}. It is thrown away, and the answer is worked out again")
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    try:
        value = answer(**asked)
    except (ArithmeticError, MemoryError, ValueError) as error:
        # The settings are too extreme for the accountant; only the user can change them.
        raise UserError(f"the accountant cannot work this out: {error}") from None
    write_json(path, seal({"question": question, "answer": _to_json(value)}))
    return value


def cache_folder() -> Path:
    """Returns the folder of the cached answers."""
    return home() / "cache" / "accounting"


def read_answer(path: Path) -> dict[str, Any]:
    """Reads a cached answer with its question. Raises ``UserError`` if it is not what was written."""
    kept, _ = unseal(path, read_json(path, alone=True), advice="Delete it")
    if kept.keys() != {"question", "answer"}:
        raise Damaged(f"{path} is damaged: it is no answer. Delete it")
    if str(kept["question"]["of"]).endswith("._epsilon_bound"):
        epsilon, *bounds = _from_json(kept["answer"])
        if epsilon < min(bounds[:2]):
            raise Damaged(f"{path} is damaged: its ε is below both bounds that it comes from. Delete it")
    return kept


def _plain(value: Any) -> Any:
    """Returns a question with dataclasses as dictionaries, under the names of their classes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: _plain(dataclasses.asdict(value))}
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
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
def _accounting_version() -> str:
    return version("dp-accounting")


@functools.cache
def code_version(asking: Path, checkout: Path = CHECKOUT) -> str:
    """Returns the hash of our code that an answer depends on, where ``asking`` is the module that works it out."""
    this = checkout / Path(__file__).relative_to(CHECKOUT)
    files = {*accounting_sources(checkout).values(), this, asking}
    return short_hash(sorted(path.read_text(encoding="utf-8") for path in files))


def _module_of(function: Callable[..., Any]) -> Path:
    return Path(inspect.getfile(function))
