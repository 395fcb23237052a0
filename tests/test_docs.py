"""The README and docs/ are true: links lead somewhere, commands, paths and settings exist, numbers agree."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from benchmarks.walk.figure import draw
from benchmarks.walk.visits import NEEDED, Walk
from tasks.cli import _parser
from tasks.config.loading import Config, load_config
from tests.support.markdown import anchors, code, fenced, links, table_rows

CHECKOUT = Path(__file__).resolve().parent.parent
DOCS = CHECKOUT / "docs"
PAGES = [CHECKOUT / "README.md", *sorted(DOCS.glob("*.md"))]
MAKEFILE = (CHECKOUT / "Makefile").read_text()
TOP = {path.name for path in CHECKOUT.iterdir() if not path.name.startswith(".")} - {"var"}
# What the reader puts there themselves.
PLACEHOLDERS = {"my_clicks", "<name>"}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)


@pytest.fixture(scope="module")
def config() -> Config:
    return load_config()


def verbs() -> dict[str, argparse.ArgumentParser]:
    """The parsers of ``python -m tasks``, by verb."""
    subparsers = next(action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    return subparsers.choices


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a verb, and of the verbs under it."""
    inner = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    below = (
        [options_of(one) for action in inner for one in action.choices.values()] if parser.prog.count(" ") > 2 else []
    )
    return {option for action in parser._actions for option in action.option_strings}.union(*below)


def commands(page: Path, start: str) -> Iterator[list[str]]:
    """The commands of a page that begin with ``start``, in shell blocks and in inline code, as words after it."""
    text = page.read_text()
    lines = [line for block in fenced(text, "sh") for line in block.splitlines()]
    for line in [*lines, *code(text)]:
        words = shlex.split(line.removeprefix(".venv/bin/"), comments=True)
        if words[: len(start.split())] == start.split():
            yield words[len(start.split()) :]


def test_the_pages_are_linked_from_the_readme() -> None:
    targets = {target.split("#")[0] for target in links(PAGES[0].read_text())}
    assert {f"docs/{page.name}" for page in PAGES[1:]} <= targets


def test_the_readme_is_short() -> None:
    assert len(PAGES[0].read_text().splitlines()) <= 160


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda path: path.name)
def test_a_page_says_first_whom_it_is_for(page: Path) -> None:
    assert page.read_text().splitlines()[2].startswith("For ")


@every_page
def test_links_and_anchors_lead_somewhere(page: Path) -> None:
    for target in links(page.read_text()):
        if target.startswith(("https://", "http://")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found.read_text()), target


@every_page
def test_make_targets_and_variables_exist(page: Path, config: Config) -> None:
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    known = {"PIPELINE": {*config.pipelines, "all"}, "PROFILE": {*config.profiles}, "DATASET": {*config.datasets}}
    for words in commands(page, "make"):
        assert not words or words[0] in targets, words
        for word in words[1:]:
            name, _, value = word.partition("=")
            assert f"$({name})" in MAKEFILE, word
            assert not value or value in known.get(name, {value}) | PLACEHOLDERS, word
    for name, value in re.findall(r"`([A-Z_]+)=([^`\s]*)", page.read_text()):
        assert f"$({name})" in MAKEFILE or named_in_code(name), name
        assert not value or value in known.get(name, {value}) | PLACEHOLDERS, (name, value)


def named_in_code(name: str) -> bool:
    return any(name in path.read_text() for package in ("tasks", "dags") for path in (CHECKOUT / package).rglob("*.py"))


@every_page
def test_environment_variables_exist(page: Path) -> None:
    for name in code(page.read_text()):
        if re.fullmatch(r"[A-Z]+(_[A-Z]+)+", name):
            assert named_in_code(name) or f"$({name})" in MAKEFILE, name


@every_page
def test_verbs_and_options_exist(page: Path) -> None:
    for words in commands(page, "python -m tasks"):
        if words and not words[0].startswith("-"):
            assert words[0] in verbs(), words
            given = {word.split("=")[0] for word in words if word.startswith("--")}
            assert given <= options_of(verbs()[words[0]]), words
    every = set().union(*map(options_of, [_parser(), *verbs().values()]))
    for text in code(page.read_text()):
        if text.startswith("--"):
            assert text.split()[0] in every, text
    for words in commands(page, "python -m"):
        module = CHECKOUT / words[0].replace(".", "/")
        assert module.with_suffix(".py").exists() or (module / "__main__.py").exists(), words


@every_page
def test_whole_commands_are_parsed(page: Path) -> None:
    """Those in shell blocks are meant to be copied, so they must have every argument that they need."""
    for block in fenced(page.read_text(), "sh"):
        for line in block.splitlines():
            words = shlex.split(line.removeprefix(".venv/bin/"), comments=True)
            if words[:3] == ["python", "-m", "tasks"]:
                _parser().parse_args(words[3:])


def test_a_wrong_command_would_be_found() -> None:
    with pytest.raises(SystemExit):
        _parser().parse_args(["epsilon", "--no-such-option"])
    assert "refit" not in verbs()
    assert "--refit" in options_of(verbs()["prepare"])


@every_page
def test_paths_exist(page: Path) -> None:
    for text in code(page.read_text()):
        if re.fullmatch(r"[\w./-]+", text) and (text.split("/")[0] in TOP if "/" in text else "." in text[1:]):
            if "/" in text:
                assert (CHECKOUT / text).exists(), text
            elif text.startswith(("requirements", "pipelines", "pyproject")):
                assert text in TOP, text


@every_page
def test_settings_in_yaml_are_valid(page: Path, tmp_path: Path) -> None:
    """Blocks of YAML are sections under ``datasets``."""
    for block in fenced(page.read_text(), "yaml"):
        shipped = (CHECKOUT / "pipelines.yaml").read_text()
        path = tmp_path / "pipelines.yaml"
        path.write_text(shipped.replace("datasets:\n", f"datasets:\n{block}\n", 1))
        name = block.split(":")[0].strip()
        dataset = load_config(path).dataset(name)
        assert dataset.labels
        assert "raw" in dataset.model_fields_set


def keys(model: type[BaseModel], seen: set[type] | None = None) -> set[str]:
    """Every key that a section may have, with those of its sections."""
    seen = set() if seen is None else seen
    seen.add(model)
    found = {field.alias or name for name, field in model.model_fields.items()}
    for field in model.model_fields.values():
        for part in parts_of(field.annotation):
            if isinstance(part, type) and issubclass(part, BaseModel) and part not in seen:
                found |= keys(part, seen)
    return found


def parts_of(annotation: Any) -> Iterator[Any]:
    yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


@pytest.mark.parametrize("page", [DOCS / "settings.md", DOCS / "logs.md"], ids=lambda path: path.name)
def test_keys_in_tables_are_keys_of_the_configuration(page: Path, config: Config) -> None:
    known = keys(Config) | {*config.datasets, *config.profiles, "threshold", "hash", "private"}
    rows = [row[0] for row in table_rows(page.read_text())]
    named = {name.split(":")[0] for first in rows for name in code(first)}
    assert len(named) > 8
    assert named <= known, named - known


def test_the_pipelines_in_the_readme_are_all_of_them(config: Config) -> None:
    rows = [row for row in table_rows(PAGES[0].read_text()) if re.match("Table|Figure", row[1])]
    named = [row[0].strip("`") for row in rows]
    assert named == list(config.pipelines)
    for row in rows:
        title = config.pipelines[row[0].strip("`")].title
        assert all(part in title for part in row[1].split(", ")), row


def test_the_datasets_in_the_docs_are_described(config: Config) -> None:
    rows = [row for row in table_rows((DOCS / "logs.md").read_text()) if row[0].startswith("`criteo")]
    assert [row[0].strip("`") for row in rows] == [name for name in config.datasets if name.startswith("criteo")]


def results(page: Path) -> list[list[str]]:
    return [row for row in table_rows(page.read_text()) if "±" in "".join(row) and len(row) == 7]


def test_the_table_is_the_same_everywhere(config: Config) -> None:
    rows = results(PAGES[0])
    assert tuple(float(row[0]) for row in rows) == config.grids("relative_loss", "quick").epsilons
    assert rows == results(DOCS / "results.md")


def test_the_picture_shows_the_numbers_of_the_table() -> None:
    picture = (DOCS / "relative_loss.svg").read_text()
    for row in results(PAGES[0]):
        tasks = ("pCTR", "pCVR", "pConvs")
        for task, ours, theirs in zip(tasks, row[1::2], row[2::2], strict=True):
            assert f"{task}, ε = {row[0]}: {ours.split(' ±')[0]} %" in picture
            assert f"{task}, paper&#x27;s recipe, ε = {row[0]}: {theirs.split(' ±')[0]} %" in picture


def kept_walk(name: str) -> dict[str, Any]:
    return json.loads((DOCS / name).read_text())


def test_the_walk_in_the_docs_is_of_this_code() -> None:
    kept = kept_walk("walk.json")
    assert list(kept["steps"]) == ["prepare", "plan", "train", "audit", "report"]
    for modules in kept["steps"].values():
        for module in modules:
            assert (CHECKOUT / module.replace(".", "/")).with_suffix(".py").exists(), f"{module}: run `make walk` again"
    assert draw(Walk(kept["steps"], {}, {})) == (DOCS / "walk.svg").read_text()


def test_no_module_is_entered_again_without_need() -> None:
    kept = kept_walk("walk.json")
    assert kept["without_need"] == {}
    assert Walk(kept["steps"], {}, {}).without_need == {}


def test_the_numbers_of_the_walk_are_those_of_the_traces() -> None:
    text = (DOCS / "walk.md").read_text()
    rows = [row for row in table_rows(text) if len(row) == 3 and row[1].isdigit()]
    before, after = kept_walk("walk_before.json"), kept_walk("walk.json")
    expected = [
        [str(value(kept)) for kept in (before, after)]
        for value in (
            lambda kept: kept["modules"],
            lambda kept: kept["services"],
            lambda kept: len(kept["entered_again"]),
            lambda kept: len(kept["without_need"]),
            lambda kept: len(kept["shared_in_a_step"]),
            lambda kept: kept["reads"]["record.json"],
            lambda kept: kept["reads"]["schema.json"],
            lambda kept: kept["reads"]["pipelines.yaml"],
        )
    ]
    assert [row[1:] for row in rows] == expected


def test_the_reasons_of_the_walk_are_in_the_docs() -> None:
    rows = [row for row in table_rows((DOCS / "walk.md").read_text()) if row[0].startswith(("`tasks", "`dp_core"))]
    told = {
        name.removesuffix(".py").strip("/").replace("/", "."): row[1].replace(",", "")
        for row in rows
        for name in code(row[0])
    }
    assert told == {name: need.steps for name, need in NEEDED.items()}
