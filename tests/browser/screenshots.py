"""Takes pictures of our pages and of MLflow's first views, for a person to look at.

While ``make up`` runs::

    .venv-browser/bin/python tests/browser/screenshots.py http://127.0.0.1:8090 folder

Every page that the front page leads to is pictured at 1280 and 400 pixels, light and dark. A page that is wider than
its window is named.
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
            found[name.removesuffix("page") + "statements"] = link.replace("page.html", "statements.html")
    report = next((link for link in found.values() if link.endswith("/page.html")), None)
    if report is not None:
        page.goto(report)
        links = page.eval_on_selector_all("a[href*='/go/mlflow/']", "links => links.map(link => link.href)")
        found["mlflow-experiment"] = re.sub(r"/runs.*", "/runs?workflowType=machine_learning", links[0])
        found["mlflow-compare"] = next(link for link in links if "compareRunsMode" in link)
        found["mlflow-run"] = next(link for link in links if re.search(r"/runs/[0-9a-f]{32}", link))
        found["mlflow-parent"] = links[-1]
    return found


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
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=not theirs)
                    wide = page.evaluate("document.documentElement.scrollWidth")
                    if wide > width and not theirs:
                        print(f"{name} is {wide} pixels wide in a window of {width}")
            for message in consoles:
                if message.page.startswith(reports):
                    print(f"console of {message.page}: {message.level} {message.text}")


if __name__ == "__main__":
    picture(sys.argv[1].rstrip("/"), Path(sys.argv[2]))
