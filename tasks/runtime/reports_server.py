"""The reports server of ``make up``: serves reports and data cards, read-only.

| route | |
|---|---|
| ``/``, ``/index.html`` | the index of all reports, rendered anew for each request |
| ``/<pipeline>/<run>/<file>`` | a file of a report |
| ``/<pipeline>/<run>`` | redirects to the page of a report, for example of ``latest`` |
| ``/data/<dataset>/data_card.html`` | the newest data card of a dataset |
| ``/data/<dataset>/<prepared>/data_card.html`` | the data card of one prepared dataset |
| ``/go/airflow/<path>``, ``/go/mlflow/<path>`` | redirects to the servers, wherever they listen |

Pages link to these routes, so they need not know the ports of Airflow and MLflow. Nothing else is served. The address
in the ``Host`` header is checked, so that a website cannot read reports through a name that it points to this machine.
"""

from __future__ import annotations

import socketserver
import sys
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

from tasks.runtime.home import home
from tasks.runtime.running_servers import running_servers

DATA_CARD = "data_card.html"
PAGE = "page.html"
# Of files that a report consists of; no other kind is served.
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".md": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
# Pages carry their styles and scripts inline, and load nothing from elsewhere.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class Answer(NamedTuple):
    """An HTTP answer."""

    status: HTTPStatus
    content: bytes
    type: str = "text/plain; charset=utf-8"
    headers: tuple[tuple[str, str], ...] = ()


def answer(target: str) -> Answer:
    """Returns the answer to a GET request for a target, which is a path and perhaps a query."""
    path, _, query = target.partition("?")
    if path in ("/", "/index.html"):  # pages link the file of that name if their script does not run
        return Answer(HTTPStatus.OK, _index().encode(), TYPES[".html"])
    if path == "/favicon.ico":  # browsers ask for it, and complain if it is not found
        return Answer(HTTPStatus.NO_CONTENT, b"")
    match path.split("/")[1:]:
        case ["go", server, *rest]:
            return _redirect(server, "/".join(rest), query)
        case [pipeline, run, *end] if end in ([], [""]) and _file([unquote(pipeline), unquote(run), PAGE]) is not None:
            return Answer(HTTPStatus.FOUND, b"", headers=(("Location", f"/{pipeline}/{run}/{PAGE}"),))
        case parts if path.startswith("/"):
            file = _file([unquote(part) for part in parts])
            if file is not None:
                return Answer(HTTPStatus.OK, file.read_bytes(), TYPES[file.suffix])
    return Answer(HTTPStatus.NOT_FOUND, b"There is no such page. All reports: /\n")


def _index() -> str:
    from tasks.reporting.index import index_page, read_data_cards, read_summaries

    return index_page(read_summaries(home() / "reports"), served=True, data_cards=read_data_cards(home(), served=True))


def _redirect(server: str, rest: str, query: str) -> Answer:
    at = running_servers()
    if server not in ("airflow", "mlflow"):
        return Answer(HTTPStatus.NOT_FOUND, b"There are two servers: /go/airflow and /go/mlflow\n")
    if at is None:
        return Answer(HTTPStatus.SERVICE_UNAVAILABLE, b"The server does not run: start it with `make up`\n")
    # MLflow's pages are behind a "#", which no browser sends to a server.
    base = f"{at.airflow}/" if server == "airflow" else f"{at.mlflow}/#/"
    location = base + rest + (f"?{query}" if query else "")
    return Answer(HTTPStatus.FOUND, b"", headers=(("Location", location),))


def _file(parts: list[str]) -> Path | None:
    """Returns the file that a path names, if there is one that may be served."""
    if any(not part or part.startswith(".") or "/" in part or "\\" in part or "\0" in part for part in parts):
        return None
    match parts:
        case ["data", dataset, name] if name == DATA_CARD:
            root = home() / "data"
            cards = [root / dataset / folder.name / DATA_CARD for folder in _folders(root / dataset)]
            found = max((card for card in cards if card.is_file()), key=lambda card: card.stat().st_mtime, default=None)
        case ["data", dataset, prepared, name] if name == DATA_CARD:
            root = home() / "data"
            found = root / dataset / prepared / DATA_CARD
        case [pipeline, run, name] if pipeline != "data" and Path(name).suffix in TYPES:
            root = home() / "reports"
            found = root / pipeline / run / name
        case _:
            return None
    try:
        # Links such as `latest` may lead to another folder, but not out of the root.
        resolved = found.resolve(strict=True) if found is not None else None
    except (OSError, RuntimeError):
        return None
    return resolved if resolved is not None and resolved.is_relative_to(root) and resolved.is_file() else None


def _folders(parent: Path) -> list[Path]:
    try:
        return [child for child in parent.iterdir() if child.is_dir() and not child.name.startswith(".")]
    except OSError:
        return []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "reports"
    sys_version = ""
    timeout = 60  # for clients that send no request
    allowed_methods: ClassVar[str] = "GET, HEAD"

    def __init__(self, *arguments: object, names: tuple[str, ...]) -> None:
        self._names = names
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        if not self._is_for_us():
            self._send(Answer(HTTPStatus.FORBIDDEN, b"This server answers to its own address only.\n"))
            return
        try:
            found = answer(self.path)
        except Exception as error:  # a page that cannot be rendered: the server goes on
            self.log_error("%r", error)
            found = Answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"The page could not be made; see the server's log.\n")
        self._send(found)

    do_HEAD = do_GET

    def refuse(self) -> None:
        self.close_connection = True  # a body may follow, which is not read
        text = b"This server is read-only.\n"
        self._send(Answer(HTTPStatus.METHOD_NOT_ALLOWED, text, headers=(("Allow", self.allowed_methods),)))

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = refuse

    def _is_for_us(self) -> bool:
        hosts = self.headers.get_all("Host") or []
        try:
            return len(hosts) == 1 and urlsplit(f"//{hosts[0]}").hostname in self._names
        except ValueError:
            return False

    def _send(self, found: Answer) -> None:
        self.send_response(found.status)
        for name, value in (*HEADERS.items(), *found.headers):
            self.send_header(name, value)
        self.send_header("Content-Type", found.type)
        self.send_header("Content-Length", str(len(found.content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(found.content)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        # Without looking up the machine's name, which the base class does and which may take seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def reports_server(host: str, port: int) -> ThreadingHTTPServer:
    """Returns the server, listening. It answers while its ``serve_forever`` runs."""
    return _Server((host, port), partial(_Handler, names=(host, *_LOOPBACK_NAMES)))


if __name__ == "__main__":
    with reports_server(sys.argv[1], int(sys.argv[2])) as _running:
        try:
            _running.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
