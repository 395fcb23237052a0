"""Takes pictures of our pages and of MLflow's first views, for a person to look at.

While ``make up`` runs::

    .venv-browser/bin/python tests/browser/screenshots.py http://127.0.0.1:8090 folder

Every page that the front page leads to is pictured at 1280 and 400 pixels, light and dark, with its folded tables
open. A page that is wider than its window is named, and so is a table that scrolls sideways.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from playwright.sync_api import Page

from browsing import browser_context

WIDTHS = (1280, 400)
# MLflow's pages never stop asking their server, so there is no end to wait for.
_DRAWN_MS = 5_000
# Chromium draws nothing below about 16,000 pixels: of a page of many statements, the first ones are enough.
_TALLEST = 15_000
_WIDE_TABLES = """places => places.filter(place => place.scrollWidth > place.clientWidth)
    .map(place => [place.ariaLabel, place.scrollWidth, place.clientWidth])"""


def pages(page: Page, reports: str) -> dict[str, str]:
    """Returns the pages to picture: a name and an address for each."""
    page.goto(reports)
    found = {"index": reports}
    links = page.eval_on_selector_all("a[href]", "links => links.map(link => link.href)")
    for link in dict.fromkeys(link for link in links if link.startswith(reports) and "/go/" not in link):
        name = re.sub(r"\W+", "-", link.removeprefix(reports)).strip("-").removesuffix("-html")
        if link.rstrip("/") != reports:
            found[name] = link
    for name, link in list(found.items()):
        if name.endswith("-page"):
            # A measurement trains no model, and has no statements.
            statements = link.replace("page.html", "statements.html")
            if page.request.get(statements).ok:
                found[name.removesuffix("page") + "statements"] = statements
    for report in [link for link in found.values() if link.endswith("/page.html")]:
        page.goto(report)
        links = page.eval_on_selector_all("a[href*='/go/mlflow/']", "links => links.map(link => link.href)")
        compare = next((link for link in links if "compareRunsMode" in link), None)
        if compare is None:
            continue
        found["mlflow-experiment"] = re.sub(r"/runs.*", "/runs?workflowType=machine_learning", links[0])
        found["mlflow-compare"] = compare
        found["mlflow-run"] = next(link for link in links if re.search(r"/runs/[0-9a-f]{32}", link))
        found["mlflow-parent"] = links[-1]
        break
    return found


def say_what_is_wide(page: Page, name: str, width: int) -> None:
    """Prints that a page is wider than its window, and which of its tables scroll sideways."""
    wide = page.evaluate("document.documentElement.scrollWidth")
    if wide > width:
        print(f"{name} is {wide} pixels wide in a window of {width}")
    for title, inside, outside in page.eval_on_selector_all(".scroll", _WIDE_TABLES):
        print(f"{name} at {width}: the table {title!r} is {inside} pixels wide in a place of {outside}")


def picture(reports: str, folder: Path) -> None:
    """Writes the pictures into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for scheme in ("light", "dark"):
        with browser_context(color_scheme=scheme) as (context, consoles):
            page = context.new_page()
            for name, address in pages(page, reports).items():
                for width in WIDTHS:
                    page.set_viewport_size({"width": width, "height": 900})
                    page.goto("about:blank")
                    page.goto(address)
                    theirs = name.startswith("mlflow")
                    if theirs:
                        page.wait_for_timeout(_DRAWN_MS)
                    else:
                        page.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
                    tall = 0 if theirs else page.evaluate("document.documentElement.scrollHeight")
                    page.set_viewport_size({"width": width, "height": min(max(900, tall), _TALLEST)})
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png")
                    if not theirs:
                        say_what_is_wide(page, name, width)
            for message in consoles:
                if message.page.startswith(reports):
                    print(f"console of {message.page}: {message.level} {message.text}")


if __name__ == "__main__":
    picture(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
