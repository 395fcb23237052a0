"""The accounting cache's key covers exactly the code that answers depend on, and accounting needs no JAX."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tasks.privacy.cached_accounting
import tasks.privacy.questions
from tasks.privacy.accounting_sources import accounting_sources
from tasks.privacy.cached_accounting import code_version
from tasks.runtime.home import CHECKOUT

SOURCES = sorted(str(path.relative_to(CHECKOUT)) for path in accounting_sources().values())
CACHE = "tasks/privacy/cached_accounting.py"
QUESTIONS = "tasks/privacy/questions.py"

# Imports by walking the packages, and asks every kind of question.
SCRIPT = """
import importlib, json, pkgutil, sys

def load(package):
    module = importlib.import_module(package)
    for _, name, _ in pkgutil.walk_packages(getattr(module, "__path__", []), package + "."):
        importlib.import_module(name)

def loaded(*roots):
    return sorted(name for name in sys.modules if name.split(".")[0] in roots)

load("dp_core.accounting")
accounting = loaded("dp_core", "tasks")

from dp_core.accounting.mechanism import MechanismRecord
from tasks.privacy import cached_accounting as cached
from tasks.privacy.questions import Training, calibration_answer, epsilon_answer

settings = dict(examples=1000, batch_size=100, steps=20)
for sampler in ("poisson", "shuffle", "balls_in_bins"):
    sigma = cached.noise_multiplier_for(epsilon=2.0, delta=1e-4, sampler=sampler, **settings)
    epsilon_answer(Training(1000, 100, sampler, steps=20), noise_multiplier=sigma)
calibration_answer(Training(1000, 100, steps=20), epsilon=2.0)
record = MechanismRecord(
    sampler="poisson", examples=1000, expected_batch_size=100, max_batch_size=1000, steps=20,
    noise_multiplier=2.0, l2_clip_norm=1.0, clipping="adaptive", count_noise_multiplier=20.0,
)
cached.epsilon_of([record, record], 1e-4)
cached.epsilon_lower_of(record, 1e-4)
cached.selected_epsilon_of([record], 1e-4, mean_trials=4)
answering = loaded("dp_core")

for package in ("dp_core.labels", "dp_core.sampling", "dp_core.partition_selection"):
    load(package)
print(json.dumps({"accounting": accounting, "answering": answering, "jax": loaded("jax", "jaxlib", "flax", "optax")}))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Returns the modules that a fresh process holds after importing, and after using, the accounting."""
    environment = {**os.environ, "DP_ADS_HOME": str(tmp_path_factory.mktemp("home")), "PYTHONPATH": str(CHECKOUT)}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=True
    )
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_rule_finds_what_python_loads(loaded: dict[str, list[str]]) -> None:
    assert sorted(accounting_sources()) == loaded["accounting"]


def test_answering_loads_nothing_that_the_key_does_not_cover(loaded: dict[str, list[str]]) -> None:
    assert sorted(accounting_sources()) == loaded["answering"]


def test_accounting_labels_and_sampling_need_no_jax(loaded: dict[str, list[str]]) -> None:
    assert loaded["jax"] == []


def test_all_of_the_accounting_room_is_covered() -> None:
    room = {str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "dp_core" / "accounting").glob("*.py")}
    assert room < set(SOURCES)
    assert "dp_core/sampling.py" in SOURCES


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the files that the key covers, and of two that it does not."""
    for name in (*SOURCES, CACHE, QUESTIONS, "dp_core/labels/record.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, tmp_path / name)
    return tmp_path


def version_of(checkout: Path, asking: str = CACHE) -> str:
    accounting_sources.cache_clear()
    code_version.cache_clear()
    return code_version(checkout / asking, checkout)


def test_a_copy_has_the_same_key(copy: Path) -> None:
    assert version_of(copy) == version_of(CHECKOUT)


@pytest.mark.parametrize("edited", [*SOURCES, CACHE])
def test_editing_any_one_file_changes_the_key(copy: Path, edited: str) -> None:
    before = version_of(copy)
    with (copy / edited).open("a") as file:
        file.write("\nEDITED = True\n")
    assert version_of(copy) != before


def test_a_question_is_keyed_by_the_module_that_works_it_out(copy: Path) -> None:
    before = version_of(copy), version_of(copy, QUESTIONS)
    (copy / QUESTIONS).write_text("EDITED = True\n")
    assert version_of(copy) == before[0] != before[1]
    assert version_of(copy, QUESTIONS) != before[1]


def test_other_files_do_not_change_the_key(copy: Path) -> None:
    before = version_of(copy)
    (copy / "dp_core/labels/record.py").write_text("EDITED = True\n")
    assert version_of(copy) == before


def test_a_new_module_and_what_it_imports_are_found(copy: Path) -> None:
    """Transitively, but not imports that only a function or a type checker makes."""
    new = copy / "dp_core/accounting/new.py"
    (copy / "dp_core/helper.py").write_text("import dp_core.further\n")
    (copy / "dp_core/further.py").write_text("EDITED = True\n")
    new.write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from dp_core.labels.record import LabelRecord\n"
        "else:\n    import dp_core.helper\n"
        "def later():\n    from dp_core.labels.record import LabelRecord\n"
    )
    accounting_sources.cache_clear()
    found = {str(path.relative_to(copy)) for path in accounting_sources(copy).values()}
    assert found == {*SOURCES, "dp_core/accounting/new.py", "dp_core/helper.py", "dp_core/further.py"}
    new.write_text("try:\n    from dp_core import labels\nfinally:\n    pass\n")
    (copy / "dp_core/labels/__init__.py").write_text("")
    accounting_sources.cache_clear()
    assert "dp_core.labels" in accounting_sources(copy)


@pytest.mark.parametrize("asking", [tasks.privacy.cached_accounting, tasks.privacy.questions])
def test_the_key_covers_all_of_dp_core_that_the_asking_modules_use(asking: object) -> None:
    """They import it inside functions, which the rule does not follow."""
    tree = ast.parse(Path(str(getattr(asking, "__file__", ""))).read_text(encoding="utf-8"))
    used = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    used = {module for module in used if module.startswith("dp_core")}
    assert used
    assert used <= set(accounting_sources())
