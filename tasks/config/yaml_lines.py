"""Reads YAML together with the line of each key, so that a mistake is reported with its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import yaml

# Line, counted from 1, and column.
Mark = tuple[int, int]
KeyPath = tuple[str, ...]
# The key path of a mistake, and what is wrong.
Problem = tuple[tuple[Any, ...], str]

_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, Mark], list[Problem]]:
    """Returns a document's value, the position of each key, and a problem for each duplicate key.

    Args:
        text: The document.
        name: Name of the file, for error messages.

    Raises:
        yaml.YAMLError: The text is not YAML.
        RecursionError: It is nested too deeply, or contains itself.
    """
    loader = _Loader(text)
    loader.name = name
    try:
        root = loader.get_single_node()
        if root is None:
            return None, {}, []
        # Before the value is constructed, since that moves merged keys.
        marks, duplicates = dict(_key_marks(root, ())), list(_duplicate_keys(root, ()))
        return (
            loader.construct_document(root),
            marks | dict(duplicates),
            [(key, "duplicate key") for key, _ in duplicates],
        )
    finally:
        loader.dispose()


def listed(name: str, marks: dict[KeyPath, Mark], problems: Iterable[Problem]) -> str:
    """Formats problems as one line each, in the order of the file. Reports what several aliases share once."""
    lines: dict[tuple[Mark, KeyPath, str], str] = {}
    for key, text in problems:
        names = tuple(str(part) for part in key)
        depth = next((n for n in range(len(names), 0, -1) if names[:n] in marks), 0)
        # A single value was read as a list of one: the file has no index 0.
        if names[depth:] == ("0",):
            names = names[:depth]
        mark = marks.get(names[:depth], (0, 0))
        lines.setdefault((mark, names[depth:], text), f"{'.'.join(names)}: " if names else "")
    return "\n".join(
        f"{name}{f':{line}' if line else ''}: {key}{text}" for ((line, _), _, text), key in sorted(lines.items())
    )


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, with a line number in the errors for values like 2023-13-45 or ``!!int x``."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
            if isinstance(value, int):
                str(value)  # Python refuses to print integers of thousands of digits; fail here, with a line number.
        except (ValueError, LookupError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(None, None, f"invalid value: {error}", node.start_mark) from None
        return value


def _mark(node: yaml.Node) -> Mark:
    return node.start_mark.line + 1, node.start_mark.column


def _key_marks(node: yaml.Node, key: KeyPath) -> Iterator[tuple[KeyPath, Mark]]:
    if isinstance(node, yaml.MappingNode):
        # Merged keys (<<) first, since the mapping's own keys override them.
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
