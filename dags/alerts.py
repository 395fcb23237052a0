"""Tells people when a night needs them, through Airflow's notifiers: by e-mail and to a webhook.

A message is sent when a night ends without a decision (a failed audit, a breach of a data check, a budget that is used
up, data that did not come), when the champion is kept, and when a task fails for good. E-mail goes through Airflow's
connection ``smtp_default``.
"""

from __future__ import annotations

import html
import json
import urllib.request
from typing import Any

from airflow.sdk import BaseNotifier

from tasks.config.nightly import Alerts
from tasks.nights.record import ENDINGS, dag_id, read_night

_SECONDS = 20


class NightAlert(BaseNotifier):
    """Sends the sentence of a night that needs a person. Subclasses say how."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.entry = name

    def notify(self, context: Any) -> None:
        message = message_of(self.entry, context)
        if message is not None:
            self.send(message)

    def send(self, message: dict[str, str]) -> None:
        raise NotImplementedError


class Webhook(NightAlert):
    """Posts the message as JSON."""

    def __init__(self, name: str, address: str) -> None:
        super().__init__(name)
        self.address = address

    def send(self, message: dict[str, str]) -> None:
        request = urllib.request.Request(
            self.address, json.dumps(message).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=_SECONDS):
            pass


class Email(NightAlert):
    """Sends the message through the SMTP connection of Airflow."""

    def __init__(self, name: str, addresses: list[str]) -> None:
        super().__init__(name)
        self.addresses = addresses

    def send(self, message: dict[str, str]) -> None:
        from airflow.providers.smtp.hooks.smtp import SmtpHook

        with SmtpHook() as smtp:
            smtp.send_email_smtp(
                to=self.addresses,
                subject=f"{message['dag']}: {message['ending']}, night {message['night']}",
                html_content=html.escape(message["text"]),
            )


def alerts_of(name: str, alerts: Alerts) -> list[NightAlert]:
    """Returns the notifiers of an entry."""
    by_mail = [Email(name, list(alerts.email))] if alerts.email else []
    return [*by_mail, *([Webhook(name, alerts.webhook)] if alerts.webhook else [])]


def message_of(name: str, context: Any) -> dict[str, str] | None:
    """Returns what to tell of a task that ended; None if nobody needs to know: a new champion is no alarm."""
    instance = context["ti"]
    opened = instance.xcom_pull(task_ids="open") or {}
    day = opened.get("day", "unknown")
    night = read_night(name, day) if opened else None
    failed = context.get("exception") is not None
    if night is not None and night["status"] not in ("promoted",) and (failed or instance.task_id == "decide"):
        return _message(name, day, ENDINGS[night["status"]], night["sentence"])
    if not failed:
        return None
    return _message(name, day, f"task {instance.task_id} failed", f"{context['exception']}")


def _message(name: str, day: str, ending: str, text: str) -> dict[str, str]:
    return {"dag": dag_id(name), "night": day, "ending": ending, "text": text}
