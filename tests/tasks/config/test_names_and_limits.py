"""Names that could leave their folder are refused, and so is what would plan or load for ever; each within seconds."""

from __future__ import annotations

import time

import pytest

from tasks.config.limits import MOST_STEPS, MOST_TRAININGS, step_problem
from tasks.config.loading import LONGEST_TEXT
from tasks.config.names import LONGEST_NAME, RESERVED_PIPELINES, checked_name
from tasks.config.yaml_lines import MOST_VALUES
from tests.support.yaml_files import DP_SGD, GRID, SMALL, Load, edit, mistakes

ALLOWED = "use letters (a to z, A to Z), digits, _ and -, at most 60 characters, the first not a -"
HOSTILE = [
    *("../../evil", "a/b", "..", ".", ".hidden", "", " ", "a b", "-rf", "a.b", "a\\\\b", "é", "a\\n", "a\\0b", "<b>"),
    *("$HOME", "a;b", "C:", "a" * (LONGEST_NAME + 1)),
]


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize(
    ("section", "old"), [("datasets", "  logs:\n"), ("profiles", "  tiny:\n    syn"), ("pipelines", "  sweep:\n")]
)
def test_a_name_that_is_none(load: Load, section: str, old: str, name: str) -> None:
    new = old.replace(old.split(":")[0].strip(), f'"{name}"')
    found = [line for line in mistakes(load, edit(SMALL, old, new)) if ALLOWED in line]
    assert len(found) == 1, found
    assert found[0].startswith(f"my.yaml:{SMALL[: SMALL.index(old)].count(chr(10)) + 1}: {section}.")


@pytest.mark.parametrize("name", ["a", "A-1", "_x", "0", "my_clicks-2", "a" * LONGEST_NAME])
def test_names_that_are_allowed(load: Load, name: str) -> None:
    text = edit(edit(SMALL, "  logs:\n", f'  "{name}":\n'), "{pctr: logs}", f'{{pctr: "{name}"}}')
    text = edit(text, "  sweep:\n", f'  "{name}":\n')
    config = load(text)
    assert list(config.datasets) == list(config.pipelines) == [name] == [checked_name(name)]


@pytest.mark.parametrize("name", [*RESERVED_PIPELINES, "nightly_retrain_x"])
def test_names_that_pipelines_cannot_have(load: Load, name: str) -> None:
    (only,) = mistakes(load, edit(SMALL, "  sweep:\n", f"  {name}:\n"))
    assert only.startswith(f"my.yaml:15: pipelines.{name}: ")
    assert "reserved" in only
    # Of a dataset, nobody makes a DAG or an address.
    load(edit(edit(SMALL, "  logs:\n", f"  {name}:\n"), "{pctr: logs}", f"{{pctr: {name}}}"))


def alias_bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("levels", [7, 10, 40, 200])
def test_aliases_of_aliases_are_refused_at_once(load: Load, levels: int) -> None:
    began = time.monotonic()
    (only,) = mistakes(load, alias_bomb(levels) + SMALL)
    assert time.monotonic() - began < 5
    assert only.startswith("my.yaml:6: a5: with every alias")
    assert f"{MOST_VALUES:,} values" in only


def test_merged_aliases_are_counted_too(load: Load) -> None:
    lines = ["m0: &m0 {x: 1, y: 2}"]
    lines += [f"m{n}: &m{n} {{<<: [{', '.join([f'*m{n - 1}'] * 9)}]}}" for n in range(1, 12)]
    began = time.monotonic()
    (only,) = mistakes(load, "\n".join(lines) + "\n" + SMALL)
    assert time.monotonic() - began < 5
    assert "with every alias" in only


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a {b: [{c: *a}]}\n"])
def test_what_contains_itself(load: Load, text: str) -> None:
    assert mistakes(load, text) == ["my.yaml is nested too deeply, or an alias in it refers to itself"]


def test_a_file_that_is_no_configuration(load: Load) -> None:
    (only,) = mistakes(load, "a" * (LONGEST_TEXT + 1))
    assert f"more than {LONGEST_TEXT:,} characters: is it the right file?" in only


@pytest.mark.parametrize(
    ("epochs", "numbers"),
    [("1.0e+9", "1e+09 epochs of 800 examples in batches of 128 are about 6.25e+09 steps"), ("1.0e+308", "steps")],
)
def test_epochs_that_nobody_trains(load: Load, epochs: str, numbers: str) -> None:
    (only,) = mistakes(load, edit(SMALL, "epochs: 2", f"epochs: [2, {epochs}]"))
    assert only.startswith(f"my.yaml:29: {DP_SGD}.epochs: ")
    assert numbers in only
    assert f"at most {MOST_STEPS:,} are trained: give at most 16,000,000 epochs" in only


def test_epochs_of_a_log_that_is_not_known_yet(load: Load) -> None:
    text = edit(edit(SMALL, "    synthetic: {kind: display}\n", ""), "epochs: 2", "epochs: 1.0e+9")
    (only,) = mistakes(load, text)
    assert "1e+09 epochs of any log in batches of 128 are at least 1e+09 steps" in only
    load(edit(text, "epochs: 1.0e+9", "epochs: 1000000"))
    assert "12,800 epochs" in str(step_problem(epochs=1e6, batch_size=128, examples=1_000_000))


def test_lists_that_multiply(load: Load) -> None:
    rates = ", ".join(str(n) for n in range(1, 101))
    text = edit(SMALL, "learning_rate: 0.1", f"learning_rate: [{rates}]")
    text = edit(text, "l2_clip_norm: [1, 4]", f"l2_clip_norm: [{rates}]")
    (only,) = mistakes(load, text)
    assert f"{DP_SGD}: 10,000 settings (every combination of the lists), 2 budgets and 1 seeds are 20,000" in only
    assert f"at most {MOST_TRAININGS:,} are planned" in only


@pytest.mark.parametrize(
    ("old", "new", "key", "limit"),
    [
        ("l2_clip_norm: [1, 4]", "l2_clip_norm: [1, 1.0e+300]", f"{DP_SGD}.l2_clip_norm.1", "1000000000000000"),
        (
            "l2_clip_norm: [1, 4]",
            "l2_clip_norm: [1, 1.0e-300]",
            f"{DP_SGD}.l2_clip_norm.1",
            "equal to 0.000000000000001,",
        ),
        ("seeds: 1", "seeds: 1000000000", f"{GRID}.seeds", "1000"),
        ("synthetic_rows: 1000", "synthetic_rows: 100000000000", "profiles.tiny.synthetic_rows", "1000000000"),
    ],
)
def test_numbers_that_no_training_has(load: Load, old: str, new: str, key: str, limit: str) -> None:
    (only,) = mistakes(load, edit(SMALL, old, new))
    assert f": {key}: input should be " in only
    assert limit in only
