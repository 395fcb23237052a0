"""Which of our source files an accounting answer depends on.

They are all modules of ``dp_core/accounting/`` and every module of ours that these load, directly or through
others. The files are parsed, not imported: a cached answer must not have to load an accountant.
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

from tasks.runtime.home import CHECKOUT

ACCOUNTING = "dp_core.accounting"
OURS = ("dp_core", "tasks")


@functools.cache
def accounting_sources(checkout: Path = CHECKOUT) -> dict[str, Path]:
    """Returns the source file of every module that importing all of ``dp_core.accounting`` loads, by module name.

    Imports inside functions and under ``if TYPE_CHECKING`` do not count. Packages count as their ``__init__.py``.
    """
    found: dict[str, Path] = {}
    waiting = [_module_name(path, checkout) for path in (checkout / ACCOUNTING.replace(".", "/")).rglob("*.py")]
    while waiting:
        name = waiting.pop()
        path = _source(name, checkout)
        if name in found or path is None:
            continue
        found[name] = path
        # Importing a module runs the packages around it first.
        waiting.append(name.rpartition(".")[0])
        imports = _LoadTimeImports()
        imports.visit(ast.parse(path.read_text(encoding="utf-8")))
        waiting += imports.names
    return dict(sorted(found.items()))


def _module_name(path: Path, checkout: Path) -> str:
    parts = path.relative_to(checkout).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _source(name: str, checkout: Path) -> Path | None:
    """Returns the file of a module of ours; None for other modules and for names that are not modules."""
    if name.partition(".")[0] not in OURS:
        return None
    stem = checkout.joinpath(*name.split("."))
    return next((path for path in (stem.with_suffix(".py"), stem / "__init__.py") if path.exists()), None)


class _LoadTimeImports(ast.NodeVisitor):
    """Collects the names that loading a module imports, whether they turn out to be modules or not."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_Import(self, node: ast.Import) -> None:
        self.names += [alias.name for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.names += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Skips the body, which runs later if at all."""

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        """Skips the body, which runs later if at all."""

    def visit_If(self, node: ast.If) -> None:
        for statement in node.orelse if ast.unparse(node.test).endswith("TYPE_CHECKING") else node.body + node.orelse:
            self.visit(statement)
