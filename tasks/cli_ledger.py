"""The verbs of the ledger: ``python -m tasks ledger …`` and ``python -m tasks nightly-cost``.

Heavy libraries are imported inside the verbs that need them.
"""

from __future__ import annotations

import datetime
import math
from argparse import ArgumentTypeError, Namespace
from typing import TYPE_CHECKING, Any

from tasks.cli_arguments import Answer, add_verb, positive
from tasks.config.nightly import parsed_day
from tasks.runtime.errors import UserError
from tasks.runtime.progress import counted

if TYPE_CHECKING:
    from tasks.ledger.entries import Entry
    from tasks.reporting.document import Cell


def add_verbs(verbs: Any) -> None:
    """Adds ``ledger``, with verbs of its own, and ``nightly-cost``."""
    text = "show, forecast, verify and resolve what releases have spent of each day's privacy budget"
    ledger = verbs.add_parser("ledger", help=text, description=text[0].upper() + text[1:] + ".")
    inner = ledger.add_subparsers(required=True, metavar="verb")
    verb = add_verb(inner, "list", list_entries, "list all entries: what was reserved, committed and given back")
    verb.add_argument("--standing", action="store_true", help="only reservations that are neither committed nor back")
    verb = add_verb(inner, "spent", spent, "show what was spent on each day's data, and what is left")
    verb.add_argument("--nightly", metavar="NAME", help="an entry of `nightly` in pipelines.yaml (default: all)")
    verb.add_argument("--since", type=_day, metavar="DAY", help="first day to show, such as 2026-01-31")
    verb = add_verb(inner, "simulate", simulate, "play nights that have not been, and show how the budget fills")
    verb.add_argument("--nightly", required=True, metavar="NAME", help="an entry of `nightly` in pipelines.yaml")
    verb.add_argument("--nights", type=positive(int), required=True, metavar="N", help="number of nights to play")
    verb.add_argument("--rows-a-day", type=positive(int), metavar="N", help="default: that of a synthetic dataset")
    verb.add_argument("--first", type=_day, metavar="DAY", help="newest day of the first night (default: the next one)")
    verb = add_verb(
        inner,
        "verify",
        verify,
        "check every row, the anchor, the heads that nights kept and, if given, one that was kept elsewhere",
    )
    verb.add_argument("--head", metavar="ROWS:HASH", help="a head that was logged, for example to MLflow")
    verb = add_verb(inner, "resolve", resolve, "end a reservation that a crash left standing")
    verb.add_argument("key", help="the key of the reservation; `ledger list --standing` shows it")
    to = verb.add_mutually_exclusive_group(required=True)
    to.add_argument("--commit", action="store_true", help="it was released, or may have been: charge it for good")
    to.add_argument("--give-back", action="store_true", help="nothing was released, and nothing will be")
    verb.add_argument("--reason", required=True, help="why; the ledger keeps it")
    verb = add_verb(inner, "page", page, "write the page with spent budget by day and night")
    verb.add_argument("--nightly", required=True, metavar="NAME", help="an entry of `nightly` in pipelines.yaml")
    _add_cost(verbs)


def _add_cost(verbs: Any) -> None:
    text = (
        "compute what retraining every night costs one day's data: sliding window, fresh each day, one continued model"
    )
    verb = add_verb(verbs, "nightly-cost", nightly_cost, text)
    verb.add_argument("--window", type=positive(int), required=True, metavar="W", help="days that a night trains on")
    verb.add_argument("--epsilon", type=positive(float), required=True, metavar="E", help="ε of one night")
    verb.add_argument("--delta", type=positive(float), metavar="D", help="δ of every ε (default: 1/N, or 1e-6)")
    verb.add_argument("--total", type=positive(float), metavar="T", help="total ε of a day's data")
    group = verb.add_argument_group("training", "without these, a night is one Gaussian release")
    group.add_argument("--examples-a-day", type=positive(int), metavar="N", help="examples of a day")
    group.add_argument("--batch-size", type=positive(int), metavar="B", help="expected batch size")
    group.add_argument("--epochs", type=positive(float), metavar="K", help="passes over the window or the day")


def _day(text: str) -> str:
    if parsed_day(text) is None:
        raise ArgumentTypeError(f"expected a date such as 2026-01-31, got {text!r}")
    return text


def list_entries(options: Namespace) -> Answer:
    from tasks.ledger.book import Ledger
    from tasks.reporting.document import Cell

    ledger = Ledger.open()
    entries = [one for one in ledger.entries() if not options.standing or one.state == "reserved"]
    if options.json:
        return Answer([entry.to_json() for entry in entries])
    if not entries:
        return Answer(None, f"no {'standing reservations' if options.standing else 'entries'} in {ledger.name}")
    rows = [
        [
            Cell(entry.key),
            Cell(entry.state + (", resolved" if entry.resolved else "")),
            Cell(_kinds(entry)),
            Cell(_span([day.day for day in entry.days])),
            Cell(_number(max(entry.own_epsilon(day, entry.delta) for day in entry.days)) if entry.charges else "–"),
            Cell(entry.changed_at[5:16].replace("T", " ")),
        ]
        for entry in entries
    ]
    caption = "ε is that of the entry alone, at the δ of its total. Times of the last change are in UTC."
    _print("entries", f"Ledger {ledger.name}", ["key", "state", "what", "days", "ε", "changed"], rows, caption)
    reasons = [f"{entry.key}: {entry.reason}" for entry in entries if entry.reason]
    return Answer(None, "\n".join(reasons))


def _kinds(entry: Entry) -> str:
    kinds = [release.kind for release in entry.reserved]
    several = {kind: f" × {kinds.count(kind)}" if kinds.count(kind) > 1 else "" for kind in kinds}
    return ", ".join(kind + times for kind, times in several.items())


def _span(days: list[str]) -> str:
    first, last = min(days), max(days)
    if first == last:
        return first
    return f"{first}…{last[8:] if first[:7] == last[:7] else last[5:] if first[:4] == last[:4] else last}"


def spent(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.ledger.book import Ledger
    from tasks.reporting.document import Cell

    config, ledger = load_config(), Ledger.open()
    chosen = {options.nightly: config.night(options.nightly)} if options.nightly else config.nightly
    result = {}
    for name, entry in chosen.items():
        total = entry.total
        found = ledger.spent(config.budget_name(entry.dataset), total, since=options.since)
        result[name] = {
            "dataset": entry.dataset,
            "total": total.model_dump(),
            "days": {
                day: _finite(one._asdict() | {"by": [by._asdict() for by in one.by]}) for day, one in found.items()
            },
        }
        if options.json:
            continue
        rows = [
            [
                Cell(day),
                Cell(f"{len(one.by)}"),
                Cell(_number(one.epsilon)),
                Cell(_number(max(total.epsilon - one.epsilon, 0.0))),
                Cell("–" if one.user_epsilon is None else _number(one.user_epsilon)),
            ]
            for day, one in found.items()
        ]
        columns = ["day", "entries", "ε spent", "left", "ε of a user"]
        title = f"{name}: days of {entry.dataset}, total ε = {total.epsilon:g} at δ = {total.delta:g}"
        caption = (
            f"A user has up to {counted(total.user_examples, 'example')} on each of {counted(total.user_days, 'day')} "
            "in a row, the first of which is the day of the line."
        )
        notes = sorted({one.user_note for one in found.values() if one.user_note})
        _print("spent", title, columns, rows, " ".join([caption, *(f"No number: {note}." for note in notes)]))
    return Answer(result)


def simulate(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.ledger import forecast
    from tasks.ledger.book import Ledger
    from tasks.reporting.document import Cell

    config = load_config()
    entry = config.night(options.nightly)
    dataset, entries = config.dataset(entry.dataset), Ledger.open().entries()
    synthetic = dataset.synthetic.days if dataset.synthetic else None
    rows_a_day = options.rows_a_day or (synthetic.rows if synthetic else None)
    if rows_a_day is None:
        raise UserError(f"{entry.dataset} is not synthetic: give the number of rows of a day with --rows-a-day")
    budget = config.budget_name(entry.dataset)
    first = parsed_day(options.first) if options.first else forecast.next_newest(entries, dataset, entry, budget)
    planned = forecast.planned_night(entry, dataset, rows_a_day * entry.window_days)
    releases = forecast.releases_of(entry, planned, budget)
    assert isinstance(first, datetime.date)
    found = forecast.simulate(entries, releases, budget, entry.total, first, options.nights)
    sentence = forecast.forecast(found, entry.total)
    if not options.json:
        rows = [
            [
                Cell(night.day),
                Cell(night.highest_day),
                Cell(_number(night.epsilon)),
                Cell("refused" if night.refused else "runs"),
            ]
            for night in found.nights
        ]
        title = f"{options.nightly}: nights of {rows_a_day:,} rows a day, after what stands in the ledger"
        caption = f"Each trains on {counted(entry.window_days, 'day')} with σ = {planned.record.noise_multiplier:.3g}."
        _print("nights", title, ["newest day", "fullest day", "its ε", "night"], rows, caption)
        days = [[Cell(day), Cell(_number(value))] for day, value in found.days.items()]
        _print("days", f"Days after these nights, total {entry.total.epsilon:g}", ["day", "ε"], days)
    result = {
        "nights": [_finite(night._asdict()) for night in found.nights],
        "days": _finite(found.days),
        "rows_a_day": rows_a_day,
        "noise_multiplier": planned.record.noise_multiplier,
        "trainings": planned.trainings,
        "forecast": sentence,
    }
    return Answer(result, sentence)


def verify(options: Namespace) -> Answer:
    from tasks.ledger.book import Ledger
    from tasks.ledger.chain import Head
    from tasks.nights.kept_heads import kept_heads

    ledger, known = Ledger.open(), kept_heads()
    found = ledger.verify(Head.parse(options.head) if options.head else None, known=known)
    if found.problems:
        problems = "\n".join(f"- {problem}" for problem in found.problems)
        raise UserError(f"the ledger {ledger.name} is not as it was written:\n{problems}")
    anchored = counted(found.anchored.rows, "row")
    text = f"{ledger.name}: {counted(found.head.rows, 'row')}, all as they were written; the anchor has seen {anchored}"
    text += f", and {counted(len(known), 'night')} of this home agree" if known else ""
    lines = [text, f"head {found.head}", *found.remarks]
    result = {"valid": True, "rows": found.head.rows, "head": str(found.head), "anchored_rows": found.anchored.rows}
    return Answer({**result, "remarks": list(found.remarks)}, "\n".join(lines))


def resolve(options: Namespace) -> Answer:
    from tasks.ledger.book import Ledger

    done = Ledger.open().resolve(options.key, "commit" if options.commit else "give_back", options.reason)
    text = f"{done.key} is {done.state}. Head of the ledger: {done.head}"
    return Answer({"key": done.key, "state": done.state, "head": str(done.head)}, text)


def page(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.ledger.page import write_page

    path = write_page(options.nightly, load_config())
    return Answer({"page": str(path)}, str(path))


def nightly_cost(options: Namespace) -> Answer:
    from tasks.ledger.cost import DailyTraining, Question
    from tasks.ledger.cost import nightly_cost as cost_of
    from tasks.reporting.document import Cell

    given = (options.examples_a_day, options.batch_size, options.epochs)
    if any(given) and not all(given):
        raise UserError("a training needs all three of --examples-a-day, --batch-size and --epochs")
    training = DailyTraining(*given) if all(given) else None
    asked = Question(options.window, options.epsilon, options.delta, options.total, training)
    schemes = cost_of(asked)
    result = {"delta": asked.at_delta, "schemes": [_finite(scheme._asdict()) for scheme in schemes]}
    if options.json:
        return Answer(result)
    columns = ["scheme", "a night trains", "nights a day is in", "σ", "ε of a day"]
    rows = [
        [
            Cell(one.name),
            Cell(one.trains_on),
            Cell(f"{one.releases_of_a_day}"),
            Cell(f"{one.noise_multiplier:.3g}"),
            Cell(_number(one.day_epsilon)),
        ]
        for one in schemes
    ]
    if asked.total is not None:
        columns += ["largest ε a night", "its σ"]
        for row, one in zip(rows, schemes, strict=True):
            row += [Cell(_number(one.most_epsilon or 0.0)), Cell(f"{one.most_noise_multiplier:.3g}")]
    title = f"Nights of ε = {asked.epsilon:g} at δ = {asked.at_delta:.3g}"
    title += "" if asked.total is None else f", total {asked.total:g}"
    kind = "one Gaussian release" if training is None else "DP-SGD with Poisson sampling"
    _print("cost", title, columns, rows, f"A night is {kind}; ε is composed by PLD.")
    added = f"ε = {asked.window * asked.epsilon:g} at δ = {asked.window * asked.at_delta:.3g}"
    return Answer(result, f"If only ε and δ of a night were known, the sliding window would have {added}.")


def _print(name: str, title: str, columns: list[str], rows: list[list[Cell]], caption: str = "") -> None:
    from tasks.reporting.document import Table
    from tasks.reporting.terminal import print_tables

    print_tables([Table(name, title, columns, rows, caption)])


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3f}"


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces infinity, which JSON does not have, by None."""
    return {name: None if value == math.inf else value for name, value in values.items()}
