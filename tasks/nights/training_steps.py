"""The steps of a night that train and judge: reserve → train → audit → register → decide."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tasks.config.loading import load_config
from tasks.config.nightly import parsed_day
from tasks.nights.champions import champion_for, history, present, promote
from tasks.nights.deciding import decide as decided
from tasks.nights.record import DECIDED, ChampionOf, Night, NightEnded, end_night, read_night, read_nights
from tasks.nights.steps import ends_the_night
from tasks.runtime.errors import UserError
from tasks.runtime.progress import counted, say

if TYPE_CHECKING:
    from tasks.data.prepared import Prepared


@ends_the_night
def reserve(night: Night) -> Night:
    """Plans the trainings and reserves what they will cost. A night over budget ends here, before training."""
    from tasks.data.prepared import open_prepared
    from tasks.ledger.book import Ledger, OverBudget
    from tasks.nights.kept_heads import check_kept_heads
    from tasks.nights.ledger_key import ledger_key, mark_of
    from tasks.nights.releases import planned_releases, uncharged_vocabulary_days
    from tasks.nights.tracking import start_night_run
    from tasks.training.groups import in_groups
    from tasks.training.items import PlannedTrial
    from tasks.training.night_trials import night_trials
    from tasks.training.sweep_names import varying_settings

    config, name = load_config(), night["name"]
    nightly = config.night(name)
    champion = champion_for(name, night["day"])
    prepared = open_prepared(Path(night["prepared"]))
    start = _start(name, champion, prepared) if nightly.warm_start else None
    try:
        trials = night_trials(config, name, prepared, start_from=start)
    except UserError as error:
        raise NightEnded("stopped", f"night {night['day']} was stopped: {error}. The champion stays") from None
    check_kept_heads(Ledger.open())
    night = {**night, "vocabulary_days": uncharged_vocabulary_days(night, prepared)}
    releases = planned_releases(night, trials, prepared)
    key = ledger_key(night, trials, releases)
    try:
        Ledger.open().reserve(key, releases, nightly.total)
    except OverBudget as error:
        raise NightEnded("refused", f"night {night['day']} is over budget and was not trained: {error}") from None
    parent = start_night_run(night, prepared, varying_settings(trials))
    items: list[PlannedTrial] = [
        {
            "run": str(Path(night["prepared"])),
            "parent": parent,
            "number": number,
            "of": len(trials),
            "name": trial.label(),
            "trial": trial.model_dump(mode="json"),
            "prepared": night["prepared"],
        }
        for number, trial in enumerate(trials, 1)
    ]
    say(f"reserved ε = {nightly.epsilon:g} of night {night['day']} for {counted(len(trials), 'training')}")
    return {
        **night,
        "champion": champion,
        "parent": dict(parent),
        "groups": in_groups(items),
        "ledger_key": key,
        "mark": mark_of(night),
    }


def _start(name: str, champion: ChampionOf | None, prepared: Prepared) -> str | None:
    """Returns the key of the trial that the champion is, to start training from; None if there is none to start from.

    Asked before anything is reserved: a training that cannot start would leave its reservation standing every night.
    """
    from tasks.training.warm_start import cannot_start

    if champion is None:
        return None
    night = read_night(name, champion["day"])
    if night is None or night.get("version") != champion["version"] or "chosen" not in night:
        why: str | None = f"version {champion['version']} has no record of a night here"
    else:
        why = cannot_start(night["chosen"], prepared)
        if why is None:
            return night["chosen"]
    say(f"no warm start from the champion: {why}. Training starts from random parameters")
    return None


@ends_the_night
def train(night: Night) -> Night:
    """Trains every planned trial. One that was interrupted resumes, and a finished one is found."""
    from tasks.nights.ledger_key import check_charged
    from tasks.train import train

    check_charged(night)
    return {**night, "trained": [one for group in night["groups"] for one in train(group) or ()]}


@ends_the_night
def audit(night: Night) -> Night:
    """Audits every training of the night. If one fails, nothing is released, and the reservation is given back."""
    from tasks.audit import audit_group
    from tasks.ledger.book import Ledger
    from tasks.privacy.verdict import AuditFailure

    try:
        audit_group(night["trained"])
    except AuditFailure as failure:
        Ledger.open().give_back(night["ledger_key"], f"the audit failed, and nothing was released: {failure}"[:2000])
        raise NightEnded(
            "failed", f"night {night['day']}: the audit failed, and the champion stays. {failure}"
        ) from None
    return night


@ends_the_night
def register(night: Night) -> Night:
    """Charges the night to the ledger and registers the model that validation chose.

    The ledger comes first: after a crash between the two, something is charged that was not released, never the
    other way round.
    """
    from tasks.data.prepared import open_prepared
    from tasks.ledger.book import Ledger
    from tasks.nights.releases import actual_releases, night_epsilon
    from tasks.serving.packaging import log_model
    from tasks.serving.registry import register
    from tasks.training.finished import FinishedTrial

    config, name, day = load_config(), night["name"], night["day"]
    nightly = config.night(name)
    finished = {one["mlflow_run"]: FinishedTrial.open(one["trial"]) for one in night["trained"]}
    losses = {run: one.record["validation_loss"] for run, one in finished.items()}
    ranked = sorted((loss, run) for run, loss in losses.items() if loss is not None and not finished[run].diverged)
    prepared = open_prepared(Path(night["prepared"]))
    # A training that diverged is charged as planned: that it diverged is known.
    releases = actual_releases(night, list(finished.values()), prepared)
    head = Ledger.open().commit(night["ledger_key"], releases).head
    if not ranked:
        raise NightEnded("failed", f"night {day}: every training diverged, and the champion stays")
    run = ranked[0][1]
    chosen = finished[run]
    bound = night_epsilon(list(finished.values()))
    dataset = config.dataset(nightly.dataset)
    uri = log_model(chosen, prepared, dataset, mlflow_run=run, epsilon_with_choice=bound.epsilon)
    tags = {
        "night": day,
        "window": f"{night['window'][0]} to {night['window'][-1]}",
        "epsilon": f"{bound.epsilon:.4f}",
        "delta": f"{bound.delta:.3g}",
        "ledger_key": night["ledger_key"],
        "ledger_head": str(head),
    }
    version = register(uri, name, tags)
    say(f"registered version {version} of {name}: ε = {bound.epsilon:.3f} at δ = {bound.delta:.3g} for one example")
    return {
        **night,
        "chosen": chosen.trial.key,
        "version": version,
        "epsilon": bound.epsilon,
        "delta": bound.delta,
        "ledger_head": str(head),
    }


@ends_the_night
def decide(night: Night) -> Night:
    """Compares the challenger with the champion on the newest day, and moves the alias if it is good enough."""
    from tasks.nights.comparison import compare_on_newest_day, judged_against
    from tasks.nights.releases import budget_left
    from tasks.nights.tracking import log_night

    config, name, day = load_config(), night["name"], night["day"]
    nightly = config.night(name)
    earlier = read_night(name, day)
    if earlier is not None and earlier["status"] in DECIDED and earlier["version"] != night["version"]:
        say(f"night {day} of {name} was decided by another run since, and stays so: {earlier['sentence']}")
        return {**earlier}
    # The alias may have been moved since the night began.
    champion = judged_against(night)
    night = {**night, "champion": champion}
    found = compare_on_newest_day(config, night)
    decision = decided(nightly, day, None if champion is None else champion["day"], found, first=not history(name))
    overtaken = _overtaken_by(name, day) if decision.promote else None
    sentence, promoted = decision.sentence, decision.promote and overtaken is None
    if overtaken is not None:
        sentence = f"not promoted: night {overtaken} has decided since. Its own decision was: {sentence}"
    if promoted:
        promote(name, night["version"], by="night", reason=sentence)
    compared: Night = {**night, "comparison": dict(found), "won_too_late": overtaken is not None}
    ended = end_night(compared, "promoted" if promoted else "kept", sentence)
    log_night(ended, nightly.task, promoted=promoted, budget_left=budget_left(nightly))
    say(sentence)
    return ended


def _overtaken_by(name: str, day: str) -> str | None:
    """Returns the newest later night that has been decided or is champion; None if there is none."""
    later = [night["day"] for night in read_nights(name) if night["day"] > day and night["status"] in DECIDED]
    champion = present(name)
    if champion is not None and parsed_day(champion["day"]) and champion["day"] > day:
        later.append(champion["day"])
    return max(later, default=None)
