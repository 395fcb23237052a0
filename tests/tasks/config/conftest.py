"""What the tests of the configuration share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.yaml_files import Load, loader


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Loads a text as a configuration file."""
    return loader(tmp_path)
