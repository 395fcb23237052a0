"""Copies the code that a released model needs into it, under a name of its own.

A model must load where this checkout is not, beside a module of the user's that may be called ``tasks`` too, and
beside a model that another version of this code made. So the modules that the entry module imports are copied, and
their package is named by a digest of their text. Their imports are changed accordingly.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

from tasks.runtime.home import CHECKOUT

ENTRY = "tasks.serving.pyfunc"
_OURS = ("tasks", "dp_core")
_IMPORT = re.compile(rf"^(\s*)from ({'|'.join(_OURS)})\.", re.MULTILINE)


def vendor_code(folder: Path) -> str:
    """Copies the entry module and all modules of ours that it imports into a folder.

    Returns the name of the module that MLflow must load, importable with the folder on the Python path.
    """
    sources = _closure(ENTRY)
    text = "".join(f"{name}\n{source}\n" for name, source in sorted(sources.items()))
    package = f"private_ad_model_{hashlib.blake2b(text.encode(), digest_size=6).hexdigest()}"
    root = folder / package
    for name, source in sources.items():
        path = root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_IMPORT.sub(rf"\1from {package}.\2.", source), encoding="utf-8")
    for inside in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        (inside / "__init__.py").write_text('"""Code of a released model."""\n', encoding="utf-8")
    return f"{package}.{ENTRY}"


def _closure(entry: str) -> dict[str, str]:
    """Returns the text of a module and of every module of ours that it imports, by name."""
    found: dict[str, str] = {}
    left = [entry]
    while left:
        name = left.pop()
        if name not in found:
            found[name] = CHECKOUT.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")
            left += _imported(name, found[name])
    return found


def _imported(name: str, source: str) -> list[str]:
    imported = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in _OURS:
            imported.append(node.module)
        elif isinstance(node, ast.Import) and any(alias.name.split(".")[0] in _OURS for alias in node.names):
            raise ValueError(f"{name} has `import` of a module of ours; the copy needs `from … import …`")
    return imported
