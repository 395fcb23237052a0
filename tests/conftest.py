"""What tests share: a home folder of their own, and a strict JAX."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jax
import pytest


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder for everything generated, in force for the test."""
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return (tmp_path / "home").resolve()


@pytest.fixture
def strict_types() -> Iterator[None]:
    """No silent mixing of dtypes in our code. (Optax's Adam and Yogi do mix them.)"""
    with jax.numpy_dtype_promotion("strict"):
        yield
