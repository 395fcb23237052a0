"""A small sweep of the tiny dataset, as text of a configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest

CONFIG = """
datasets:
  tiny_clicks:
    format: parquet
    raw: clicks.parquet
    time_column: time
    integer_columns: [price]
    categorical_columns: [color]
    labels: {pcvr: {column: conversions, kind: any}}
profiles:
  tiny: {synthetic_rows: 3000, min_count: 5, hidden_layers: [8]}
pipelines:
  sweep:
    title: A sweep
    datasets: {pcvr: tiny_clicks}
    grids:
      tiny:
        epsilons: [4]
        seeds: 2
        search: random
        tasks:
          pcvr:
            non_private: {optimizer: yogi, learning_rate: 0.01, batch_size: 100, epochs: 1}
            dp_sgd: {optimizer: sgd, learning_rate: [0.1, 0.3, 1.0], batch_size: 100, epochs: 2, l2_clip_norm: [1, 3]}
"""
ALL = CONFIG.replace("        search: random\n", "")
BESIDE = ("    title: A sweep\n", "    title: A sweep\n    exhibit: label_dp\n    columns: [response, debias]\n")
LABEL_DP = """\
            label_dp: {optimizer: yogi, learning_rate: [0.01, 0.03], batch_size: 100, epochs: 1, response: binary, debias: [true, false]}
"""  # noqa: E501
BOTH = ALL.replace(*BESIDE) + LABEL_DP
TWO_RECIPES = ("    title: A sweep\n", "    title: A sweep\n    exhibit: relative_loss\n")
# C = 3 at the rate 0.1 is a setting of dp_sgd too.
PAPER_RECIPE = """\
            paper_recipe: {optimizer: sgd, learning_rate: 0.1, batch_size: 100, epochs: 2, l2_clip_norm: [3, 9]}
"""


def use(config: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the text the configuration in force."""
    (folder / "my.yaml").write_text(config)
    monkeypatch.setenv("DP_ADS_CONFIG", str(folder / "my.yaml"))
