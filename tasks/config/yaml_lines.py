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

# The shipped file has 3,143 values with each alias written out.
MOST_VALUES = 100_000
_TOO_LARGE = (
    f"with every alias (*name) written out, this has more than {MOST_VALUES:,} values, which is the limit: use fewer "
    "aliases of aliases"
)
_MERGE = "tag:yaml.org,2002:merge"


def read_yaml(text: str, name: str) -> tuple[Any, dict[KeyPath, Mark], list[Problem]]:
    """Returns a document's value, the position of each key, and a problem for each duplicate key.

    A document with more than ``MOST_VALUES`` values, each alias written out, is one problem and has no value: a few
    lines of aliases to aliases can stand for billions of values.

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
        sizes: dict[int, int] = {}
        if _size(root, sizes) > MOST_VALUES:
            key, mark = _largest(root, sizes)
            return None, {key: mark}, [(key, _TOO_LARGE)]
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
        lines.setdefault((mark, names[depth:], text), f"{_printable('.'.join(names))}: " if names else "")
    return "\n".join(
        f"{name}{f':{line}' if line else ''}: {key}{text}" for ((line, _), _, text), key in sorted(lines.items())
    )


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


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


def _parts(node: yaml.Node) -> list[tuple[str, yaml.Node, yaml.Node]]:
    """Returns the parts of a node: the name of each, the node with its position, and its value."""
    if isinstance(node, yaml.MappingNode):
        return [(str(name.value), name, value) for name, value in node.value]
    if isinstance(node, yaml.SequenceNode):
        return [(str(index), value, value) for index, value in enumerate(node.value)]
    return []


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Returns the number of values in a node, each alias written out, and notes it. Visits each node once."""
    if id(node) not in sizes:
        sizes[id(node)] = -1
        sizes[id(node)] = 1 + sum(_size(value, sizes) for _, _, value in _parts(node))
    if sizes[id(node)] < 0:
        raise RecursionError  # it contains itself
    return sizes[id(node)]


def _largest(root: yaml.Node, sizes: dict[int, int]) -> tuple[KeyPath, Mark]:
    """Returns the key path and the position of the innermost value that alone is too large."""
    key: KeyPath = ()
    node, mark = root, _mark(root)
    while True:
        large = next((part for part in _parts(node) if sizes[id(part[2])] > MOST_VALUES), None)
        if large is None:
            return key, mark
        key, mark, node = (*key, large[0]), _mark(large[1]), large[2]


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
