"""The verbs of nightly retrains: ``night``, ``nights`` and ``champion``."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from tasks.cli_arguments import Answer, add_verb, positive
from tasks.runtime.errors import UserError


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the command line."""
    verb = add_verb(verbs, "night", night, "run the night of one day through its Airflow DAG")
    _name_argument(verb)
    verb.add_argument("--day", required=True, metavar="DAY", help="the newest day, for example 2026-01-31")
    verb = add_verb(verbs, "nights", nights, "list the nights of an entry, repeat past ones, or play synthetic ones")
    _name_argument(verb)
    verb.add_argument("--from", dest="first", metavar="DAY", help="first of the past nights to run, in order")
    verb.add_argument("--to", dest="last", metavar="DAY", help="last of them")
    verb.add_argument(
        "--play", type=positive(int), metavar="N", help="play N nights from the first day of synthetic data on"
    )
    verb = add_verb(
        verbs, "champion", champion, "show who was champion, explain a night, or go back to an earlier night's model"
    )
    _name_argument(verb)
    verb.add_argument("--explain", metavar="DAY", help="print how a night ended, and where its page is")
    verb.add_argument("--set", dest="day", metavar="DAY", help="make the model of this night the champion again")
    verb.add_argument("--reason", default="", help="why; needed with --set, and kept in the history")


def _name_argument(verb: Any) -> None:
    verb.add_argument("name", help="an entry of `nightly` in pipelines.yaml")


def night(options: Namespace) -> Answer:
    from tasks.config.nightly import checked_day
    from tasks.nights.running import run_night

    record = run_night(options.name, checked_day(options.day))
    return Answer(record, record["sentence"])


def nights(options: Namespace) -> Answer:
    from tasks.nights.running import listed, play, run_nights

    if options.play is not None:
        if options.first or options.last:
            raise UserError("--play starts at the first synthetic day: leave out --from and --to")
        records = play(options.name, options.play)
    elif options.first or options.last:
        if not (options.first and options.last):
            raise UserError("give both --from and --to, the first and the last of the nights")
        records = run_nights(options.name, options.first, options.last)
    else:
        records = listed(options.name)
    if not options.json:
        _print(options.name)
    return Answer(records)


def _print(name: str) -> None:
    from tasks.nights.pages import overview_page, terminal_tables
    from tasks.reporting.terminal import print_tables

    page = overview_page(name)
    if not page.exists():
        print(f"no night of {name} has run yet: try `make nights N=5`")
        return
    print_tables(terminal_tables(name))
    print(f"Page: {page}")


def champion(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.config.nightly import checked_day
    from tasks.nights.champions import history, roll_back
    from tasks.nights.running import explained

    load_config().night(options.name)
    if options.explain:
        record = explained(options.name, checked_day(options.explain))
        return Answer(record, record["sentence"] + f"\nPage: {record['page']}")
    if options.day:
        reign = roll_back(options.name, checked_day(options.day), options.reason)
        _refresh(options.name, reign["day"])
        return Answer(reign, f"night {reign['day']}, version {reign['version']}, is the champion of {options.name}")
    if options.reason:
        raise UserError("--reason goes with --set DAY")
    reigns = history(options.name)
    lines = [
        f"{one['since']}  night {one['day']}, version {one['version']}, by {one['by']}: {one['reason']}"
        for one in reigns
    ]
    return Answer(reigns, "\n".join(reversed(lines)) or f"{options.name} has no champion yet")


def _refresh(name: str, day: str) -> None:
    from tasks.nights.pages import write_night_pages

    write_night_pages(name, day)
