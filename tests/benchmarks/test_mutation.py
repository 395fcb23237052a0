"""Mutants change what they say and nothing else; tests kill them or not; the list of equivalents stays true."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.mutation.__main__ import CHECKOUT, run_target
from benchmarks.mutation.equivalents import StaleEquivalentError, read_equivalents, reasons_by_id
from benchmarks.mutation.operators import Mutant, mutants
from benchmarks.mutation.report import Result, page
from benchmarks.mutation.targets import AUDIT, TARGETS, Target, chosen
from benchmarks.mutation.workshop import BrokenTestsError, open_workshop
from tests.support.markdown import table_rows


def changes(source: str) -> dict[str, str]:
    """What each mutant of a source makes of it, by operator."""
    return {one.operator: one.applied(source.encode()).decode() for one in mutants("m.py", source.encode())}


@pytest.mark.parametrize(
    ("source", "operator", "mutated"),
    [
        ("y = (a) + (b)", "AddToSub", "y = (a) - (b)"),
        ("y = σ - b", "SubToAdd", "y = σ + b"),
        ("y = a * b / c", "MulToDiv", "y = a / b / c"),
        ("y = a * b / c", "DivToMul", "y = a * b * c"),
        ("y = a**b", "PowToMul", "y = a*b"),
        ("y += b", "AddToSub", "y -= b"),
        ("y = a ^ b", "XorToOr", "y = a | b"),
        ("y = 0 < a <= b", "LessToLessEqual", "y = 0 <= a <= b"),
        ("y = 0 < a <= b", "LessEqualToLess", "y = 0 < a < b"),
        ("y = a == b", "EqualToUnequal", "y = a != b"),
        ("y = jnp.minimum(a, b)", "MinToMax", "y = jnp.maximum(a, b)"),
        ("y = max(a, b)", "MaxToMin", "y = min(a, b)"),
        ("y = a and b", "AndToOr", "y = a or b"),
        ("y = not a", "DroppedNot", "y = a"),
        ("y = -(a // b)", "DroppedMinus", "y = (a // b)"),
        ("y = 3", "ConstantPlusOne", "y = 4"),
        ("y = 3", "ConstantHalved", "y = 1"),
        ("y = 1e-3", "ConstantDoubled", "y = 0.002"),
        ("y = 2.0", "ConstantToZero", "y = 0.0"),
        ("y = True", "FlippedBoolean", "y = False"),
        ("y = a if b else c", "NegatedCondition", "y = a if (not (b)) else c"),
        ("y = f(a, group_size=b)", "NeutralArgument", "y = f(a, group_size=1)"),
        ("def f():\n    return a + b", "ReturnedLeft", "def f():\n    return (a)"),
        ("def f():\n    return min(a, b)", "ReturnedRight", "def f():\n    return (b)"),
    ],
)
def test_a_mutant_changes_one_token(source: str, operator: str, mutated: str) -> None:
    assert changes(source)[operator] == mutated


@pytest.mark.parametrize(
    "source",
    [
        '"""1 + 2"""',
        "y: Literal[1] | None",
        "def f(x: int | None) -> Literal[1] | None: ...",
        "@cache(maxsize=3)\ndef f(): ...",
        "raise ValueError(f'{a + 1}')",
        "y = f'{a + 1}'",
        "if TYPE_CHECKING:\n    y = 1",
    ],
)
def test_texts_and_types_are_left_alone(source: str) -> None:
    assert changes(source) == {}


def test_ids_name_the_place_and_keys_outlive_a_move() -> None:
    source = b"def f(a):\n    return a + 1 + a\n"
    found = mutants("m.py", source)
    assert [one.id for one in found if "Add" in one.operator] == ["m.py:2:AddToSub", "m.py:2:AddToSub.2"]
    moved = mutants("m.py", b"# Another line.\n" + source)
    assert [one.key for one in moved] == [one.key for one in found]
    assert {one.line for one in moved} == {3}


def test_the_chosen_mutants_are_the_same_every_time() -> None:
    found = {target: chosen(target, CHECKOUT) for target in TARGETS}
    assert found == {target: chosen(target, CHECKOUT) for target in TARGETS}
    assert sum(map(len, found.values())) >= 170
    assert all(len({one.key for one in mutants}) == len(mutants) >= 3 for mutants in found.values())


def test_the_tests_exist_and_the_equivalents_are_mutants_that_are_run() -> None:
    files = [*AUDIT, *(test for target in TARGETS for test in target.files(CHECKOUT))]
    assert [file for file in files if not (CHECKOUT / file.partition("::")[0]).exists()] == []
    reasons = reasons_by_id([one for target in TARGETS for one in chosen(target, CHECKOUT)], read_equivalents())
    assert all(len(reason) > 20 for reason in reasons.values())


def test_the_page_is_about_the_mutants_that_are_run() -> None:
    rows = table_rows((CHECKOUT / "docs" / "mutants.md").read_text())
    shown = {row[0].strip("`"): (row[1], row[-1]) for row in rows if row[0].startswith("`")}
    assert shown == {target.path: (str(len(chosen(target, CHECKOUT))), "0") for target in TARGETS}, "make mutants again"


TOY = Target("toy.py", 4)
AUDIT_OF_TOY = ("tests/test_toy.py",)
SOURCE = "def larger(a, b):\n    return a if a > b else b\n"


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    root = tmp_path / "toy"
    (root / "tests").mkdir(parents=True)
    (root / "toy.py").write_text(SOURCE)
    test = "from toy import larger\n\n\ndef test_larger():\n    assert larger(1, 2) == larger(2, 1) == 2\n"
    (root / "tests" / "test_toy.py").write_text(test)
    return root


def test_a_mutant_is_killed_or_survives(toy: Path, tmp_path: Path) -> None:
    found = chosen(TOY, toy)
    with open_workshop(toy, tmp_path / "answers.json", libraries=()) as workshop:
        results = {result.mutant.operator: result for result in run_target(workshop, TOY, found, AUDIT_OF_TOY)}
        assert (toy / "toy.py").read_text() == (workshop.copy / "toy.py").read_text() == SOURCE
    assert results["NegatedCondition"].verdict == "tests"
    assert results["NegatedCondition"].by == "tests/test_toy.py::test_larger"
    assert results["MoreToMoreEqual"].verdict == "survived"

    with open_workshop(toy, tmp_path / "answers.json", libraries=()) as workshop:
        workshop.nursery.process.kill()
        assert run_target(workshop, TOY, found, AUDIT_OF_TOY) == list(results.values())


def test_tests_that_fail_by_themselves_are_refused(toy: Path, tmp_path: Path) -> None:
    (toy / "tests" / "test_toy.py").write_text("def test_nothing():\n    assert False\n")
    with (
        open_workshop(toy, tmp_path / "answers.json", libraries=()) as workshop,
        pytest.raises(BrokenTestsError, match="test_nothing"),
    ):
        workshop.seconds_of(["tests/test_toy.py"])


def test_stale_equivalents_are_refused(tmp_path: Path) -> None:
    found = mutants("toy.py", SOURCE.encode())
    entry = dict(zip(("path", "function", "text", "operator"), found[0].key, strict=True))
    listed = tmp_path / "equivalent.json"
    listed.write_text(json.dumps([{**entry, "reason": "both are equal"}]))
    reasons = read_equivalents(listed)
    assert reasons_by_id(found, reasons) == {found[0].id: "both are equal"}
    with pytest.raises(StaleEquivalentError, match="not among the mutants"):
        reasons_by_id(mutants("toy.py", SOURCE.replace("a > b", "a >  b").encode()), reasons)
    listed.write_text(json.dumps([{**entry, "reason": reason} for reason in "ab"]))
    with pytest.raises(StaleEquivalentError, match="twice"):
        read_equivalents(listed)


def result(mutant: Mutant, verdict: str) -> Result:
    return Result(mutant, verdict, "" if verdict == "survived" else "test_it", 1.0)


def test_the_page_counts_and_names_them() -> None:
    one, two, three, *_ = mutants("toy.py", b"def f(a, b):\n    return a > b + 1\n")
    text = page([result(one, "tests"), result(two, "audit"), result(three, "survived")], {three.id: "never happens"})
    assert "| `toy.py` | 3 | 1 | 1 | 1 | 0 |" in text
    assert f"- `{three.id}`, in `return a > b + 1`: never happens" in text
    assert "## Survived" not in text
    with pytest.raises(StaleEquivalentError, match="test_it notices it"):
        page([result(one, "tests")], {one.id: "never happens"})
