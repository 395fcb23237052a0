// The one script of reports, their index and data cards: sorts and copies tables, shows notes, fits frames.
"use strict";
document.documentElement.classList.add("scripted");

const clean = node => node.textContent.replace(/\s+/g, " ").trim();

// Numbers come before text, and empty cells come last.
function sortKey(cell) {
  const text = clean(cell), found = /^[-+]?(\d+\.?\d*|\.\d+|Infinity)(e[-+]?\d+)?/i.exec(
    text.replace(/,/g, "").replace("\u2212", "-").replace("\u221e", "Infinity"));
  const number = "sort" in cell.dataset ? Number(cell.dataset.sort) : found ? Number(found[0]) : NaN;
  const empty = !("sort" in cell.dataset) && /^[-\u2013\u2014]?$/.test(text);
  return { number, text, rank: empty ? 2 : Number.isNaN(number) ? 1 : 0 };
}

function compare(a, b) {
  if (a.rank === 0 && b.rank === 0 && a.number !== b.number) return a.number < b.number ? -1 : 1;
  return a.text.localeCompare(b.text, "en", { numeric: true });
}

// A header sorts up, then down, then back to the original order.
function sort(button) {
  const header = button.closest("th"), table = header.closest("table"), body = table.tBodies[0];
  const rows = [...body.rows], at = header.cellIndex, now = header.getAttribute("aria-sort");
  const next = now === "ascending" ? "descending" : now === "descending" ? "none" : "ascending";
  rows.forEach((row, place) => { row.place ??= place; });
  const keys = new Map(rows.map(row => [row, sortKey(row.cells[at])])), sign = next === "descending" ? -1 : 1;
  rows.sort((a, b) => next === "none" ? a.place - b.place
    : keys.get(a).rank - keys.get(b).rank || sign * compare(keys.get(a), keys.get(b)) || a.place - b.place);
  for (const other of table.querySelectorAll("th")) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", next);
  body.append(...rows);
}

function textOf(source) {
  if (source.tagName !== "TABLE") return source.textContent;
  return [...source.rows].map(row => [...row.cells].map(clean).join("\t")).join("\n") + "\n";
}

// For pages opened as files, where browsers refuse the clipboard API.
function copyBySelection(text) {
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
  const text = textOf(document.getElementById(button.dataset.copies));
  let done = false;
  try { await navigator.clipboard.writeText(text); done = true; } catch { done = copyBySelection(text); }
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

// Folded tables are printed too.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not(.card):not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
