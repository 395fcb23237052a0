"""What a night releases, for the ledger: its models, a vocabulary that it fitted, and a private evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dp_core.accounting.mechanism import MechanismRecord
from tasks.config.loading import load_config
from tasks.config.nightly import Nightly
from tasks.data.prepared import Prepared, vocabulary_release
from tasks.ledger.book import Ledger, Release
from tasks.nights.record import Night, dag_id
from tasks.privacy.cached_accounting import epsilon_of
from tasks.training.finished import FinishedTrial
from tasks.training.night_trials import planned_records
from tasks.training.trial import Trial


class NightEpsilon(NamedTuple):
    """ε of everything that a night released about an example of its window, and the δ of that guarantee."""

    epsilon: float
    delta: float


def planned_releases(night: Night, trials: Sequence[Trial], prepared: Prepared) -> list[Release]:
    """Returns what a night is going to release: at least as costly as what it will have released."""
    return _releases(night, planned_records(trials, prepared), prepared)


def actual_releases(night: Night, finished: Sequence[FinishedTrial], prepared: Prepared) -> list[Release]:
    """Returns what a night released, from the records of its trainings."""
    records = [one.mechanism for one in finished]
    return _releases(night, [record for record in records if isinstance(record, MechanismRecord)], prepared)


def night_epsilon(finished: Sequence[FinishedTrial]) -> NightEpsilon:
    """Returns ε of all trainings of a night together: validation chose one of them, so all of them count."""
    records = [one.mechanism for one in finished]
    # Every trial of a night has the night's δ, and their noise is for all of them together.
    delta = finished[0].trial.target_delta
    return NightEpsilon(epsilon_of([one for one in records if isinstance(one, MechanismRecord)], delta).epsilon, delta)


def budget_left(nightly: Nightly) -> float | None:
    """Returns what is left of the total ε on the day that has spent the most; None if nothing was spent."""
    spent = Ledger.open().spent(load_config().budget_name(nightly.dataset), nightly.total, users=False)
    return nightly.total.epsilon - max(day.epsilon for day in spent.values()) if spent else None


def uncharged_vocabulary_days(night: Night, prepared: Prepared) -> list[str]:
    """Returns the days that a night's private vocabulary was made from, unless another night was charged for the draw.

    A kept vocabulary may be that of a night that was refused, stopped or given back: then no one was charged, and the
    first night that releases it is. A reservation does not count, because it may be given back yet.
    """
    vocabulary, made_from = vocabulary_release(prepared), set(night["vocabulary_days"])
    if vocabulary is None:
        return []
    config, run = load_config(), _run(night)
    budget = config.budget_name(config.night(night["name"]).dataset)
    charged = [
        release
        for entry in Ledger.open().entries()
        for release in entry.releases
        if entry.state == "committed" and release.dataset == budget and release.run != run
    ]
    for release in charged:
        if release.kind == "vocabulary" and release.mechanism["draw"] == vocabulary.draw:
            made_from -= set(release.days)
    return sorted(made_from)


def _run(night: Night) -> str:
    return f"{dag_id(night['name'])} night {night['day']}"


def _releases(night: Night, records: Sequence[MechanismRecord], prepared: Prepared) -> list[Release]:
    config, run = load_config(), _run(night)
    nightly = config.night(night["name"])
    # A day that was left out was not touched: if its data comes later, nothing of it has been released.
    days = tuple(night["window"])
    common: dict[str, Any] = {"dataset": config.budget_name(nightly.dataset), "run": run}
    releases = [
        Release(
            kind="model", mechanism={"mechanism": "dp_sgd", "record": record.to_json()}, days=days, note="", **common
        )
        for record in records
    ]
    vocabulary = vocabulary_release(prepared)
    if vocabulary is not None and night["vocabulary_days"]:
        mechanism = {"mechanism": "vocabulary", **vocabulary._asdict()}
        made_from = tuple(night["vocabulary_days"])
        releases.append(Release(kind="vocabulary", mechanism=mechanism, days=made_from, note="", **common))
    if nightly.private_evaluation:
        from tasks.nights.comparison import evaluation_mechanism

        releases.append(
            Release(
                kind="metric",
                mechanism=evaluation_mechanism(nightly, prepared),
                days=(night["day"],),
                note="comparison of challenger and champion",
                **common,
            )
        )
    return releases
