"""Any value anywhere in the file either loads or is reported as a mistake."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import yaml

from tasks.config.loading import Config, load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT

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


@hypothesis.given(path=st.sampled_from(sorted(walk(DATA), key=str)), value=VALUES)
@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_value_in_any_place_is_fine_or_a_user_error(path: tuple[Any, ...], value: Any) -> None:
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
        try:
            told: Config | str = load_config(file)
        except UserError as error:
            told = str(error)
    assert isinstance(told, Config) or told.startswith("my.yaml")
