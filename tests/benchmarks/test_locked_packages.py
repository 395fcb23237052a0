"""The verdict of ``make audit-lock``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.locked_packages import CLEAN, NOT_CHECKED, VULNERABLE, main, verdict

SAFE = {"name": "numpy", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "yarl", "skip_reason": "Dependency not found on PyPI and could not be audited: yarl (1.25.1)"}
BAD = {"name": "idna", "version": "3.4", "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"]}]}


@pytest.mark.parametrize(
    ("packages", "status", "said"),
    [
        ([SAFE], CLEAN, "1 of 1 packages checked, 0 with vulnerabilities"),
        ([SAFE, BAD], VULNERABLE, "idna 3.4: PYSEC-2024-60, mended in 3.7"),
        ([SAFE, UNKNOWN], NOT_CHECKED, "1 of 2 packages checked, 0 with vulnerabilities; not in the list"),
        ([UNKNOWN], NOT_CHECKED, "0 of 1 packages checked"),
        ([UNKNOWN, BAD], VULNERABLE, "1 of 2 packages checked, 1 with vulnerabilities"),
        ([], NOT_CHECKED, "0 of 0 packages checked"),
    ],
)
def test_a_lock_is_clean_only_if_every_package_was_checked(
    packages: list[dict[str, Any]], status: int, said: str
) -> None:
    found, lines = verdict({"dependencies": packages, "fixes": []})
    assert found == status
    assert said in "\n".join(lines)


@pytest.mark.parametrize("text", [None, "", "Traceback (most recent call last)"])
def test_no_report_is_not_a_clean_lock(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    if text is not None:
        report.write_text(text)
    monkeypatch.setattr(sys, "argv", ["locked_packages", str(report)])
    assert main() == NOT_CHECKED
    assert "nothing was checked" in capsys.readouterr().err
    report.write_text(json.dumps({"dependencies": [SAFE]}))
    assert main() == CLEAN
