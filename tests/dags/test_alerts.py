"""Who is told what of a night, over real HTTP and SMTP on loopback."""

from __future__ import annotations

import email
import http.server
import json
import os
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.nights.record import Status, end_night
from tasks.runtime.airflow_home import airflow_environment

CHECKOUT = Path(__file__).resolve().parents[2]
# A notifier is called as Airflow calls it after a task: with the context of the task.
NOTIFY = """
import json, sys
from dags.alerts import alerts_of
from tasks.config.nightly import Alerts
class Instance:
    def __init__(self, task, day):
        self.task_id, self.day = task, day
    def xcom_pull(self, task_ids):
        return {"name": "conversions", "day": self.day} if self.day else None
alerts, asked = json.loads(sys.argv[1])
for one in asked:
    context = {"ti": Instance(one["task"], one["day"])}
    if one["error"]:
        context["exception"] = RuntimeError(one["error"])
    for alert in alerts_of("conversions", Alerts.model_validate(alerts)):
        alert.notify(context)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DP_ADS_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def notify(home: Path, alerts: dict[str, Any], asked: list[dict[str, str]]) -> None:
    environment = airflow_environment(home / "airflow")
    smtp = {"AIRFLOW_CONN_SMTP_DEFAULT": os.environ.get("TEST_SMTP", "")}
    done = subprocess.run(
        [sys.executable, "-c", NOTIFY, json.dumps([alerts, asked])],
        cwd=CHECKOUT,
        env=environment | smtp,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def ended(status: Status, sentence: str, day: str) -> None:
    end_night({"name": "conversions", "day": day, "said": []}, status, sentence)


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A web server that keeps what is posted to it."""
    received: list[dict[str, str]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", received
        server.shutdown()
        thread.join()


def test_who_needs_to_know_is_told(home: Path, hook: tuple[str, list[dict[str, str]]]) -> None:
    endings: list[tuple[Status, str, str]] = [
        ("kept", "decide", ""),
        ("stopped", "check_data", "boom"),
        ("refused", "reserve", "boom"),
        ("failed", "audit", "boom"),
        ("missing", "wait", "boom"),
        ("promoted", "decide", ""),  # no alarm
    ]
    asked = []
    for number, (status, task, error) in enumerate(endings, 1):
        ended(status, f"the sentence of a night that was {status}", f"2026-01-0{number}")
        asked.append({"task": task, "error": error, "day": f"2026-01-0{number}"})
    asked.append({"task": "train", "error": "no memory", "day": "2026-01-08"})
    asked.append({"task": "open", "error": "Day: 'x' is not a day", "day": ""})
    notify(home, {"webhook": hook[0]}, asked)
    told = [(message["night"], message["ending"], message["text"]) for message in hook[1]]
    assert told == [
        ("2026-01-01", "champion kept", "the sentence of a night that was kept"),
        ("2026-01-02", "stopped by a data check", "the sentence of a night that was stopped"),
        ("2026-01-03", "refused: budget", "the sentence of a night that was refused"),
        ("2026-01-04", "failed", "the sentence of a night that was failed"),
        ("2026-01-05", "no data", "the sentence of a night that was missing"),
        ("2026-01-08", "task train failed", "no memory"),
        ("unknown", "task open failed", "Day: 'x' is not a day"),
    ]
    assert {message["dag"] for message in hook[1]} == {"nightly_retrain_conversions"}


class _Smtp(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to send a message."""

    def handle(self) -> None:
        self._say("220 ready")
        while line := self.rfile.readline().strip().upper():
            if line.startswith(b"EHLO"):
                self._say("250 here")
            elif line == b"DATA":
                self._say("354 go on")
                text = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    text += part
                self.server.received.append(text.decode())  # type: ignore[attr-defined]
                self._say("250 kept")
            elif line == b"QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 well")

    def _say(self, text: str) -> None:
        self.wfile.write(f"{text}\r\n".encode())


def test_mail_goes_through_airflows_connection(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Smtp) as server:
        server.received = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        extra = {"from_email": "nights@example.org", "disable_ssl": True, "disable_tls": True}
        connection = {"conn_type": "smtp", "host": "127.0.0.1", "port": server.server_address[1], "extra": extra}
        monkeypatch.setenv("TEST_SMTP", json.dumps(connection))
        ended("kept", "kept night 2026-01-08: 1 < 2", "2026-01-09")
        asked = [{"task": "decide", "error": "", "day": "2026-01-09"}]
        notify(home, {"email": ["someone@example.org"]}, asked)
        server.shutdown()
        thread.join()
        (text,) = server.received  # type: ignore[attr-defined]
    message = email.message_from_string(text)
    assert message["Subject"] == "nightly_retrain_conversions: champion kept, night 2026-01-09"
    assert message["To"] == "someone@example.org"
    (body,) = [part for part in message.walk() if part.get_content_maintype() == "text"]
    content = body.get_payload(decode=True)
    assert content == b"kept night 2026-01-08: 1 &lt; 2"
