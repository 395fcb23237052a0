"""YAML together with the places of its keys, so that a mistake can be shown where it stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

# Line (from 1) and column.
Mark = tuple[int, int]
KeyPath = tuple[str, ...]
# What is wrong, at which key path.
Problem = tuple[tuple[Any, ...], str]

_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, Mark], list[Problem]]:
    """A document's value, where its keys are, and the keys that stand twice (of which YAML takes the last).

    Raises ``yaml.YAMLError``, or ``RecursionError`` for what is nested without end. ``name`` is the
    file's name, for the messages.
    """
    loader = _Loader(text)
    loader.name = name
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}, []
        # Before the value is made, since that puts merged keys in their places.
        marks, duplicates = dict(_key_marks(root, ())), list(_duplicate_keys(root, ()))
        return (
            loader.construct_document(root),
            marks | dict(duplicates),
            [(key, "key given twice") for key, _ in duplicates],
        )
    finally:
        loader.dispose()


def listed(name: str, marks: dict[KeyPath, Mark], problems: Iterable[Problem]) -> str:
    """One line a problem, in the order of the file; what several aliases repeat is told once."""
    told: dict[tuple[Mark, KeyPath, str], str] = {}
    for key, text in problems:
        names = tuple(str(part) for part in key)
        depth = next((n for n in range(len(names), 0, -1) if names[:n] in marks), 0)
        # A single value that stands for a list of one has no number in the file.
        if names[depth:] == ("0",):
            names = names[:depth]
        mark = marks.get(names[:depth], (0, 0))
        told.setdefault((mark, names[depth:], text), ".".join(names) or "the file")
    return "\n".join(
        f"{name}{f':{line}' if line else ''}: {key}: {text}" for ((line, _), _, text), key in sorted(told.items())
    )


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, but a value like 2023-13-45 or ``!!int x`` is an error that has a place."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # Python refuses this for thousands of digits, also those written in hexadecimal.
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(None, None, f"not a value: {error}", node.start_mark) from None
        return value


def _mark(node: yaml.Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column


def _key_marks(node: yaml.Node, key: KeyPath) -> Iterator[tuple[KeyPath, Mark]]:
    if isinstance(node, yaml.MappingNode):
        # What is merged (<<) comes first, since a mapping's own keys replace it.
        for name, value in sorted(node.value, key=lambda pair: pair[0].tag != _MERGE):
            if name.tag == _MERGE:
                for merged in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    yield from _key_marks(merged, key)
            else:
                path = (*key, str(name.value))
                yield path, _mark(name)
                yield from _key_marks(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield (*key, str(index)), _mark(value)
            yield from _key_marks(value, (*key, str(index)))


def _duplicate_keys(node: yaml.Node, key: KeyPath) -> Iterator[tuple[KeyPath, Mark]]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for name, value in node.value:
            path = (*key, str(name.value))
            if path[-1] in seen:
                yield path, _mark(name)
            seen.add(path[-1])
            yield from _duplicate_keys(value, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _duplicate_keys(value, (*key, str(index)))
