"""Fixtures for all tests: a fresh home folder, and strict dtype promotion in JAX."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import jax
import pytest

# Tests on small models spend most of their time compiling, and compile five times as fast without optimizations. The
# flags hold for this process only: programs that tests start compile as in production.
QUICK_COMPILATION = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


# Every run draws the same examples, on every machine. `HYPOTHESIS_PROFILE=search make test` looks for new ones.
hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.register_profile("search", derandomize=False, deadline=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_configure() -> None:
    given = os.environ.get("XLA_FLAGS")
    os.environ["XLA_FLAGS"] = f"{given or ''} {QUICK_COMPILATION}"
    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))  # JAX reads the flags at its first use
    if given is None:
        del os.environ["XLA_FLAGS"]
    else:
        os.environ["XLA_FLAGS"] = given


@pytest.fixture
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sets a fresh home folder for the test, and returns it."""
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return (tmp_path / "home").resolve()


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes an MLflow store without runs, which takes seconds, once for all tests. Returns its database."""
    from mlflow.tracking import MlflowClient

    database = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture
def own_store(own_home: Path, empty_store: Path) -> Path:
    """Sets a fresh home folder that has an MLflow store without runs, and returns the folder."""
    (own_home / "mlflow").mkdir(parents=True)
    shutil.copy(empty_store, own_home / "mlflow")
    return own_home


@pytest.fixture
def strict_types() -> Iterator[None]:
    """Makes mixing of dtypes an error. (Not for Optax's Adam and Yogi, which mix them.)"""
    with jax.numpy_dtype_promotion("strict"):
        yield
