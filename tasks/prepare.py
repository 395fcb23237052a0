"""The preparation step: from a dataset's name to encoded splits on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.config import Config, load_config
from tasks.data_card import write_data_card
from tasks.encoded import Prepared, open_prepared
from tasks.prepare import prepare
from tasks.selection import select
from tasks.synthetic import generate


def raw_log(config: Config, name: str, profile: str, raw: str | None = None) -> Sequence[str | Path]:
    """The raw log of a dataset: the files that were given, or a synthetic one, made if need be."""
    dataset = config.dataset(name)
    if dataset.synthetic is not None:
        rows = config.profile(profile).synthetic_rows
        return [generate(dataset.synthetic.kind, rows, dataset.synthetic.seed)]
    return [raw] if raw else dataset.raw or ()


def write_card(config: Config, prepared: Prepared) -> Path:
    """The data card in a prepared folder, with the sizes of models under the profiles as they are now."""
    layers = {name: profile.hidden_layers for name, profile in config.profiles.items()}
    return write_data_card(prepared, prepared.path / "data_card.html", hidden_layers=layers)


def prepare_datasets(options: Mapping[str, Any], *, refit: bool = False) -> list[dict[str, str]]:
    """Prepares every dataset that the chosen tasks need; finds what was prepared before.

    ``refit`` is for datasets that keep their vocabulary: it makes a new one.
    """
    config = load_config()
    selection = select(config, options)
    prepared = []
    for name in dict.fromkeys(selection.datasets.values()):
        raw = raw_log(config, name, selection.profile, selection.raw)
        min_count = config.profile(selection.profile).min_count
        path = prepare(name, config.dataset(name), raw, min_count=min_count, refit=refit)
        opened = open_prepared(path)
        card = write_card(config, opened)
        prepared.append({"dataset": name, "path": str(path), "fingerprint": opened.fingerprint, "data_card": str(card)})
    return prepared
