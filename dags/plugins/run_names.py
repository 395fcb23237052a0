"""Names runs for what they are: ``quick · pCTR, pCVR · ε 1, 10 · 2026-11-02 09.30.00`` instead of ``manual__2026-…``.

A run's name is its id, which Airflow makes without knowing what was chosen. This part of the API server sees the
choices when the form is sent. A request that names its run keeps its name, and what cannot be run keeps Airflow's own.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from tasks.config.loading import load_config
from tasks.config.selection import run_title, select
from tasks.runtime.errors import UserError

_TRIGGER = re.compile(r"/api/v2/dags/(?P<dag>[^/]+)/dagRuns/?")
# Characters of a title that the setting `allowed_run_id_pattern` does not allow.
_REFUSED = re.compile(r"[^\w.~:+, ·-]+")


def named(dag: str, request: bytes) -> bytes:
    """Returns the request to run a DAG, with an id for the run if it has none."""
    try:
        body = json.loads(request)
        if not isinstance(body, dict) or body.get("dag_run_id"):
            return request
        options = {name: value for name, value in (body.get("conf") or {}).items() if name != "refit"}
        config = load_config()
        selection = select(config, {"pipeline": dag, **options})
    except (ValueError, AttributeError, UserError):
        return request
    if dag not in config.pipelines:  # it only prepares data
        selection = selection._replace(epsilons=())
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H.%M.%S")
    title = _REFUSED.sub("-", run_title(selection))[:200]
    return json.dumps({**body, "dag_run_id": f"{title} · {now}"}).encode()


class RunNames:
    """ASGI middleware that names the run in each request to run a DAG."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match = _TRIGGER.fullmatch(scope.get("path", "")) if scope["type"] == "http" else None
        if match is None or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        parts, more = [], True
        while more:
            message = await receive()
            if message["type"] != "http.request":  # the client went away
                return
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        body = named(match["dag"], b"".join(parts))
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        sent = False

        async def receive_named() -> Any:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(
            {**scope, "headers": [*headers, (b"content-length", str(len(body)).encode())]}, receive_named, send
        )


class RunNamesPlugin(AirflowPlugin):
    """Registers the middleware with Airflow's API server."""

    name = "run_names"
    fastapi_root_middlewares = [{"middleware": RunNames, "args": [], "kwargs": {}, "name": "Names of runs"}]  # noqa: RUF012
