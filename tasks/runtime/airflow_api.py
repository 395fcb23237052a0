"""A client of the REST API of the Airflow that ``make up`` runs."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote

from tasks.runtime.airflow_home import login
from tasks.runtime.errors import UserError

_TIMEOUT_SECONDS = 60


class NoAnswer(Exception):
    """Airflow's API server cannot be reached, or did not answer."""


class Refused(UserError):
    """Airflow refused a request; the message has its reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(f"Airflow refused the request: {reason}")
        self.status = status


class AirflowApi:
    """Calls the REST API, logged in as the user that Airflow generated."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._token: str | None = None

    def get(self, *path: str, **query: str) -> Any:
        """Returns the answer to GET ``/api/v2/<path>``."""
        return self._call("GET", path, query=query)

    def post(self, *path: str, body: Any) -> Any:
        """Returns the answer to POST ``/api/v2/<path>``."""
        return self._call("POST", path, body)

    def patch(self, *path: str, body: Any) -> Any:
        """Returns the answer to PATCH ``/api/v2/<path>``."""
        return self._call("PATCH", path, body)

    def _call(self, method: str, path: tuple[str, ...], body: Any = None, query: dict[str, str] | None = None) -> Any:
        where = "/api/v2/" + "/".join(quote(part, safe="") for part in path)
        if query:
            where += "?" + "&".join(f"{quote(name)}={quote(value)}" for name, value in query.items())
        fresh = self._token is None
        try:
            return self._send(method, where, body, self._logged_in())
        except Refused as refused:
            # A token holds for a day, and a run may take longer.
            if refused.status != 401 or fresh:
                raise
        self._token = None
        return self._send(method, where, body, self._logged_in())

    def _logged_in(self) -> str:
        if self._token is None:
            try:
                user, password = login()
            except UserError as error:
                raise NoAnswer(str(error)) from None
            answer = self._send("POST", "/auth/token", {"username": user, "password": password}, None)
            self._token = str(answer["access_token"])
        return self._token

    def _send(self, method: str, where: str, body: Any, token: str | None) -> Any:
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + where, data, headers, method=method)
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode("utf-8", "replace")
            if error.code >= 500:
                raise NoAnswer(f"{error.code} {text}") from None
            raise Refused(error.code, _reason(text)) from None
        except (OSError, ValueError) as error:
            raise NoAnswer(str(error)) from None


# The servers are on this machine: no proxy.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _reason(text: str) -> str:
    try:
        detail = json.loads(text)["detail"]
    except (ValueError, KeyError, TypeError):
        return text
    return detail if isinstance(detail, str) else json.dumps(detail)
