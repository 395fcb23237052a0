"""The verdict of ``make audit-lock``: what pip-audit's report says of the packages in ``requirements.lock``.

pip-audit ends with status 0 and "no known vulnerabilities" also where it could look up no package at all. So the
verdict counts the packages that were checked.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

CLEAN, VULNERABLE, NOT_CHECKED = 0, 1, 3


def verdict(report: dict[str, Any]) -> tuple[int, list[str]]:
    """Returns the exit status and the lines for a person.

    Args:
      report: What ``pip-audit --format json`` wrote.
    """
    packages = report["dependencies"]
    skipped = [package for package in packages if "skip_reason" in package]
    vulnerable = [package for package in packages if package.get("vulns")]
    lines = [
        f"{package['name']} {package['version']}: {found['id']}, "
        f"mended in {', '.join(found['fix_versions']) or 'no version'}"
        for package in vulnerable
        for found in package["vulns"]
    ]
    checked = len(packages) - len(skipped)
    summary = (
        f"requirements.lock: {checked} of {len(packages)} packages checked, {len(vulnerable)} with vulnerabilities"
    )
    if skipped:
        names = ", ".join(package["name"] for package in skipped[:5]) + (", ..." if len(skipped) > 5 else "")
        summary += f"; not in the list that could be reached: {names}"
    if vulnerable:
        return VULNERABLE, [*lines, summary]
    if skipped or not packages:
        return NOT_CHECKED, [f"error: {summary}"]
    return CLEAN, [summary]


def main() -> int:
    path = Path(sys.argv[1])
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError):
        print("error: pip-audit wrote no report, so nothing was checked", file=sys.stderr)
        return NOT_CHECKED
    status, lines = verdict(report)
    print("\n".join(lines), file=sys.stderr if status == NOT_CHECKED else sys.stdout)
    return status


if __name__ == "__main__":
    sys.exit(main())
