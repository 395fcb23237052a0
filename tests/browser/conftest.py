"""One home folder, one browser and one ``make up`` for all tests of this folder, which follow one another."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from browsing import Consoles, browser_context
from servers import Up, free_ports, make_up


class Session:
    """What the tests share: the home folder, the servers, a page, the consoles, and the run that the form started."""

    def __init__(self, home: Path, page: Page, consoles: Consoles, servers: contextlib.ExitStack) -> None:
        self.home = home
        self.page = page
        self.consoles = consoles
        self.run = ""
        self._ports = free_ports()
        self._servers = servers
        self._starts = 0
        self.up: Up
        self.start()

    def start(self) -> None:
        """Starts ``make up``."""
        self._starts += 1
        output = self.home.parent / f"up-{self._starts}.txt"
        self.up = self._servers.enter_context(make_up(self.home, self._ports, output))

    def stop(self) -> str:
        """Stops ``make up`` and returns what it printed. The page is left first, for it would miss its server."""
        self.page.goto("about:blank")
        return self.up.stop()


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    home = tmp_path_factory.mktemp("browser") / "home"
    with browser_context() as (context, consoles), contextlib.ExitStack() as servers:
        yield Session(home, context.new_page(), consoles, servers)
