"""The cache of accounting answers: a key is the whole question."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease
from tasks.integrity.sealed import seal
from tasks.privacy import cached_accounting
from tasks.privacy.cached_accounting import (
    epsilon_lower_of,
    epsilon_of,
    noise_multiplier_for,
    remembered,
    same_mechanism,
    selected_epsilon_of,
)
from tasks.privacy.questions import Training, calibration_answer, epsilon_answer
from tasks.runtime.errors import UserError
from tests.support.records import record

pytestmark = pytest.mark.usefixtures("own_home")

# One change of each field of a record, and some together. A field that is added to the record needs a change here.
CHANGES: list[dict[str, Any]] = [
    {},
    {"sampler": "shuffle"},
    {"sampler": "balls_in_bins"},
    {"examples": 100_001},
    {"expected_batch_size": 1001},
    {"max_batch_size": 1299},
    {"steps": 501},
    {"noise_multiplier": 1.0000001},
    {"clipping": "adaptive", "count_noise_multiplier": 10.0},
    {"clipping": "adaptive", "count_noise_multiplier": 11.0},
    {"microbatch_size": 16},
    {"microbatch_size": 16, "sensitivity": 2.0},
    {"sensitivity": 2.0},
    {"vocabulary": VocabularyRelease(5.0, 1e-9, "a")},
    {"vocabulary": VocabularyRelease(5.0, 1e-9, "b")},
    {"vocabulary": VocabularyRelease(6.0, 1e-9, "a")},
]


def keys_of(own_home: Path, ask: Callable[[], object]) -> frozenset[str]:
    """Returns the cache files that a question makes, with accountants that answer at once."""
    folder = own_home / "cache" / "accounting"
    before = set(folder.glob("*.json"))
    ask()
    return frozenset(path.name for path in set(folder.glob("*.json")) - before)


def test_two_questions_never_share_a_key(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of records, δ, group sizes and kinds of question: each makes a file of its own."""
    bound = [1.0, 1.0, 1.0, 1e-3, 0.0, True]
    for name, answer in (
        ("_epsilon_bound", bound),
        ("_epsilon_lower", 1.0),
        ("_selected_epsilon", 1.0),
        ("_noise_multiplier", 1.0),
    ):
        real = getattr(cached_accounting, name)

        def quick(_answer: object = answer, **_asked: object) -> object:
            return _answer

        functools.update_wrapper(quick, real)
        monkeypatch.setattr(cached_accounting, name, quick)
    asked: list[Callable[[], object]] = []
    for change, delta in itertools.product(CHANGES, (1e-5, 1.1e-5)):
        ran = record(**change)
        asked.append(functools.partial(epsilon_of, ran, delta))
        asked.append(functools.partial(epsilon_of, [ran, ran], delta))
        asked.append(functools.partial(epsilon_of, ran, delta, group_size=2))
        asked.append(functools.partial(epsilon_lower_of, ran, delta))
        asked.append(functools.partial(selected_epsilon_of, [ran], delta, mean_trials=4))
        asked.append(functools.partial(selected_epsilon_of, [ran], delta, mean_trials=5))
    plain = {"epsilon": 1.0, "delta": 1e-5, "examples": 1000, "batch_size": 10, "steps": 10}
    for change in (
        {},
        *({name: value * 2} for name, value in plain.items()),
        {"sampler": "shuffle"},
        {"accountant": "RDP"},
        {"vocabulary": VocabularyRelease(5.0, 1e-9, "a")},
        {"vocabulary": VocabularyRelease(5.0, 2e-9, "a")},
    ):
        asked.append(functools.partial(noise_multiplier_for, **{**plain, **change}))
    seen = [keys_of(own_home, ask) for ask in asked]
    assert all(len(keys) == 1 for keys in seen)
    assert len(frozenset().union(*seen)) == len(asked)


def test_every_field_of_a_record_is_changed_above() -> None:
    plain = record()
    names = {field.name for field in dataclasses.fields(MechanismRecord)}
    changed = {name for change in CHANGES for name in change if getattr(record(**change), name) != getattr(plain, name)}
    # Fields of other parts (noise tails) may be added to the record: they are in the key, because all fields are.
    assert {"sampler", "steps", "microbatch_size", "sensitivity", "vocabulary", "clipping"} <= changed <= names


def test_the_clip_norm_is_not_part_of_a_question(own_home: Path) -> None:
    """Noise is in clip norms: trials that differ in them alone have one ε, which is worked out once."""
    assert len(keys_of(own_home, lambda: epsilon_of(record(), 1e-5))) == 1
    assert keys_of(own_home, lambda: epsilon_of(record(l2_clip_norm=3.0), 1e-5)) == frozenset()


def test_groups_and_batches_have_lower_bounds_of_their_own() -> None:
    """The two pairs that shared a key: the second answers were those of the first questions."""
    for ran in (
        record(noise_multiplier=2.0, sensitivity=2.0, microbatch_size=1),
        record(noise_multiplier=2.0, sensitivity=2.0, microbatch_size=16),
        record(sampler="shuffle", examples=60_000, expected_batch_size=60_000, steps=1, noise_multiplier=0.8),
        record(sampler="shuffle", examples=60_000, expected_batch_size=100, steps=600, noise_multiplier=0.8),
    ):
        assert epsilon_lower_of(ran, 1e-5) == ran.epsilon_lower(1e-5)
        assert epsilon_lower_of(ran, 1e-5) == ran.epsilon_lower(1e-5), "from the cache"


def test_an_answer_is_worked_out_once(own_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = epsilon_of(record(), 1e-5)
    monkeypatch.setattr(MechanismRecord, "training_event", None)
    assert epsilon_of(record(), 1e-5) == first


def test_questions_on_the_command_line_are_cached_whole(own_home: Path) -> None:
    training = Training(examples=2000, batch_size=100, steps=20)
    asked: list[Callable[[], object]] = [
        functools.partial(epsilon_answer, training, noise_multiplier=2.0),
        functools.partial(epsilon_answer, training, noise_multiplier=2.5),
        functools.partial(epsilon_answer, training, noise_multiplier=2.0, group_size=2),
        functools.partial(epsilon_answer, training._replace(steps=21), noise_multiplier=2.0),
        functools.partial(epsilon_answer, training._replace(delta=1e-5), noise_multiplier=2.0),
        functools.partial(epsilon_answer, training._replace(sampler="shuffle"), noise_multiplier=2.0),
        functools.partial(calibration_answer, training, epsilon=2.0),
        functools.partial(calibration_answer, training, epsilon=2.5),
    ]
    answers = [ask() for ask in asked]
    assert [ask() for ask in asked] == answers
    for one, other in itertools.combinations(answers, 2):
        assert one != other


def test_a_function_that_sees_more_than_its_arguments_is_refused() -> None:
    hidden = 3

    def leaky(*, number: int) -> int:
        return number + hidden

    with pytest.raises(TypeError, match="sees more than its arguments"):
        remembered(leaky, number=1)


def test_trainings_of_different_privacy_have_no_repeat_and_select() -> None:
    ran = record()
    assert same_mechanism([ran, record(l2_clip_norm=7.0)])
    for change in ({"noise_multiplier": 1.1}, {"steps": 400}, {"max_batch_size": 1200}, {"microbatch_size": 2}):
        assert not same_mechanism([ran, ran, record(**change)])
        with pytest.raises(UserError, match="needs trainings of equal privacy"):
            selected_epsilon_of([ran, record(**change)], 1e-5, mean_trials=4)


@pytest.mark.parametrize("damage", ["lower", "resealed", "empty", "truncated", "a list", "another question"])
def test_a_changed_answer_is_thrown_away_said_and_worked_out_again(
    own_home: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An ε that was lowered on disk is never used, also if someone sealed it again."""
    right = epsilon_of(record(), 1e-5)
    [path] = (own_home / "cache" / "accounting").iterdir()
    whole = path.read_text()
    kept = json.loads(whole)
    low = {"question": kept["question"], "answer": [0.1234, *kept["answer"][1:]]}
    path.write_text(
        {
            "lower": json.dumps({**kept, **low}),
            "resealed": json.dumps(seal(low)),
            "empty": "",
            "truncated": whole[: len(whole) // 2],
            "a list": "[]",
            "another question": json.dumps(seal({**low, "question": {"of": "another", "asked": {}}})),
        }[damage]
    )
    assert epsilon_of(record(), 1e-5) == right
    [line] = capsys.readouterr().out.splitlines()
    assert str(path) in line
    assert line.endswith("It is thrown away, and the answer is worked out again")
    assert path.read_text() == whole
    assert epsilon_of(record(), 1e-5) == right
    assert capsys.readouterr().out == ""
