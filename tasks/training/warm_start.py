"""Warm start: a training whose initial parameters are those that another trial released.

What a guaranteed model releases may be used for anything, so starting from it costs the examples of this training
nothing beyond its own noisy sums. An example that both trainings saw is covered by the two guarantees composed. A model
without a guarantee must not be started from: its parameters may hold examples that no noise of this training hides,
and ε would be void. So training refuses it before the first step, and the audit looks again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from dp_core.models.digest import parameters_digest
from tasks.data.prepared import Prepared
from tasks.privacy.guarantees import no_guarantee
from tasks.runtime.errors import UserError
from tasks.runtime.home import read_json
from tasks.training.finished import FinishedTrial, flat_parameters
from tasks.training.trial import Trial


class Start(NamedTuple):
    """The model that a trial names as its start, as it is on disk.

    Attributes:
        name: Its public name, for the statement.
        digest: ``parameters_digest`` of its released parameters.
        refused: Why a training must not start from it, as the end of a sentence; None if it may.
        spent: ε and δ of it and of all models that it follows from, added up; None if one of them is gone.
    """

    name: str
    digest: str
    refused: str | None
    spent: tuple[float, float] | None


def start_of(trial: Trial) -> Start | None:
    """Returns the model that a trial started from, read from its folder for the audit; None without a warm start."""
    if trial.start_from is None:
        return None
    try:
        finished = FinishedTrial.open(trial.start_from)
        digest = parameters_digest(finished.read_parameters())
        return Start(finished.public_name, digest, _refused(trial, finished), _spent(trial.start_from))
    except UserError as error:
        return Start("unknown", "", str(error), None)


def _spent(key: str | None) -> tuple[float, float] | None:
    """Returns the sum of the ε and of the δ of a model and of those that it started from, one after the other.

    By basic composition an example that all of them saw has at most that. None if one of them is gone or has no ε.
    """
    epsilon = delta = 0.0
    while key is not None:
        try:
            finished = FinishedTrial.open(key)
        except UserError:
            return None
        own = finished.audit["epsilon"] if finished.is_audited else None
        if own is None:
            return None
        epsilon, delta, key = epsilon + own, delta + finished.trial.target_delta, finished.trial.start_from
    return epsilon, delta


def cannot_start(key: str, prepared: Prepared) -> str | None:
    """Returns why no training on prepared data can start from a trial, as far as is known before; None if one may."""
    try:
        finished = FinishedTrial.open(key)
    except UserError as error:
        return str(error)
    without = no_guarantee(finished)
    return without.why if without is not None else _other_tokens(finished, prepared)


def starting_parameters(trial: Trial, prepared: Prepared, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the released parameters of the trial that ``trial`` starts from, as a tree like ``drawn``.

    Raises:
        UserError: That trial is not finished, has no guarantee, or its parameters do not fit.
    """
    assert trial.start_from is not None
    finished = FinishedTrial.open(trial.start_from)
    why = _refused(trial, finished) or _other_tokens(finished, prepared)
    if why is None:
        found = finished.read_parameters()
        differing = _differences(found, flat_parameters(drawn), finished.trial, trial, prepared)
        if not differing:
            return _like(drawn, found)
        why = f"its parameters do not fit: {'; '.join(differing)}"
    raise UserError(f"{trial.label()} cannot start from trial {trial.start_from} ({finished.trial.label()}): {why}")


def _refused(trial: Trial, finished: FinishedTrial) -> str | None:
    """Returns why a trial must not start from another one, whatever its shapes."""
    start = finished.trial
    if trial.mechanism != "dp_sgd":
        return "only a training with DP-SGD can start from another model"
    without = no_guarantee(finished)
    if without is not None:
        return f"only a model with a guarantee can be started from, and this has none ({without.kind}): {without.why}"
    if start.mechanism != "dp_sgd":
        return (
            "it protects labels only, and would bring features of its examples that this training promises to protect"
        )
    if start.canaries:
        return "it was trained with canaries, for an audit and not for use"
    if (start.dataset, start.task) != (trial.dataset, trial.task):
        return (
            f"it was trained for {start.task} on dataset {start.dataset!r}, and this is for {trial.task} on "
            f"{trial.dataset!r}: start from a model of the same task and dataset"
        )
    return None


def _other_tokens(finished: FinishedTrial, prepared: Prepared) -> str | None:
    """Returns that token ids mean other tokens now, so that rows of embedding tables would be mixed up, if they may."""
    then, now = finished.record["vocabulary"], prepared.vocabulary
    same_data = finished.trial.data_fingerprint == prepared.fingerprint
    if then["kind"] != now["kind"]:
        return f"its vocabulary is of kind {then['kind']}, and that of the data is of kind {now['kind']}"
    if now["kind"] == "hash" or same_data or then.get("draw", "then") == now.get("draw", "now"):
        return None
    # A vocabulary that is kept gives tokens the ids that they had.
    if now["kind"] == "threshold" and read_json(prepared.path / "schema.json")["vocabulary_kept_from"] is not None:
        return None
    return (
        f"its vocabulary was made from other data, so that tokens had other ids: use `vocabulary: hash` or "
        f"`keep_vocabulary: true` for dataset {prepared.dataset!r}"
    )


def _differences(
    found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray], start: Trial, trial: Trial, prepared: Prepared
) -> list[str]:
    """Returns how released parameters differ from those that a model needs, in the words of the configuration."""
    if start.model != trial.model:
        then, now = (f"{one.label} with hidden layers {list(one.layers)}" for one in (start.model, trial.model))
        return [f"its model is {then}, and this one's is {now}"]
    said = []
    for name in sorted({*found, *wanted}):
        if name not in found or name not in wanted:
            said.append(f"it has {'no' if name in wanted else 'an unknown'} array {name!r}")
        elif found[name].shape != wanted[name].shape:
            said.append(_of_shapes(name, found[name].shape, wanted[name].shape, prepared))
    return said


def _of_shapes(name: str, found: tuple[int, ...], wanted: tuple[int, ...], prepared: Prepared) -> str:
    layer, _, number = name.partition("/")[0].rpartition("_")
    if layer == "embedding" and number.isdigit() and int(number) < len(prepared.categorical_columns):
        column = prepared.categorical_columns[int(number)].name
        if found[0] != wanted[0]:
            return f"the vocabulary of column {column!r} has {found[0]:,} ids in it and {wanted[0]:,} in the data"
        return f"the embedding of column {column!r} has {found[1]} dimensions in it and {wanted[1]} in this model"
    return f"array {name!r} has shape {found} in it and {wanted} in this model"


def _like(tree: Mapping[str, Any], flat: Mapping[str, np.ndarray], prefix: str = "") -> dict[str, Any]:
    return {
        name: _like(value, flat, f"{prefix}{name}/") if isinstance(value, Mapping) else flat[f"{prefix}{name}"]
        for name, value in tree.items()
    }
