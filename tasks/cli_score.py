"""The verbs of released models: ``register`` and ``score``."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from tasks.cli_arguments import Answer, add_verb
from tasks.config.selection import as_list
from tasks.runtime.errors import UserError


def add_verbs(verbs: Any) -> None:
    """Adds the verbs to the command line's parser."""
    verb = add_verb(
        verbs,
        "register",
        register,
        "log the model of an audited trial to MLflow and register it under a name",
    )
    verb.add_argument("trial", help="key of an audited trial with `randomness: secret`: its folder's name in trials/")
    verb.add_argument("--name", required=True, help="name of the registered model")
    verb.add_argument("--champion", action="store_true", help="also point the alias `champion` to the new version")
    verb = add_verb(verbs, "score", score, "predict for every row of a log with a released model")
    verb.add_argument(
        "--model", required=True, metavar="MODEL", help="NAME@champion, NAME/3, models:/…, runs:/…, or a folder"
    )
    verb.add_argument(
        "--input", required=True, nargs="+", metavar="FILES", help="files, folders or quoted patterns of a log"
    )
    verb.add_argument("--output", required=True, metavar="FILE", help="file to write: .parquet or .csv")
    verb.add_argument(
        "--columns",
        type=as_list,
        metavar="COLUMN,…",
        help="columns of text without a header, in order (default: those of the model's description)",
    )


def register(options: Namespace) -> Answer:
    from tasks.config.loading import load_config

    config = load_config()
    from tasks.nights.budgets import charged_budget, raw_files
    from tasks.serving.guard import require_guarantee
    from tasks.serving.packaging import find_prepared, find_run, log_model
    from tasks.serving.registry import register, set_champion
    from tasks.training.finished import FinishedTrial

    if options.name in config.nightly:
        raise UserError(
            f"{options.name} is an entry of `nightly`: its versions come from its nights, which charge them to the "
            "ledger. Register this model under another name"
        )
    finished = FinishedTrial.open(options.trial)
    trial = finished.trial
    _check_not_charged(trial.dataset, charged_budget(config, trial.dataset))
    require_guarantee(finished)
    prepared = find_prepared(trial)
    _check_not_charged(trial.dataset, charged_budget(config, trial.dataset, raw_files(prepared)))
    uri = log_model(finished, prepared, config.dataset(trial.dataset), mlflow_run=find_run(trial))
    version = register(uri, options.name, {"task": trial.task, "epsilon": f"{finished.audit['epsilon']:g}"})
    if options.champion:
        set_champion(options.name, version)
    text = f"{options.name}/{version}{', the champion' if options.champion else ''}: {uri}"
    return Answer({"name": options.name, "version": version, "model": uri, "champion": options.champion}, text)


def _check_not_charged(dataset: str, budget: str | None) -> None:
    if budget is not None:
        whose = "" if budget == dataset else f" that of {budget},"
        raise UserError(
            f"{dataset} has a budget in the ledger,{whose} to which a model that is registered by hand would not be "
            "charged. Its models are registered by the nights of an entry of `nightly`"
        )


def score(options: Namespace) -> Answer:
    from tasks.config.loading import load_config

    load_config()  # imports the plug-ins, which may have registered the log's format
    from tasks.serving.released import ReleasedModel
    from tasks.serving.scoring import score

    model = ReleasedModel.load(_folder(options.model))
    done = score(model, options.input, Path(options.output).expanduser(), columns=options.columns)
    parts = [f"{done['rows']:,} rows in {done['seconds']:.1f} s, {done['rows_per_second']:,.0f} rows/s"]
    parts += [f"{done['bad_rows']:,} bad rows in {done['quarantine']}"] if done["bad_rows"] else []
    parts += [f"{done['left_out']:,} rows left out by `keep_rows`"] if done["left_out"] else []
    return Answer(done, f"{done['output']}: {'; '.join(parts)}")


def _folder(reference: str) -> Path:
    folder = Path(reference).expanduser()
    if folder.is_dir():
        return folder
    # Imported only here: MLflow takes seconds, and a folder needs none.
    from tasks.serving.registry import local_model

    return local_model(reference)
