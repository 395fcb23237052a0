"""The rules that keep the rooms apart: who may import whom, how large things are, and how rooms are described."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "dp_core": {"airflow", "mlflow", "dask", "distributed", "yaml", "tasks", "dags", "pyarrow"},
    "tasks": {"airflow", "dags", "benchmarks"},
}
HEAVY = {"jax", "flax", "optax", "dask", "distributed", "mlflow", "pyarrow", "pandas"}
LONGEST_MODULE, LONGEST_FUNCTION, LARGEST_FOLDER = 350, 80, 20
OURS = ("dags", "tasks", "dp_core", "benchmarks", "docs", "docker", "tests")
MODULES = sorted(path for folder in OURS for path in (CHECKOUT / folder).rglob("*.py"))
ROOMS = sorted(path.parent for folder in ("tasks", "dp_core") for path in (CHECKOUT / folder).rglob("__init__.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(CHECKOUT))


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.module or ""


@pytest.mark.parametrize("package", FORBIDDEN)
def test_imports_point_one_way(package: str) -> None:
    modules = sorted((CHECKOUT / package).rglob("*.py"))
    assert len(modules) > 5
    for module in modules:
        roots = {name.split(".")[0] for name in imported(parsed(module))}
        assert not roots & FORBIDDEN[package], module


def test_dags_import_only_the_airflow_sdk() -> None:
    """Except for what runs in Airflow's API server, and its own way to send e-mail."""
    for module in (CHECKOUT / "dags").rglob("*.py"):
        names = set(imported(parsed(module)))
        other = {name for name in names if name.split(".")[0] == "airflow" and not name.startswith("airflow.sdk")}
        assert not other or module.name == "run_requests.py" or other == {"airflow.providers.smtp.hooks.smtp"}, module
        assert not {name.split(".")[0] for name in names} & HEAVY, module


def test_loading_the_configuration_imports_nothing_heavy() -> None:
    """Airflow forks its task processes after it has parsed the DAGs, and a fork after JAX has started can deadlock."""
    program = f"""
import sys
from tasks.config.loading import load_config
assert load_config().pipelines
print(sorted({HEAVY!r} & {{name.split(".")[0] for name in sys.modules}}))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


def test_a_step_imports_only_what_it_needs() -> None:
    """Each task of a DAG is a new process that waits for the imports of its step."""
    program = """
import importlib, sys
for step in ("check", "prepare", "plan", "report"):
    importlib.import_module(f"tasks.{step}")
    slow = ("jax", "dp_accounting", "mlflow", "scipy", "distributed", "dask", "pyarrow")
    print(step, *[name for name in slow if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, check=False)
    found = {step: set(names) for step, *names in (line.split() for line in done.stdout.splitlines())}
    assert done.returncode == 0, done.stderr
    assert found["check"] == set()
    assert found["prepare"] <= {"dask", "pyarrow"}
    assert not found["plan"] & {"jax", "dp_accounting", "distributed"}
    assert "jax" not in found["report"]


def test_no_folder_has_too_many_modules() -> None:
    sizes = Counter(path.parent for path in MODULES if path.name != "__init__.py")
    assert {name_of(folder): size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_no_module_is_too_long() -> None:
    lengths = {name_of(path): len(path.read_text().splitlines()) for path in MODULES}
    assert len(lengths) > 200
    assert {path: length for path, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_no_function_is_too_long() -> None:
    assert list(long_functions(LONGEST_FUNCTION)) == []


def long_functions(limit: int) -> Iterator[str]:
    """Functions and methods with more lines than that, from ``def`` to the end."""
    for path in MODULES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > limit:
                    yield f"{name_of(path)}: {node.name} has {length} lines"


def test_long_functions_are_found() -> None:
    assert len(list(long_functions(20))) > 20


def readme_rooms() -> dict[str, str]:
    """Files and folders in the README's block of rooms, each with its line of text."""
    block = re.search(r"```text\n(.*?)```", (CHECKOUT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    rooms: dict[str, str] = {}
    above: list[str] = []
    for line in block.group(1).splitlines():
        entry, _, text = line.partition("#")
        depth = (len(entry) - len(entry.lstrip())) // 2
        above = [*above[:depth], entry.strip()]
        rooms["".join(above)] = text.strip()
    return rooms


def test_the_rooms_in_the_readme_are_true() -> None:
    """Every folder of ours is there with a line of text, and nothing else is."""
    listed = readme_rooms()
    assert [name for name in listed if not (CHECKOUT / name).exists()] == []
    assert [name for name, text in listed.items() if len(text) < 10] == []
    folders = {
        name_of(path) + "/"
        for top in ("dags", "tasks", "dp_core", "benchmarks", "docker", "docs")
        for path in [CHECKOUT / top, *(CHECKOUT / top).rglob("*")]
        if path.is_dir() and "__pycache__" not in path.parts
    }
    assert folders | {"tests/", "pipelines.yaml"} == set(listed)


def test_tests_mirror_the_rooms() -> None:
    folders = {path.parent.relative_to(CHECKOUT / "tests") for path in (CHECKOUT / "tests").rglob("test_*.py")}
    # What is registered from outside, and what a browser sees, concern several rooms.
    folders -= {Path("extensions"), Path("browser")}
    for folder in folders:
        assert (CHECKOUT / folder).is_dir(), f"tests/{folder} is about no folder of ours"


def docstring(room: Path) -> str:
    return ast.get_docstring(parsed(room / "__init__.py")) or ""


def doors(room: Path) -> list[str]:
    """What the docstring of a room names in the paragraph that begins with "Doors:"."""
    paragraphs = [text for text in docstring(room).split("\n\n") if text.startswith("Doors:")]
    return re.findall(r"``([\w./]+)``", "".join(paragraphs))


def defined(module: Path) -> set[str]:
    """The names that a module defines at its top."""
    names: set[str] = set()
    for node in parsed(module).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


@functools.cache
def imported_names(path: Path) -> set[str]:
    """The modules that a module imports from, and what it imports from them, as dotted names."""
    nodes = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.ImportFrom)]
    return {f"{node.module}.{alias.name}" for node in nodes for alias in node.names} | {str(n.module) for n in nodes}


every_room = pytest.mark.parametrize("room", ROOMS, ids=name_of)


@every_room
def test_a_room_is_described(room: Path) -> None:
    """A few lines say what belongs here, and name doors that exist."""
    assert len(docstring(room).splitlines()) >= 3
    modules = {path.stem: path for path in room.glob("*.py")}
    inside = {path.parent.name for path in room.glob("*/__init__.py")}
    names = set().union(*map(defined, modules.values()))
    assert {*modules, *inside} & set(doors(room))
    for door in doors(room):
        module, _, name = door.partition(".")
        elsewhere = (CHECKOUT / door.replace(".", "/")).with_suffix(".py")
        known = name in defined(modules[module]) if name and module in modules else door in {*modules, *inside, *names}
        assert known or elsewhere.exists() or elsewhere.with_suffix("").is_dir(), door


@every_room
def test_other_rooms_come_in_through_the_doors(room: Path) -> None:
    """Every module that another room imports is named as a door."""
    prefix = name_of(room).replace("/", ".")
    named = {door.partition(".")[0] for door in doors(room)}
    modules = {path.stem for path in room.glob("*.py")} - {"__init__"}
    for path in MODULES:
        if path.parent != room and not path.is_relative_to(CHECKOUT / "tests"):
            entered = {module for module in modules if f"{prefix}.{module}" in imported_names(path)}
            assert entered <= named, f"{name_of(path)} imports {entered - named}"


@every_room
def test_a_room_has_no_code_of_its_own(room: Path) -> None:
    statements = parsed(room / "__init__.py").body[1:]
    # MLflow reads its variable when it is imported, so the package itself turns telemetry off.
    assert statements == [] or room == CHECKOUT / "tasks"
