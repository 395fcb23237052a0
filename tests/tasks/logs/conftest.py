"""Fixtures for tests of logs: the fingerprint of the good rows, and writing files."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tests.support.drafts import Write
from tests.support.raw_logs import described, good_lines, write_text


@functools.cache
def _good_fingerprint(folder: Path) -> str:
    raw = write_text(folder / "good", "tsv", good_lines())
    return open_prepared(prepare("good", described("tsv"), raw, min_count=2)).fingerprint


@pytest.fixture
def good_fingerprint(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The fingerprint of the good rows alone. It is the same in every format."""
    return _good_fingerprint(tmp_path_factory.getbasetemp())


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(name: str, content: str | bytes) -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    return write_file
