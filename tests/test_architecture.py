"""The rules that keep the parts apart: who may import whom, and that the README's tree is true."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parent.parent
FORBIDDEN = {
    "dp_core": {"airflow", "mlflow", "dask", "distributed", "yaml", "tasks", "dags", "pyarrow"},
    "tasks": {"airflow", "dags"},
}
HEAVY = {"jax", "flax", "optax", "dask", "distributed", "mlflow", "pyarrow", "pandas"}


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
        roots = {name.split(".")[0] for name in imported(ast.parse(module.read_text()))}
        assert not roots & FORBIDDEN[package], module


def test_dags_import_only_the_airflow_sdk() -> None:
    for module in (CHECKOUT / "dags").glob("*.py"):
        names = set(imported(ast.parse(module.read_text())))
        assert not {name for name in names if name.startswith("airflow") and name != "airflow.sdk"}, module
        assert not {name.split(".")[0] for name in names} & HEAVY, module


def test_the_tree_in_the_readme_is_true() -> None:
    """Every file that the README's tree names exists, and every module of ours is in it."""
    readme = (CHECKOUT / "README.md").read_text()
    tree = re.search(r"```text\n(.*?)```", readme, re.DOTALL)
    assert tree is not None
    named, folder = set(), ""
    for line in tree.group(1).splitlines():
        entry = line.split("#")[0].split()
        if not entry:
            continue
        if not line.startswith(" "):
            folder = entry[0] if entry[0].endswith("/") else ""
            named.add(entry[0])
        else:
            named.add(folder + entry[0])
    missing = {name for name in named if not (CHECKOUT / name).exists()}
    assert not missing
    modules = {
        str(path.relative_to(CHECKOUT))
        for package in ("dags", "tasks", "dp_core")
        for path in (CHECKOUT / package).glob("*.py")
        if not path.name.startswith("__")
    }
    assert modules <= named, modules - named
