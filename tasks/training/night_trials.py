"""The trainings of one night: all of them together, with the night's private vocabulary, stay within its budget.

The trainings of a night are equally private (``tasks.config.nightly`` sees to it), so k of them release what one with
k times as many steps would. Truncating batches and the tails of the noise are charged to δ for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dp_core.clipping.factors import clip_factor
from dp_core.epochs import steps_for_epochs
from tasks.config.grid_settings import Settings, distinct_settings
from tasks.config.loading import Config
from tasks.config.nightly import Nightly
from tasks.data.prepared import Prepared, vocabulary_release
from tasks.privacy.best_bands import bands_for
from tasks.privacy.cached_accounting import epsilon_of, noise_multiplier_for
from tasks.privacy.label_rate_budget import budgeted, label_rate_noise
from tasks.rounds.rates import with_rate
from tasks.runtime.errors import UserError
from tasks.training.enumeration import NOT_APPLICABLE
from tasks.training.model_size import model_size
from tasks.training.trial import Trial

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import MechanismRecord

# With truncation's share of δ for each training, this many leave 90 % of δ for everything else.
MOST_TRAININGS = 100
# What rounding to float32 can take off the noise, and off the parts that it is split into.
_ROUNDING = 1e-6
# ε of the same mechanism can come out slightly different where time decides how far it is refined.
_OWN_EPSILON_MARGIN = 2e-3


def night_trials(config: Config, nightly_name: str, prepared: Prepared, start_from: str | None = None) -> list[Trial]:
    """Returns the trainings of a night on its prepared window, in the order of the grid.

    All of them together, and the private vocabulary of the data if it has one, have at most the entry's ε at its δ
    (or 1/N, if that is smaller). A trial's own ``epsilon`` is what it costs alone, which is less if there are several.

    Args:
        config: The configuration.
        nightly_name: The entry of ``nightly``.
        prepared: The prepared window, whose training split has N rows.
        start_from: The key of the finished trial whose parameters all trainings start from, if any.

    Raises:
        UserError: There is no such entry, a batch is larger than the training split, or the budget leaves nothing
            for training.
    """
    entry = config.night(nightly_name)
    profile, examples = config.profile(entry.profile), prepared.splits["train"]["rows"]
    every = _night_settings(entry, profile.hidden_layers, warm=start_from is not None)
    # A trial with a δ above 1/N fails its audit.
    delta = min(entry.delta or 1.0, 1 / examples)
    _check(entry, nightly_name, prepared, delta, len(every))
    bands = _bands(entry, nightly_name, every[0], prepared, delta, trainings=len(every))
    every = [{**settings, "bands": bands} for settings in every]
    noise_multiplier = _noise_multiplier(entry, every[0], prepared, delta, trainings=len(every))
    trials = [
        _night_trial(
            prepared,
            {
                **NOT_APPLICABLE,
                "task": entry.task,
                "dataset": prepared.dataset,
                "data_fingerprint": prepared.fingerprint,
                "evaluations": profile.evaluations,
                **settings,
                "mechanism": "dp_sgd",
                "epsilon": entry.epsilon,
                "target_delta": delta,
                "noise_multiplier": noise_multiplier,
                "canaries": 0,
                "randomness": "secret",
                "seed": 0,
                "start_from": start_from,
            },
        )
        for settings in every
    ]
    if len(trials) == 1:
        return trials
    return [trial.model_copy(update={"epsilon": _own_epsilon(trial, prepared, entry.epsilon)}) for trial in trials]


def _night_trial(prepared: Prepared, values: Settings) -> Trial:
    return with_rate(Trial.model_validate(values), prepared)


def _night_settings(entry: Nightly, hidden_layers: Sequence[int], *, warm: bool) -> list[Settings]:
    """Returns the settings of a night's trainings.

    A model that starts from another one has learnt the label rate: nothing is released for its initial bias.
    """
    found: list[Settings] = []
    for settings in distinct_settings(entry.dp_sgd, hidden_layers):
        one = budgeted({**settings, "initial_bias": "zero"} if warm else settings, entry.epsilon)
        found += [one] if one not in found else []
    return found


def planned_records(trials: Sequence[Trial], prepared: Prepared) -> list[MechanismRecord]:
    """Returns for each trial a record that costs at least as much as the one that its training will write.

    They differ in rounding only: the noise is that of the training as a float32 number, or the next smaller one.
    """
    return [_planned(trial, prepared) for trial in trials]


def _planned(trial: Trial, prepared: Prepared) -> MechanismRecord:
    from dp_core.accounting.mechanism import ALONE, MechanismRecord, proven_sensitivity
    from dp_core.accounting.noise_split import split_noise
    from dp_core.sampling import make_sampler

    examples = prepared.splits["train"]["rows"] + trial.canaries
    steps = steps_for_epochs(examples=examples, batch_size=trial.batch_size, epochs=trial.epochs, sampler=trial.sampler)
    sampler = make_sampler(
        trial.sampler,
        examples=examples,
        expected_batch_size=trial.batch_size,
        steps=steps,
        target_delta=trial.target_delta,
        bands=trial.bands,
    )
    assert trial.noise_multiplier is not None
    assert trial.clipping is not None
    of_gradient, of_count = trial.noise_multiplier, None
    if clip_factor(trial.clipping).adaptive:
        of_gradient, of_count = split_noise(trial.noise_multiplier)
    return MechanismRecord(
        sampler=trial.sampler,
        examples=examples,
        expected_batch_size=trial.batch_size,
        max_batch_size=sampler.max_batch_size,
        steps=steps,
        noise_multiplier=_rounded_down(of_gradient),
        l2_clip_norm=float(np.float32(trial.l2_clip_norm)),
        clipping=trial.clipping,
        count_noise_multiplier=None if of_count is None else _rounded_down(of_count),
        microbatch_size=trial.microbatch_size,
        sensitivity=ALONE if trial.sensitivity == "paper" else proven_sensitivity(trial.microbatch_size),
        vocabulary=vocabulary_release(prepared),
        label_rate_noise_multiplier=label_rate_noise(trial.initial_bias_epsilon, trial.target_delta),
        coordinates=model_size(trial.model, prepared),
        bands=trial.bands,
    )


def _rounded_down(value: float) -> float:
    """Returns the float32 number before the nearest one, which is below the value however it is rounded."""
    return float(np.nextafter(np.float32(value), np.float32(0)))


def _noise_multiplier(entry: Nightly, settings: Settings, prepared: Prepared, delta: float, *, trainings: int) -> float:
    """Returns the noise of every training, a float32 number; the settings that it depends on are the same for all."""
    batches = {
        "examples": prepared.splits["train"]["rows"],
        "batch_size": settings["batch_size"],
        "sampler": settings["sampler"],
    }
    enough = noise_multiplier_for(
        epsilon=entry.epsilon,
        delta=delta,
        steps=steps_for_epochs(**batches, epochs=settings["epochs"]),
        vocabulary=vocabulary_release(prepared),
        accountant=settings["accountant"],
        trainings=trainings,
        label_rate_noise_multiplier=label_rate_noise(settings["initial_bias_epsilon"], delta),
        bands=settings["bands"],
        **batches,
    )
    return float(np.float32(enough * (1 + _ROUNDING)))


def _bands(entry: Nightly, name: str, settings: Settings, prepared: Prepared, delta: float, *, trainings: int) -> int:
    """Returns the number of bands of every training: as given, or the best one for ``auto``."""
    batches = {"examples": prepared.splits["train"]["rows"], "batch_size": settings["batch_size"]}
    steps = steps_for_epochs(**batches, epochs=settings["epochs"])
    bands = bands_for(
        settings["bands"],
        epsilon=entry.epsilon,
        delta=delta,
        steps=steps,
        vocabulary=vocabulary_release(prepared),
        accountant=settings["accountant"],
        trainings=trainings,
        **batches,
    )
    most = min(steps, batches["examples"] // batches["batch_size"])
    if bands > most:
        raise UserError(
            f"nightly.{name}.dp_sgd.bands: noise cannot be correlated over {bands:,} steps here: an epoch of the "
            f"window has {most:,} batches; give {most:,} at most, or `auto`"
        )
    return bands


def _own_epsilon(trial: Trial, prepared: Prepared, most: float) -> float:
    """Returns the budget that one training of several keeps by itself, rounded up to three digits."""
    alone = epsilon_of(_planned(trial, prepared), trial.target_delta).epsilon * (1 + _OWN_EPSILON_MARGIN)
    digit = 10.0 ** (int(np.floor(np.log10(alone))) - 2)
    return min(most, float(f"{np.ceil(alone / digit) * digit:.10g}"))


def _check(entry: Nightly, name: str, prepared: Prepared, delta: float, trainings: int) -> None:
    """Raises ``UserError`` if the window has too few rows, or the budget leaves nothing for training."""
    path, examples = f"nightly.{name}", prepared.splits["train"]["rows"]
    for batch_size in entry.dp_sgd.batch_size:
        if batch_size > examples:
            raise UserError(
                f"{path}.dp_sgd.batch_size: a batch of {batch_size:,} is larger than the {examples:,} training "
                "examples of the window: lower it, or lengthen window_days"
            )
    vocabulary = vocabulary_release(prepared)
    if vocabulary is not None and prepared.vocabulary["epsilon"] >= entry.epsilon:
        raise UserError(
            f"{path}.epsilon: the private vocabulary's {prepared.vocabulary['epsilon']:g} leaves nothing for training "
            f"of a budget of {entry.epsilon:g}: lower datasets.{entry.dataset}.vocabulary_epsilon, or raise the budget"
        )
    if vocabulary is not None and vocabulary.delta > delta / 2:
        raise UserError(
            f"{path}.delta: the private vocabulary uses up {vocabulary.delta:.2g}, which leaves too little of a "
            f"night's δ = {delta:.2g} for training: raise it to {10 * vocabulary.delta:.2g}, or leave it out for 1/N"
        )
    if trainings > MOST_TRAININGS:
        raise UserError(
            f"{path}.dp_sgd has {trainings:,} combinations of settings, and the budget of a night is shared by all of "
            f"them: leave {MOST_TRAININGS} at most"
        )
