"""Debian's chromium, driven by playwright, and what its pages write to their consoles."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from typing import Any, NamedTuple

from playwright.sync_api import BrowserContext, ConsoleMessage, Page, sync_playwright

from servers import Up

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# Nothing that a page does takes as long on an idle machine.
PATIENCE_MS = 60_000


class Message(NamedTuple):
    """A line of a console: the page's address, the level, the text, and the address that it is about."""

    page: str
    level: str
    text: str
    about: str


class Consoles(list[Message]):
    """What all pages of a context wrote."""

    def watch(self, page: Page) -> None:
        """Keeps what a page writes, and its uncaught errors."""

        def written(message: ConsoleMessage) -> None:
            about = str(message.location.get("url", ""))
            self.append(Message(page.url, message.type, message.text, about))

        page.on("console", written)
        page.on("pageerror", lambda error: self.append(Message(page.url, "error", str(error), page.url)))


@contextlib.contextmanager
def browser_context(**options: Any) -> Iterator[tuple[BrowserContext, Consoles]]:
    """Starts chromium with an empty profile; yields it with its consoles."""
    chromium = shutil.which("chromium")
    assert chromium is not None, "there is no chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        context.set_default_timeout(PATIENCE_MS)
        consoles = Consoles()
        context.on("page", consoles.watch)
        yield context, consoles
        browser.close()


def log_in(page: Page, up: Up) -> None:
    """Opens Airflow and logs in with the printed login, unless an earlier login still holds."""
    page.goto(f"{up.airflow}/")
    home = page.get_by_role("link", name="Dags", exact=True)
    name = page.locator("input[name=username]")
    home.or_(name).first.wait_for()
    if name.is_visible():
        name.fill(up.user)
        page.locator("input[name=password]").fill(up.password)
        page.get_by_role("button", name=re.compile("sign in", re.IGNORECASE)).click()
    home.wait_for()
