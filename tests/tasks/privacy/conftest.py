"""The fixture of tests that plant bugs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.planted.planting import forget_programs


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Patches that do not leak into the compiled trainers of other tests."""
    forget_programs()
    yield monkeypatch
    forget_programs()
