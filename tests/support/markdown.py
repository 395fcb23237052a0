"""Reads what the tests need from Markdown: links, anchors, code and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator


def fenced(text: str, language: str) -> list[str]:
    """Returns the fenced code blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def prose(text: str) -> str:
    """Returns the text without its fenced code blocks."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def code(text: str) -> list[str]:
    """Returns the pieces of inline code.

    >>> code("run `make test` in `var/`")
    ['make test', 'var/']
    """
    return re.findall(r"`([^`\n]+)`", prose(text))


def links(text: str) -> list[str]:
    """Returns the targets of links and images.

    >>> links("[a](b.md#c) ![d](e.svg)")
    ['b.md#c', 'e.svg']
    """
    return re.findall(r"\]\(([^)\s]+)\)", prose(text))


def anchors(text: str) -> set[str]:
    """Returns the anchors that GitHub gives to the headings.

    >>> sorted(anchors("# The walk\\n## What ε does not cover"))
    ['the-walk', 'what-ε-does-not-cover']
    """
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def table_rows(text: str) -> Iterator[list[str]]:
    """Yields the cells of the rows of all tables, without the heads.

    >>> list(table_rows("| a | b |\\n|---|---|\\n| 1 | 2 |"))
    [['1', '2']]
    """
    inside = False
    for line in prose(text).splitlines():
        if not line.startswith("|"):
            inside = False
        elif re.fullmatch(r"[|:\- ]+", line):
            inside = True
        elif inside:
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
