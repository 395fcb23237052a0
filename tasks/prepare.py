"""The prepare step: turns the raw log of each dataset into encoded splits on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dp_core.models.spec import MLPSpec
from tasks.config.dataset import TASK_TITLES, TaskName
from tasks.config.loading import Config, load_config
from tasks.config.selection import select
from tasks.data.preparation import prepare
from tasks.data.prepared import Prepared, open_prepared
from tasks.logs.synthetic import generate
from tasks.reporting.data_card import write_data_card
from tasks.runtime.errors import UserError
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

    Raises:
        UserError: A log cannot be prepared, or a split of it has too few labels of a kind to train or test with.
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
        if config.grids(selection.pipeline, selection.profile).trains:
            _check_classes(opened, [task for task, dataset in selection.datasets.items() if dataset == name])
        # Also where the data was prepared before: the profiles, and with them the sizes of models, may have changed.
        card = write_data_card(opened, opened.data_card, models=models)
        prepared.append({"dataset": name, "path": str(path), "fingerprint": opened.fingerprint, "data_card": str(card)})
    return prepared


def _check_classes(prepared: Prepared, tasks: Sequence[TaskName]) -> None:
    """Raises ``UserError`` if a split has one class only, or the training split no event to count.

    Nothing is learnt from such a training split, and the AUC of such a validation or test split does not exist.
    """
    problems = []
    for task in tasks:
        for split, facts in prepared.splits.items():
            _, positive = prepared.statistics["by_split"][split][f"label_{task}"]
            rows, is_count = facts["rows"], prepared.tasks[task] == "count"
            if (positive == 0 and not (is_count and split != "train")) or (positive == rows and not is_count):
                only = "0" if positive == 0 else "1"
                problems.append(
                    f"{prepared.dataset}: all {rows:,} rows of the {split} split have the label {only} for "
                    f"{TASK_TITLES[task]}, so that a model can be neither trained nor tested. "
                    "Splits follow each other in time: use a longer log, or check the description of the label"
                )
    if problems:
        raise UserError("\n".join(problems))
