"""Plants bugs: changes the source of a function of ours, wherever it is used, for the time of a test."""

from __future__ import annotations

import importlib
import inspect
import sys
import textwrap
from typing import Any

import pytest

from dp_core.audit import lazy_noise, step_oracle
from dp_core.clipping.factors import CLIP_FACTORS
from dp_core.clipping.layers import RULES
from dp_core.training.optimizers import OPTIMIZERS
from dp_core.training.step import make_trainer
from tasks.training import evidence

OURS = ("dp_core", "tasks")


def plant(patch: pytest.MonkeyPatch, where: str, old: str, new: str) -> None:
    """Replaces a piece of a function's source by another.

    Args:
        patch: Undoes it.
        where: ``module:function`` or ``module:Class.method``.
        old: The piece, which must occur once.
        new: What to put there.
    """
    module_name, _, path = where.partition(":")
    module = importlib.import_module(module_name)
    owner_name, _, name = path.rpartition(".")
    owner: Any = getattr(module, owner_name) if owner_name else module
    function = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{where} has {source.count(old)} times {old!r}"
    made: dict[str, Any] = {}
    exec(compile(source.replace(old, new), f"<planted in {where}>", "exec"), module.__dict__, made)
    if owner_name:
        patch.setattr(owner, name, made[name])
        return
    for other in [one for key, one in sys.modules.items() if key.split(".")[0] in OURS]:
        for attribute, value in list(vars(other).items()):
            if value is function:
                patch.setattr(other, attribute, made[name])
    for registry in (RULES, CLIP_FACTORS, OPTIMIZERS):
        for key, entry in list(registry.items()):
            fields = [made[name] if part is function else part for part in entry] if isinstance(entry, tuple) else entry
            changed = made[name] if entry is function else type(entry)(*fields) if isinstance(entry, tuple) else entry
            patch.setitem(registry, key, changed)  # type: ignore[arg-type, index]


def forget_programs() -> None:
    """Forgets the compiled trainers, so that no test runs a program of another's code."""
    make_trainer.cache_clear()
    step_oracle._gradients.cache_clear()
    evidence._thoroughly_probed.clear()
    lazy_noise.draw_noise.clear_cache()
    lazy_noise.draw_count.clear_cache()
