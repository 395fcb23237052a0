"""The reports server over real HTTP: what it serves, what it refuses, and where it redirects to."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runtime.home import write_json, write_text
from tasks.runtime.reports_server import HEADERS, reports_server
from tasks.runtime.running_servers import Addresses, as_the_running_servers
from tests.tasks.runtime.programs import free_ports

AT = Addresses(os.getpid(), "http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3", "")
SUMMARY = {
    "pipeline": "relative_loss",
    "profile": "quick",
    "run": "first",
    "title": "A title",
    "shows": "the paper's Table 1",
    "headline": "A headline",
    "finished": "2026-01-01 10:00 UTC",
    "findings": {},
}


@pytest.fixture
def home(own_home: Path) -> Path:
    """A home with a report, a data card, and files beside them that are not to be served."""
    run = own_home / "reports" / "relative_loss" / "first"
    for name in ("page.html", "table.csv", "figure.svg", "figure.png", "report.md"):
        write_text(run / name, f"the {name}")
    write_json(run / "summary.json", SUMMARY)
    (run.parent / "latest").symlink_to("first")
    write_text(run / ".hidden.html", "hidden")
    write_text(run / "program.py", "program")
    write_text(own_home / "secret.html", "secret")
    write_text(own_home / "reports" / "index.html", "the index file, of an earlier run")
    write_text(own_home / "airflow" / "simple_auth_manager_passwords.json.generated", "secret")
    (run / "out.html").symlink_to(own_home / "secret.html")
    (run.parent / "away").symlink_to(own_home)
    (run / "folder.html").mkdir()
    for prepared, text, time in (("old", "an old card", 1000), ("new", "a new card", 2000)):
        card = own_home / "data" / "clicks" / prepared / "data_card.html"
        write_text(card, text)
        write_text(card.parent / "schema.json", "{}")
        os.utime(card, (time, time))
    return own_home


@pytest.fixture
def port(home: Path) -> Iterator[int]:
    (number,) = free_ports(1)
    with reports_server("127.0.0.1", number) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield number
        finally:
            server.shutdown()
            thread.join()


def ask(port: int, target: str, method: str = "GET", host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    """Sends a request as it is, without tidying the target."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
    connection.putheader("Host", f"127.0.0.1:{port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


@pytest.mark.parametrize(
    ("name", "type_"),
    [
        ("page.html", "text/html; charset=utf-8"),
        ("table.csv", "text/csv; charset=utf-8"),
        ("figure.svg", "image/svg+xml"),
        ("figure.png", "image/png"),
        ("report.md", "text/plain; charset=utf-8"),
    ],
)
def test_files_of_a_report(name: str, type_: str, port: int) -> None:
    status, headers, body = ask(port, f"/relative_loss/first/{name}")
    assert (status, body) == (200, f"the {name}".encode())
    assert headers["Content-Type"] == type_
    assert {name: headers[name] for name in HEADERS} == HEADERS
    assert ask(port, f"/relative_loss/latest/{name}?x=1")[::2] == (200, body), "through the link, with a query"


def test_the_index_is_fresh_on_each_request(port: int, home: Path) -> None:
    first = ask(port, "/")[2].decode()
    assert "A headline" in first
    assert "relative_loss/first/page.html" in first
    run = home / "reports" / "relative_loss" / "second"
    write_text(run / "page.html", "")
    write_json(run / "summary.json", SUMMARY | {"run": "second", "headline": "Another headline"})
    assert "Another headline" in ask(port, "/")[2].decode()
    assert ask(port, "/index.html")[::2] == ask(port, "/")[::2], "where pages link to without their script"


@pytest.mark.parametrize("target", ["/relative_loss/latest", "/relative_loss/latest/"])
def test_the_folder_of_a_report_leads_to_its_page(target: str, port: int) -> None:
    status, headers, _ = ask(port, target)
    assert (status, headers["Location"]) == (302, "/relative_loss/latest/page.html")


def test_data_cards(port: int) -> None:
    assert ask(port, "/data/clicks/data_card.html")[::2] == (200, b"a new card")
    assert ask(port, "/data/clicks/old/data_card.html")[::2] == (200, b"an old card")


@pytest.mark.parametrize(
    "target",
    [
        "/secret.html",
        "/relative_loss",
        "/relative_loss/",
        "/relative_loss/nothing",
        "/relative_loss/away",
        "/data/clicks",
        "/relative_loss//page.html",
        "/relative_loss/first/nothing.html",
        "/relative_loss/first/folder.html",
        "/relative_loss/first/.hidden.html",
        "/relative_loss/first/program.py",
        "/relative_loss/first/out.html",
        "/relative_loss/away/secret.html",
        "/relative_loss/../../secret.html",
        "/../secret.html",
        "/../../../../etc/passwd",
        "/relative_loss/first/../../../secret.html",
        "/relative_loss/first/..%2f..%2f..%2fsecret.html",
        "/%2e%2e/%2e%2e/secret.html",
        "/relative_loss/%2e%2e/%2e%2e%2fsecret.html",
        "/relative_loss/first/%2e%2e%5csecret.html",
        "/relative_loss/first/page.html%00.png",
        "/relative_loss/first/%ff%fe.html",
        "/reports/relative_loss/first/page.html",
        "/data/clicks/new/schema.json",
        "/data/clicks/schema.json",
        "/data/nothing/data_card.html",
        "/data/../data_card.html",
        "/data/clicks/../data_card.html",
        "/airflow/simple_auth_manager_passwords.json.generated",
        "/go/elsewhere/x",
        "http://127.0.0.1/relative_loss/first/page.html",
        "relative_loss/first/page.html",
    ],
)
def test_nothing_else_is_served(target: str, port: int) -> None:
    status, headers, body = ask(port, target)
    assert status == 404
    assert b"secret" not in body
    assert headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_read_only(method: str, port: int) -> None:
    status, headers, _ = ask(port, "/", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_head_has_the_headers_alone(port: int) -> None:
    _, asked, body = ask(port, "/relative_loss/first/page.html")
    status, headers, nothing = ask(port, "/relative_loss/first/page.html", "HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["Content-Length"] == asked["Content-Length"] == str(len(body))


@pytest.mark.parametrize("host", ["localhost", "localhost:8090", "127.0.0.1", "[::1]:8090", "LOCALHOST:1"])
def test_names_of_this_machine(host: str, port: int) -> None:
    assert ask(port, "/relative_loss/first/page.html", host=host)[0] == 200


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8090", "127.0.0.1.evil.example", "[", "localhost.x"]
)
def test_other_names_are_refused(host: str, port: int) -> None:
    """A website whose name leads to this machine must not read reports."""
    status, _, body = ask(port, "/relative_loss/first/page.html", host=host)
    assert status == 403
    assert b"the page" not in body


def test_no_host_at_all(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert b" 403 " in connection.makefile("rb").readline()


class TestRedirects:
    @pytest.mark.parametrize(
        ("target", "location"),
        [
            ("/go/airflow", f"{AT.airflow}/"),
            ("/go/airflow/", f"{AT.airflow}/"),
            ("/go/airflow/dags/clip_norm/runs/a%20%C2%B7%20b", f"{AT.airflow}/dags/clip_norm/runs/a%20%C2%B7%20b"),
            ("/go/mlflow", f"{AT.mlflow}/#/"),
            ("/go/mlflow/experiments/1/runs/abc", f"{AT.mlflow}/#/experiments/1/runs/abc"),
            (
                "/go/mlflow/compare-runs?runs=%5B%22a%22%5D&experiments=%5B%221%22%5D",
                f"{AT.mlflow}/#/compare-runs?runs=%5B%22a%22%5D&experiments=%5B%221%22%5D",
            ),
            ("/go/airflow//evil.example/", f"{AT.airflow}//evil.example/"),
            ("/go/airflow/@evil.example", f"{AT.airflow}/@evil.example"),
        ],
    )
    def test_to_the_running_servers(self, target: str, location: str, port: int) -> None:
        with as_the_running_servers(AT):
            status, headers, body = ask(port, target)
        assert (status, headers["Location"], body) == (302, location, b"")

    def test_none_run(self, port: int) -> None:
        status, headers, body = ask(port, "/go/mlflow/experiments/1")
        assert status == 503
        assert "Location" not in headers
        assert b"make up" in body


def test_browsers_find_no_fault_with_the_missing_icon(port: int) -> None:
    assert ask(port, "/favicon.ico")[::2] == (204, b"")


def test_a_summary_that_is_damaged_breaks_nothing(port: int, home: Path) -> None:
    write_text(home / "reports" / "relative_loss" / "broken" / "summary.json", "{")
    assert ask(port, "/")[0] == 200
