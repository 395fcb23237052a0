"""Mutants of a source file: one operator, constant, condition or argument is changed, and nothing else.

A mutant is a replacement of a few bytes, at the position that the syntax tree gives. Docstrings, type hints,
decorators, f-strings and everything inside ``raise`` are left alone: no test should have to notice a change there.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator

BINARY: dict[type[ast.operator], tuple[str, str, str]] = {
    ast.Add: ("+", "-", "AddToSub"),
    ast.Sub: ("-", "+", "SubToAdd"),
    ast.Mult: ("*", "/", "MulToDiv"),
    ast.Div: ("/", "*", "DivToMul"),
    ast.Pow: ("**", "*", "PowToMul"),
    ast.BitAnd: ("&", "|", "AndToOr"),
    ast.BitOr: ("|", "&", "OrToAnd"),
    ast.BitXor: ("^", "|", "XorToOr"),
    ast.LShift: ("<<", ">>", "LeftToRight"),
    ast.RShift: (">>", "<<", "RightToLeft"),
}
COMPARISONS: dict[type[ast.cmpop], tuple[str, str, str]] = {
    ast.Lt: ("<", "<=", "LessToLessEqual"),
    ast.LtE: ("<=", "<", "LessEqualToLess"),
    ast.Gt: (">", ">=", "MoreToMoreEqual"),
    ast.GtE: (">=", ">", "MoreEqualToMore"),
    ast.Eq: ("==", "!=", "EqualToUnequal"),
    ast.NotEq: ("!=", "==", "UnequalToEqual"),
}
EXTREMES = {
    "min": ("max", "MinToMax"),
    "max": ("min", "MaxToMin"),
    "minimum": ("maximum", "MinToMax"),
    "maximum": ("minimum", "MaxToMin"),
}
# What an argument is when it does nothing, by its name.
NEUTRAL = {
    "clipping": '"fixed"',
    "count_noise_multiplier": "0.0",
    "entropy": "()",
    "error": "0.0",
    "expected_count": "1.0",
    "group_size": "1",
    "infinity": "0.0",
    "l2_clip_norm": 'float("inf")',
    "learning_rate": "1.0",
    "microbatch_size": "1",
    "microbatches": "None",
    "noise_multiplier": "1.0",
    "quantile": "0.5",
    "relative_error": "0.0",
    "releases": "1",
    "rounding": "0.0",
    "sampling_probability": "1.0",
    "spawn_key": "()",
    "standard_deviation": "None",
    "steps": "1",
}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A change of one place of a file.

    Attributes:
        path: The file, relative to the checkout.
        line: The number of the line in which the change begins.
        operator: The kind of change; the second of its kind in a line has ``.2`` at its end.
        function: The qualified name of the function or class around it; empty at the top of the module.
        text: The line, stripped.
        start: Where the replaced bytes begin.
        end: Where they end.
        replacement: What stands there instead.
    """

    path: str
    line: int
    operator: str
    function: str
    text: str
    start: int
    end: int
    replacement: str

    @property
    def id(self) -> str:
        """The name that reports use, such as ``dp_core/clipping/factors.py:107:MinToMax``."""
        return f"{self.path}:{self.line}:{self.operator}"

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What stays the same when the line moves within its file."""
        return self.path, self.function, self.text, self.operator

    def applied(self, source: bytes) -> bytes:
        """Returns the mutated file."""
        return source[: self.start] + self.replacement.encode() + source[self.end :]


def mutants(path: str, source: bytes) -> list[Mutant]:
    """Returns all mutants of a file, in the order of their places.

    Args:
        path: The file's name, for the ids.
        source: Its contents.

    Returns:
        Mutants, no two of them equal. That they compile is checked when they are chosen.
    """
    tree = ast.parse(source)
    lines = source.decode().splitlines()
    starts = [0, *(found.end() for found in re.finditer(rb"\n", source))]
    made: list[Mutant] = []
    seen: set[tuple[int, int, str]] = set()
    numbers: Counter[tuple[int, str]] = Counter()
    for change in sorted(_Walk(source, starts).changes_of(tree), key=lambda change: (change.start, change.end)):
        place = change.start, change.end, change.replacement
        if place in seen or source[change.start : change.end].decode() == change.replacement:
            continue
        seen.add(place)
        line = source.count(b"\n", 0, change.start) + 1
        numbers[line, change.operator] += 1
        number = numbers[line, change.operator]
        operator = change.operator if number == 1 else f"{change.operator}.{number}"
        made.append(Mutant(path, line, operator, change.function, lines[line - 1].strip(), *place))
    return made


@dataclasses.dataclass(frozen=True)
class _Change:
    operator: str
    start: int
    end: int
    replacement: str
    function: str = ""


class _Walk:
    """Finds the changes of a syntax tree."""

    def __init__(self, source: bytes, starts: list[int]) -> None:
        self.source, self.starts = source, starts

    def changes_of(self, node: ast.AST, function: str = "") -> Iterator[_Change]:
        for change in self._own_changes(node):
            yield dataclasses.replace(change, function=function)
        inside = function
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inside = f"{function}.{node.name}".lstrip(".")
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list") or (name == "args" and isinstance(node, ast.Lambda)):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_left_alone(child):
                    yield from self.changes_of(child, inside)

    def _span(self, node: ast.expr) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self.source[start:end].decode()

    def _between(self, left: ast.expr, right: ast.expr, old: str, new: str, operator: str) -> Iterator[_Change]:
        """Changes the operator between two operands."""
        begin, end = self._span(left)[1], self._span(right)[0]
        between = self.source[begin:end].decode()
        if between.replace(old, "", 1).strip("() \n\\") == "":
            start = begin + between.index(old)
            yield _Change(operator, start, start + len(old), new)

    def _own_changes(self, node: ast.AST) -> Iterator[_Change]:
        match node:
            case ast.BinOp() if type(node.op) in BINARY:
                yield from self._between(node.left, node.right, *BINARY[type(node.op)])
            case ast.AugAssign() if type(node.op) in BINARY:
                old, new, operator = BINARY[type(node.op)]
                yield from self._between(node.target, node.value, f"{old}=", f"{new}=", operator)
            case ast.Compare():
                for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    if type(op) in COMPARISONS:
                        yield from self._between(left, right, *COMPARISONS[type(op)])
            case ast.BoolOp():
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                yield from self._between(node.values[0], node.values[1], old, new, f"{old.title()}To{new.title()}")
            case ast.UnaryOp():
                yield from self._unary(node)
            case ast.Constant():
                yield from self._constant(node)
            case ast.If() | ast.While() | ast.IfExp():
                yield _Change("NegatedCondition", *self._span(node.test), f"(not ({self._text(node.test)}))")
            case ast.Return():
                yield from self._returned(node)
            case ast.Call():
                yield from self._call(node)

    def _unary(self, node: ast.UnaryOp) -> Iterator[_Change]:
        names = {ast.Not: "DroppedNot", ast.Invert: "DroppedInvert", ast.USub: "DroppedMinus"}
        if type(node.op) in names:
            start, operand = self._span(node)[0], self._span(node.operand)[0]
            # Parentheses between the sign and its operand stay.
            kept = "".join(mark for mark in self.source[start:operand].decode() if mark in "()")
            yield _Change(names[type(node.op)], start, operand, kept)

    def _constant(self, node: ast.Constant) -> Iterator[_Change]:
        span, value = self._span(node), node.value
        if isinstance(value, bool):
            yield _Change("FlippedBoolean", *span, str(not value))
        elif isinstance(value, int | float):
            half = value // 2 if isinstance(value, int) else value / 2
            yield _Change("ConstantPlusOne", *span, repr(value + 1))
            yield _Change("ConstantHalved", *span, repr(half))
            yield _Change("ConstantDoubled", *span, repr(2 * value))
            yield _Change("ConstantToZero", *span, repr(type(value)(0)))

    def _returned(self, node: ast.Return) -> Iterator[_Change]:
        if isinstance(node.value, ast.BinOp):
            span = self._span(node.value)
            yield _Change("ReturnedLeft", *span, f"({self._text(node.value.left)})")
            yield _Change("ReturnedRight", *span, f"({self._text(node.value.right)})")
        elif isinstance(node.value, ast.Call) and _name(node.value.func) in EXTREMES and len(node.value.args) == 2:
            span = self._span(node.value)
            yield _Change("ReturnedLeft", *span, f"({self._text(node.value.args[0])})")
            yield _Change("ReturnedRight", *span, f"({self._text(node.value.args[1])})")

    def _call(self, node: ast.Call) -> Iterator[_Change]:
        if _name(node.func) in EXTREMES:
            new, operator = EXTREMES[_name(node.func)]
            end = self._span(node.func)[1]
            yield _Change(operator, end - len(_name(node.func)), end, new)
        for keyword in node.keywords:
            if keyword.arg in NEUTRAL and not isinstance(keyword.value, ast.Constant):
                yield _Change("NeutralArgument", *self._span(keyword.value), NEUTRAL[keyword.arg])


def _name(function: ast.expr) -> str:
    """Returns the last part of a function's name."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _is_left_alone(node: ast.AST) -> bool:
    is_typing = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    return is_typing or isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)
