"""Pages of HTML that need nothing from elsewhere: their style, tables that can be sorted and copied, and links.

A page's policy lets a browser load nothing, and run no script but the one below.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from urllib.parse import quote

from tasks.document import Cell, Table
from tasks.svg_plots import escaped

# Not told apart by their colours alone.
SIGNS = {"shown": "✓", "within noise": "≈", "not shown": "✗"}

_STYLE = """
:root { color-scheme: light }
body { margin: 0 auto; padding: 1rem; max-width: 75rem; background: #fff; color: #222;
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere }
h1, h2, h3 { line-height: 1.2; break-after: avoid } h1 { margin-bottom: .3rem }
h2 { margin-top: 2rem; border-bottom: 1px solid #bbb } h3 { font-size: 1rem; margin: 0 0 .3rem }
p, li, figcaption { max-width: 50rem } a { color: #00558a } p { margin: .4rem 0 }
.facts { color: #555 } .headline { font-size: 1.2rem; margin: .8rem 0 }
.caption, figcaption, .note-line { color: #555; font-size: .9rem }
.links, .tools { font-size: .85rem; margin: .3rem 0 } .links a, .tools > * { margin-right: .8rem }
.scroll { overflow-x: auto } .scroll:focus-visible { outline: 2px solid #0072B2 }
table { border-collapse: collapse; overflow-wrap: normal; margin: .3rem 0 }
th, td { padding: .25rem .8rem .25rem 0; text-align: left; white-space: nowrap; vertical-align: top;
  font-variant-numeric: tabular-nums }
th { border-bottom: 1px solid #888; vertical-align: bottom; white-space: normal }
th[scope=row] { border-color: #ddd; vertical-align: top } td { border-bottom: 1px solid #ddd }
th.number, td.number { text-align: right } td.long { white-space: normal; min-width: 16rem }
td.value { white-space: normal; overflow-wrap: anywhere }
tbody tr:hover td { background: #f4f7fa }
th button { all: unset; cursor: pointer; font-weight: 600 } th button::after { content: "\\a0↕"; color: #767676 }
th[aria-sort=ascending] button::after { content: "\\a0▲"; color: #222 }
th[aria-sort=descending] button::after { content: "\\a0▼"; color: #222 }
th button:focus-visible, [tabindex]:focus-visible { outline: 2px solid #0072B2; outline-offset: 1px }
td span[title] { text-decoration: underline dotted #767676; text-underline-offset: .2em }
.copy { font: inherit; padding: .1rem .6rem; border: 1px solid #888; border-radius: 4px; background: #fff;
  cursor: pointer } .copy:hover { background: #f4f7fa } .note-line:empty { display: none }
figure { margin: 1rem 0; max-width: 45rem; break-inside: avoid } svg { display: block; height: auto }
.plots { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)) }
.tables { display: flex; flex-wrap: wrap; gap: 1.5rem 4rem } .tables > * { min-width: 0; max-width: 100% }
.findings { list-style: none; padding: 0 } .findings li { margin: .7rem 0; break-inside: avoid }
.badge { display: inline-block; white-space: nowrap; font-size: .85rem; font-weight: 600; padding: 0 .5rem;
  border: 2px solid; border-radius: 1rem; margin: .1rem .4rem .1rem 0 }
.shown { color: #00634a } .noise { color: #6b4a00; border-style: dashed }
.not-shown { color: #9c3d00; border-style: double }
.evidence { color: #555 } .note { border-left: 4px solid #D55E00; padding: .1rem 0 .1rem .8rem }
pre { background: #f4f4f4; padding: .6rem; margin: .3rem 0; white-space: pre-wrap }
details { margin: .6rem 0 } summary { cursor: pointer; font-weight: 600; padding: .2rem 0 }
iframe { width: 100%; height: 80vh; border: 1px solid #bbb; box-sizing: border-box }
.runs { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 22rem), 1fr)) }
.runs > section { border: 1px solid #bbb; border-radius: 6px; padding: .8rem; min-width: 0 }
@media print {
  body { max-width: none; padding: 0; font-size: 11pt } .links, .tools, .note-line { display: none }
  .scroll { overflow: visible } table { font-size: .8em } th, td { white-space: normal; padding-right: .4rem }
  th button::after { content: none !important } tr { break-inside: avoid }
  td span[title] { text-decoration: none }
}
"""

# Headers sort up, down, and back to the order in which the table came. Numbers come before text, nothing comes last.
_SCRIPT = """
"use strict";
const clean = node => node.textContent.replace(/\\s+/g, " ").trim();
function key(cell) {
  const text = clean(cell), found = /^[-+]?(\\d+\\.?\\d*|\\.\\d+|Infinity)(e[-+]?\\d+)?/i.exec(
    text.replace(/,/g, "").replace("\\u2212", "-").replace("\\u221e", "Infinity"));
  const number = "sort" in cell.dataset ? Number(cell.dataset.sort) : found ? Number(found[0]) : NaN;
  const nothing = !("sort" in cell.dataset) && /^[-\\u2013\\u2014]?$/.test(text);
  return { number, text, rank: nothing ? 2 : Number.isNaN(number) ? 1 : 0 };
}
function compare(a, b) {
  if (a.rank === 0 && b.rank === 0 && a.number !== b.number) return a.number < b.number ? -1 : 1;
  return a.text.localeCompare(b.text, "en", { numeric: true });
}
function sort(button) {
  const header = button.closest("th"), table = header.closest("table"), body = table.tBodies[0];
  const rows = [...body.rows], at = header.cellIndex, now = header.getAttribute("aria-sort");
  const next = now === "ascending" ? "descending" : now === "descending" ? "none" : "ascending";
  rows.forEach((row, place) => { row.place ??= place; });
  const keys = new Map(rows.map(row => [row, key(row.cells[at])])), sign = next === "descending" ? -1 : 1;
  rows.sort((a, b) => next === "none" ? a.place - b.place
    : keys.get(a).rank - keys.get(b).rank || sign * compare(keys.get(a), keys.get(b)) || a.place - b.place);
  for (const other of table.querySelectorAll("th")) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", next);
  body.append(...rows);
}
function copied(source) {
  if (source.tagName !== "TABLE") return source.textContent;
  return [...source.rows].map(row => [...row.cells].map(clean).join("\\t")).join("\\n") + "\\n";
}
function copyOld(text) {
  const area = document.createElement("textarea");
  area.value = text;
  area.setAttribute("aria-hidden", "true");
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
async function copy(button) {
  const text = copied(document.getElementById(button.dataset.copies));
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch { done = copyOld(text); }
  button.focus();
  button.textContent = done ? "Copied" : "Could not copy";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}
function showNote(target) {
  const line = target.closest(".table")?.querySelector(".note-line");
  if (line) line.textContent = clean(target) + ": " + target.title;
}
function fit(frame) {
  const page = frame.contentDocument?.documentElement;
  if (!page) return;
  const observer = new ResizeObserver(() => { frame.style.height = page.offsetHeight + 2 + "px"; });
  observer.observe(page);
}
document.addEventListener("click", event => {
  const button = event.target.closest("button"), noted = event.target.closest("td [title]");
  if (button?.closest("th")) sort(button);
  else if (button?.dataset.copies) copy(button);
  else if (noted) showNote(noted);
});
document.addEventListener("focusin", event => { if (event.target.matches("td [title]")) showNote(event.target); });
for (const frame of document.querySelectorAll("iframe")) frame.addEventListener("load", () => fit(frame));
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not(.card):not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
"""

_NUMBER = re.compile(r"[-+−<>≤≥≈±]?\s?(?:[\d,]*\.?\d+(?:e[-+]?\d+)?|∞)\s?%?(?=$|[\s(±×/])", re.IGNORECASE)
_LONG = 60


def page(title: str, sections: Iterable[str]) -> str:
    """A page of this style around trusted HTML, which may have tables of ``html_table``."""
    digest = base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()
    # A frame inherits the policy: the styles of data cards need 'unsafe-inline'.
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "frame-src 'self'; base-uri 'none'; form-action 'none'"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Without it, a browser asks the server for an icon.
        '<link rel="icon" href="data:,">\n'
        f"<title>{one_line(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(section for section in sections if section)
        + f"\n</main>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n"
    )


def html_table(table: Table, *, csv: bool = False, heading: bool = True) -> str:
    """A table whose headers sort it, with a button to copy it and, if asked, a link to its CSV beside the page.

    Columns of numbers are on the right. A cell's note is its tooltip; a click or the keyboard's focus shows it below.
    """
    key = _id(table.name)
    numeric = numeric_columns(table)
    classes = [' class="number"' if number else "" for number in numeric]
    head = "".join(
        f'<th scope="col" aria-sort="none"{kind}><button type="button">{one_line(column)}</button></th>'
        for column, kind in zip(table.columns, classes, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(_cell(cell, number) for cell, number in zip(row, numeric, strict=True))}</tr>"
        for row in table.rows
    )
    link = f'<a href="{beside(table.name, "csv")}" download>CSV</a>' if csv else ""
    return (
        '<div class="table">'
        + (f"<h3>{one_line(table.title)}</h3>" if heading else "")
        + (f'<p class="caption">{one_line(table.caption)}</p>' if table.caption else "")
        # The keyboard scrolls only what can have the focus.
        + f'<div class="scroll" role="region" tabindex="0" aria-label="{one_line(table.title)}">'
        f'<table id="{key}"><thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n'
        '<p class="note-line" role="status"></p>'
        f'<p class="tools"><button type="button" class="copy" data-copies="{key}">Copy</button>{link}</p></div>'
    )


def numeric_columns(table: Table) -> list[bool]:
    """Which columns are mostly numbers, with or without a spread, a sign or a unit; a dash is nothing."""
    texts = [[row[at].text.strip().strip("–") for row in table.rows] for at in range(len(table.columns))]
    return [2 * sum(bool(_NUMBER.match(text)) for text in column) > sum(map(bool, column)) for column in texts]


def badge(verdict: str, text: str) -> str:
    """Some words marked by a verdict's sign and colour."""
    kind = {"shown": "shown", "within noise": "noise", "not shown": "not-shown"}[verdict]
    return f'<span class="badge {kind}">{SIGNS[verdict]} {escaped(text)}</span>'


def link_to(target: str, content: str, title: str = "") -> str:
    """A link around trusted HTML; only the content if the target is neither on the web nor beside the page."""
    scheme = re.match(r"([a-z][a-z0-9+.-]*):", target.strip(), re.IGNORECASE)
    tooltip = f' title="{lines(title, "&#10;")}"' if title else ""
    if not target.strip() or (scheme and scheme[1].lower() not in ("http", "https")):
        return f'<span tabindex="0"{tooltip}>{content}</span>' if title else content
    return f'<a href="{escaped(target.strip())}"{tooltip}>{content}</a>'


def one_line(text: str) -> str:
    """One line of text; a line break in it is a space, as everywhere in HTML."""
    return escaped(" ".join(text.split()))


def lines(text: str, between: str = "\n") -> str:
    """Text whose line breaks stay."""
    return between.join(map(escaped, text.splitlines()))


def _id(name: str) -> str:
    return f"table-{quote(name, safe='', errors='replace')}"


def beside(name: str, ending: str) -> str:
    """The address of a file beside the page."""
    return f"{quote(name, safe='', errors='replace')}.{ending}"


def _cell(cell: Cell, numeric: bool) -> str:
    content = f"<strong>{one_line(cell.text)}</strong>" if cell.strong else one_line(cell.text)
    kind = "number" if numeric else "long" if len(cell.text) > _LONG else ""
    sort = "" if cell.sort is None else f' data-sort="{_sort_key(cell.sort)}"'
    opening = f'<td class="{kind}"{sort}>' if kind else f"<td{sort}>"
    return f"{opening}{link_to(cell.link, content, cell.note)}</td>"


def _sort_key(value: float) -> str:
    """A number as JavaScript reads it."""
    return repr(float(value)).replace("inf", "Infinity").replace("nan", "NaN")
