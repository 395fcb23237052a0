"""The prepare step: turns the raw log of each dataset into encoded splits on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dp_core.models.spec import MLPSpec
from tasks.config.loading import Config, load_config
from tasks.config.selection import select
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.logs.synthetic import generate
from tasks.reporting.data_card import write_data_card
from tasks.training.items import PreparedDataset


def raw_log(config: Config, name: str, profile: str, raw: str | None = None) -> Sequence[str | Path]:
    """Returns the raw log of a dataset: ``raw`` if given, else the files in its description, or a generated log."""
    dataset = config.dataset(name)
    if dataset.synthetic is not None:
        rows = config.profile(profile).synthetic_rows
        return [generate(dataset.synthetic.kind, rows, dataset.synthetic.seed, dataset.synthetic.tails)]
    return [raw] if raw else dataset.raw or ()


def prepare_datasets(options: Mapping[str, Any], *, refit: bool = False) -> list[PreparedDataset]:
    """Prepares every dataset that the selected tasks need, unless it was prepared before.

    Args:
        options: The options of a run (see ``tasks.config.selection``).
        refit: Whether datasets that keep their vocabulary get a new one.
    """
    config = load_config()
    selection = select(config, options)
    models = {name: MLPSpec(hidden_layers=profile.hidden_layers) for name, profile in config.profiles.items()}
    prepared: list[PreparedDataset] = []
    for name in dict.fromkeys(selection.datasets.values()):
        raw = raw_log(config, name, selection.profile, selection.raw)
        min_count = config.profile(selection.profile).min_count
        path = prepare(name, config.dataset(name), raw, min_count=min_count, refit=refit)
        opened = open_prepared(path)
        # Also where the data was prepared before: the profiles, and with them the sizes of models, may have changed.
        card = write_data_card(opened, opened.data_card, models=models)
        prepared.append({"dataset": name, "path": str(path), "fingerprint": opened.fingerprint, "data_card": str(card)})
    return prepared
