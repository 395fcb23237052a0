"""Any value anywhere in the file either loads or is reported as a mistake."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import yaml

from tasks.config.loading import Config, load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tests.fuzzing import fuzz

DATA = yaml.safe_load((CHECKOUT / "pipelines.yaml").read_text(encoding="utf-8"))


def walk(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of a node and of everything below it."""
    yield path
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        yield from walk(child, (*path, name))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.dates(),
    st.binary(max_size=4),
    st.sampled_from([10**30, 10**400, "1e-3", "inf", "pctr", "paper", "sgd", "synthetic_clicks", "label"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCALARS, inner, max_size=3),
    max_leaves=5,
)


class _WithoutAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def check_value(*, path: tuple[Any, ...], value: Any) -> None:
    """Asserts that the file with a value in a place loads, or is refused in words."""
    content = value
    if path:
        content = copy.deepcopy(DATA)
        node = content
        for name in path[:-1]:
            node = node[name]
        node[path[-1]] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my.yaml"
        file.write_text(yaml.dump(content, Dumper=_WithoutAliases, allow_unicode=True), encoding="utf-8")
        check_file(file)


def check_file(file: Path) -> None:
    try:
        told: Config | str = load_config(file)
    except UserError as error:
        told = str(error)
    assert isinstance(told, Config) or "my.yaml" in told


def check_text(*, at: float, size: int, piece: str | bytes) -> None:
    """Asserts the same of the file's text with a piece instead of some of its bytes."""
    content = (CHECKOUT / "pipelines.yaml").read_bytes()
    place = int(at * len(content))
    new = piece.encode("utf-8", "surrogatepass") if isinstance(piece, str) else piece
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "my.yaml"
        file.write_bytes(content[:place] + new + content[place + size :])
        check_file(file)


PLACES = st.sampled_from(sorted(walk(DATA), key=str))
# What breaks parsers of YAML: its signs, tags, anchors and merges, tabs, text that is no UTF-8.
PIECES = st.one_of(
    st.sampled_from(
        [
            *(
                ":",
                ": ",
                "- ",
                "\t",
                "\n",
                "{",
                "}",
                "[",
                "]",
                "&a ",
                "*a",
                "<<: *a",
                "!!python/object:os.system ",
                "!!x ",
            ),
            *(
                "|",
                ">",
                "'",
                '"',
                "#",
                "? ",
                "---\n",
                "...",
                "%YAML 9.9\n",
                "@",
                "`",
                "0o7",
                "1e999",
                "\0",
                "\ufeff",
                "~",
            ),
            *("2023-02-30", "!!binary x", "!!timestamp 2023-13-45", "!!int x", "!!float ''", "&a [*a]", "\ud800"),
        ]
    ),
    st.binary(max_size=8),
    st.text(max_size=8),
)
TEXTS = {"at": st.floats(0, 1), "size": st.integers(0, 60), "piece": PIECES}


@hypothesis.given(path=PLACES, value=VALUES)
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_value_in_any_place_is_fine_or_a_user_error(path: tuple[Any, ...], value: Any) -> None:
    check_value(path=path, value=value)


@hypothesis.given(**TEXTS)
@hypothesis.settings(max_examples=5, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_text_is_fine_or_a_user_error(at: float, size: int, piece: str | bytes) -> None:
    check_text(at=at, size=size, piece=piece)


@pytest.mark.fuzz
def test_values_for_minutes() -> None:
    fuzz(check_value, path=PLACES, value=VALUES)


@pytest.mark.fuzz
def test_texts_for_minutes() -> None:
    fuzz(check_text, **TEXTS)
