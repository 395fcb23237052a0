"""A small configuration file, and helpers that put mistakes into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.config.loading import Config, load_config
from tasks.runtime.errors import UserError

# Has every kind of section, and is short enough to count its lines.
SMALL = """\
datasets:
  logs:
    synthetic: {kind: display}
    format: tsv
    columns: [click, n, c]
    integer_columns: [n]
    categorical_columns: [c]
    labels: {pctr: {column: click, kind: binary}}
profiles:
  tiny:
    synthetic_rows: 1000
    min_count: 2
    hidden_layers: [4, 4]
pipelines:
  sweep:
    title: A sweep
    datasets: {pctr: logs}
    grids:
      tiny:
        epsilons: [1, 10]
        seeds: 1
        tasks:
          pctr:
            non_private: {optimizer: yogi, learning_rate: 0.01, batch_size: 64, epochs: 1}
            dp_sgd:
              optimizer: sgd
              learning_rate: 0.1
              batch_size: 128
              epochs: 2
              l2_clip_norm: [1, 4]
"""
GRID = "pipelines.sweep.grids.tiny"
DP_SGD = f"{GRID}.tasks.pctr.dp_sgd"

Load = Callable[[str], Config]


def loader(folder: Path) -> Load:
    """Returns a function that writes a text to a file in the folder and loads it."""

    def write_and_load(text: str) -> Config:
        path = folder / "my.yaml"
        path.write_text(text, encoding="utf-8")
        return load_config(path)

    return write_and_load


def edit(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{old!r} must be there once"
    return text.replace(old, new)


def line_of(text: str, part: str) -> int:
    assert text.count(part) == 1, f"{part!r} must be there once"
    return text[: text.index(part)].count("\n") + 1


def mistakes(load: Load, text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        load(text)
    return str(caught.value).splitlines()
