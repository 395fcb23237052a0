"""Checks requests to run a DAG when the form is sent, and names the runs for what they are.

Airflow itself checks one field after the other, in the words of JSON schema, and calls a run ``manual__2026-…`` without
regard to what was chosen. Here, in its API server, a request that cannot work is answered with every problem in the
words of the form, and a run gets the id ``quick · pCTR, pCVR · ε 1, 10 · 2026-11-02 09:30:00``. The DAG's first task
checks again: not every run comes through this server.
"""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
from airflow.api_fastapi.core_api.security import resolve_user_from_token
from fastapi import HTTPException
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse

from tasks.check import check
from tasks.config.loading import load_config
from tasks.config.nightly import checked_day
from tasks.config.selection import FIELDS, run_title
from tasks.nights.record import dag_id
from tasks.runtime.errors import UserError

_TRIGGER = re.compile(r"/api/v2/dags/(?P<dag>[^/]+)/dagRuns/?")
# Characters of a title that the setting `allowed_run_id_pattern` does not allow.
_REFUSED = re.compile(r"[^\w.~:+, ·-]+")
_LONGEST_TITLE = 200


def checked(dag: str, request: bytes) -> bytes:
    """Returns the request to run a DAG, with an id for the run if it has none. Others' DAGs are left alone.

    Raises:
        UserError: What the request asks for cannot work.
    """
    try:
        body = json.loads(request)
        options = dict(body.get("conf") or {})
    except (ValueError, AttributeError, TypeError):
        return request  # Airflow says what is wrong with it
    config = load_config()
    if dag in map(dag_id, config.nightly):
        return _named(body, _night_title(options))
    is_pipeline = dag in config.pipelines
    if not is_pipeline and dag != "prepare_data":
        return request
    if is_pipeline and options.setdefault("pipeline", dag) != dag:
        raise UserError(f"{FIELDS['pipeline']}: this DAG runs {dag}; other pipelines have DAGs of their own")
    if options.pop("refit", False) not in (None, True, False):
        raise UserError("New vocabulary: choose yes or no, true or false in JSON")
    # The form sends null for a field that was emptied. These may not be.
    if is_pipeline and options.get("tasks", ()) is None:
        options["tasks"] = []
    for name in ("pipeline", "profile"):
        if name in options and options[name] in (None, ""):
            raise UserError(f"{FIELDS[name]}: choose one")
    selection = check(options)
    return _named(body, run_title(selection if is_pipeline else selection._replace(epsilons=())))


def _night_title(options: dict[str, Any]) -> str:
    """Returns the name of a run of a night. Raises ``UserError`` if its options are not possible."""
    unknown = set(options) - {"day"}
    if unknown:
        raise UserError(f"unknown option {', '.join(sorted(unknown))}; known: day")
    return f"night {checked_day(options['day'])}" if options.get("day") else "night"


def _named(body: dict[str, Any], title: str) -> bytes:
    """Returns a request with an id for the run, made of a title and the time, unless it has one."""
    if body.get("dag_run_id"):
        return json.dumps(body).encode()
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    body["dag_run_id"] = f"{_REFUSED.sub('-', title)[:_LONGEST_TITLE]} · {now}"
    return json.dumps(body).encode()


class RunRequests:
    """ASGI middleware that checks and names the run in each request to run a DAG."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        match = _TRIGGER.fullmatch(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if match is None or not await _is_logged_in(Request(scope)):
            await self._app(scope, receive, send)
            return
        try:
            body = await run_in_threadpool(checked, match["dag"], await Request(scope, receive).body())
        except UserError as error:
            await JSONResponse({"detail": str(error)}, status_code=400)(scope, receive, send)
            return
        headers = [(name, value) for name, value in scope["headers"] if name != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._app({**scope, "headers": headers}, _Body(body, receive), send)


class _Body:
    """Gives the application a body that was read already, then whatever else the client sends."""

    def __init__(self, body: bytes, receive: Any) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Any:
        if self._body is None:
            return await self._receive()
        message = {"type": "http.request", "body": self._body, "more_body": False}
        self._body = None
        return message


async def _is_logged_in(request: Request) -> bool:
    """Returns whether Airflow knows the user. To others, it says no more than that they must log in."""
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    if kind.lower() != "bearer":
        token = request.cookies.get(COOKIE_NAME_JWT_TOKEN, "")
    try:
        await resolve_user_from_token(token)
    except HTTPException:
        return False
    return True
