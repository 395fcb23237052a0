// The one script of reports, their index and data cards: makes links of paths
// in MLflow, sorts and copies tables, shows notes.
"use strict";
document.documentElement.classList.add("scripted");

// Where the page is: served, opened as a file, or in a sandboxed frame such as that of MLflow's artifacts, which lets no
// link lead out of it and loads no file from beside the page.
const place = location.protocol === "file:" ? "file"
  : /^https?:$/.test(location.protocol) && self.origin !== "null" ? "served" : "frame";

function asLink(span) {
  const link = document.createElement("a");
  link.href = "/go/mlflow/" + span.dataset.mlflow;
  if (span.title) link.title = span.title;
  link.append(...span.childNodes);
  span.replaceWith(link);
}

function asText(link) {
  const text = document.createElement("span"), file = link.dataset.file;
  text.append(...link.childNodes);
  if (file) text.append(` (${file}, beside this page)`);
  link.replaceWith(text);
}

function mendLinks() {
  const inMlflow = document.querySelectorAll("[data-mlflow]"), index = document.querySelector("[data-index]");
  if (place === "served") {
    inMlflow.forEach(asLink);
    for (const note of document.querySelectorAll(".where-mlflow")) note.remove();
  }
  if (index && place === "served") {
    index.href = "/";
    index.closest("p").hidden = false;
  }
  if (place !== "frame") return;
  index?.closest("p").remove();
  for (const note of document.querySelectorAll(".in-frame")) note.hidden = false;
  for (const link of document.querySelectorAll("a[href]:not([href^='#'])")) asText(link);
}

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
  // Spreadsheets read a hyphen before a number, and no minus sign.
  const plain = cell => clean(cell).replace(/\u2212(?=[\d.])/g, "-");
  return [...source.rows].map(row => [...row.cells].map(plain).join("\t")).join("\n") + "\n";
}

// For pages opened as files and in frames, where browsers refuse the clipboard API.
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
  if (place === "frame") done = copyBySelection(text);
  else try { await navigator.clipboard.writeText(text); done = true; } catch { done = copyBySelection(text); }
  button.focus();
  button.textContent = done ? "Copied" : "Could not copy";
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

function showNote(target) {
  const line = target.closest(".table")?.querySelector(".note-line");
  if (line) line.textContent = clean(target) + ": " + target.title;
}

document.addEventListener("click", event => {
  const button = event.target.closest("button"), noted = event.target.closest("td [title]");
  if (button?.closest("th")) sort(button);
  else if (button?.dataset.copies) copy(button);
  else if (noted) showNote(noted);
});
document.addEventListener("focusin", event => { if (event.target.matches("td [title]")) showNote(event.target); });
mendLinks();

// Folded tables are printed too.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  for (const details of opened) details.open = true;
});
addEventListener("afterprint", () => { for (const details of opened) details.open = false; });
