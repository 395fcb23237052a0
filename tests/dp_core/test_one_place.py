"""Clip factors, optimisers and the update rule are each named in one module of the source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.training.optimizers import OPTIMIZERS

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("dp_core", "tasks", "dags", "benchmarks")
# Defaults may be named elsewhere: "fixed" where nothing is chosen, "sgd" where the probe and the speed
# measurements need gradient descent.
HOMES = {
    **{name: "dp_core/clipping/factors.py" for name in CLIP_FACTORS if name != "fixed"},
    **{name: "dp_core/training/optimizers.py" for name in OPTIMIZERS if name != "sgd"},
}


def sources() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted((CHECKOUT / package).rglob("*.py")):
            yield path.relative_to(CHECKOUT).as_posix(), path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def literals() -> dict[str, set[object]]:
    """The literals of every module."""
    return {
        name: {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
        for name, text in sources()
    }


@pytest.mark.parametrize("name", HOMES)
def test_a_registered_name_is_a_literal_of_one_module(name: str, literals: dict[str, set[object]]) -> None:
    assert [module for module, values in literals.items() if name in values] == [HOMES[name]]


def test_only_make_update_rule_chooses_a_rule() -> None:
    assert [name for name, text in sources() if "dense_update" in text] == ["dp_core/training/updates.py"]
