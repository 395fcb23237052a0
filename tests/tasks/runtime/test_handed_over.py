"""A run that was handed over and is interrupted stays cancelled. The rest is tested with real servers
(``test_beside_servers``), where the race below cannot be made to happen."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tasks.runtime import handed_over
from tasks.runtime.airflow_api import AirflowApi


class Overwritten:
    """An Airflow whose scheduler writes its own state over the first cancellation, a moment later."""

    def __init__(self) -> None:
        self.states = ["running"]
        self._looks = 0

    def patch(self, *_path: str, body: Any) -> None:
        self.states.append(body["state"])

    def get(self, *_path: str) -> Any:
        self._looks += 1
        if self._looks == 2:
            self.states.append("success")
        return {"state": self.states[-1]}


def test_a_cancelled_run_stays_cancelled(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(handed_over, "_POLL_SECONDS", 0)
    api = Overwritten()
    handed_over._cancel(cast(AirflowApi, api), "relative_loss", "run")
    assert api.states == ["running", "failed", "success", "failed"]
    assert capsys.readouterr().out == "▸ cancelled the run in Airflow\n"
