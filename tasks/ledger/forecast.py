"""Nights that have not been: what an entry of ``nightly`` would release, and how the budget of each day would fill."""

from __future__ import annotations

import dataclasses
import datetime
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dp_core.clipping.factors import clip_factor
from tasks.config.dataset import Dataset
from tasks.config.nightly import Nightly, TotalBudget
from tasks.ledger.budget import highest_total, moved
from tasks.ledger.composition import epsilon
from tasks.ledger.entries import Entry, charges_by_day, standing_on
from tasks.ledger.release import Release, dp_sgd, gaussian, vocabulary
from tasks.ledger.spent import highest_user_total
from tasks.privacy.best_bands import bands_for
from tasks.privacy.cached_accounting import noise_multiplier_for
from tasks.runtime.errors import UserError

if TYPE_CHECKING:
    from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease

# From the newest day of a night to what it releases.
NightReleases = Callable[[datetime.date], Sequence[Release]]


class PlannedNight(NamedTuple):
    """What a night would release, worked out from settings and the number of examples alone.

    Attributes:
        record: The mechanism of one training, with the noise as it is accounted for.
        trainings: The number of trainings with this mechanism.
        vocabulary: The private vocabulary, if the dataset has one. Its ``draw`` is empty.
        evaluation_noise_multiplier: The noise of the private evaluation on the newest day, if there is one.
    """

    record: MechanismRecord
    trainings: int
    vocabulary: VocabularyRelease | None
    evaluation_noise_multiplier: float | None


class SimulatedNight(NamedTuple):
    """A night that was played.

    Attributes:
        day: The newest day.
        highest_day: The day with the largest ε after the night, or that would have it.
        epsilon: That ε.
        refused: Whether it is above the total, so that the night did not run and spent nothing.
        of_user: Whether the total of one user refused it; then the day and the ε are those of the user.
    """

    day: str
    highest_day: str
    epsilon: float
    refused: bool
    of_user: bool = False


class Simulation(NamedTuple):
    """Nights that were played one after the other, and the ε of each day of the dataset after them."""

    nights: tuple[SimulatedNight, ...]
    days: dict[str, float]

    @property
    def first_refused(self) -> SimulatedNight | None:
        return next((night for night in self.nights if night.refused), None)


def trainings_of(entry: Nightly) -> int:
    """Returns the number of trainings of a night: one for each combination of its settings."""
    grid = entry.dp_sgd
    without_effect = set() if any(clip_factor(name).adaptive for name in grid.clipping) else {"clip_quantile"}
    return math.prod(len(value) for name, value in grid if isinstance(value, tuple) and name not in without_effect)


def planned_night(entry: Nightly, dataset: Dataset, examples: int) -> PlannedNight:
    """Returns what a night would release with ``examples`` examples in its window.

    The trainings and the vocabulary together have the night's ε, at the entry's δ or 1/N.
    """
    from dp_core.accounting.mechanism import MechanismRecord, VocabularyRelease
    from dp_core.epochs import batches_per_epoch, steps_for_epochs
    from dp_core.evaluation.private_comparison import comparison_noise_multiplier
    from dp_core.partition_selection import (
        VOCABULARY_SHARE_OF_DELTA,
        PartitionSelection,
    )
    from dp_core.sampling import make_sampler
    from tasks.data.splits import VALIDATION_SHARE
    from tasks.data.vocabulary import DEFAULT_EPSILON
    from tasks.privacy.label_rate_budget import label_rate_of

    grid, delta = entry.dp_sgd, entry.delta or 1 / examples
    (batch_size,), (epochs,), (sampler,) = grid.batch_size, grid.epochs, grid.sampler
    if batch_size > examples:
        raise UserError(f"a batch of {batch_size:,} is larger than the {examples:,} examples of a window")
    steps = steps_for_epochs(examples=examples, batch_size=batch_size, epochs=epochs, sampler=sampler)
    trainings, chosen = trainings_of(entry), None
    if dataset.vocabulary == "private":
        selection = PartitionSelection.calibrated(
            epsilon=dataset.vocabulary_epsilon or DEFAULT_EPSILON,
            delta=VOCABULARY_SHARE_OF_DELTA / examples,
            columns=len(dataset.categorical_columns),
        )
        chosen = VocabularyRelease(selection.noise_multiplier, selection.delta, "")
    # A night that starts from a champion releases no label rate, so this is the most that one releases.
    rate = label_rate_of(grid, entry.epsilon, delta)
    bands = bands_for(
        grid.bands[0],
        epsilon=entry.epsilon,
        delta=delta,
        examples=examples,
        batch_size=batch_size,
        steps=steps,
        vocabulary=chosen,
        accountant=grid.accountant[0],
        trainings=trainings,
    )
    # Equal trainings together are one that is as many times as long. Samplers that deal epochs deal whole ones, and
    # correlated noise counts whole rounds.
    of_epoch = bands if sampler == "poisson" else int(batches_per_epoch(sampler, examples, batch_size))
    noise_multiplier = noise_multiplier_for(
        epsilon=entry.epsilon,
        delta=delta,
        examples=examples,
        batch_size=batch_size,
        steps=trainings * -(-steps // of_epoch) * of_epoch if trainings > 1 else steps,
        sampler=sampler,
        vocabulary=chosen,
        accountant=grid.accountant[0],
        # n Gaussian releases are one with 1/√n of the noise.
        label_rate_noise_multiplier=None if rate is None else rate / math.sqrt(trainings),
        bands=bands,
    )
    slots = make_sampler(
        sampler, examples=examples, expected_batch_size=batch_size, steps=steps * trainings, target_delta=delta
    ).max_batch_size
    record = MechanismRecord(
        sampler=sampler,
        examples=examples,
        expected_batch_size=batch_size,
        max_batch_size=slots,
        steps=steps,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=1.0,
        vocabulary=chosen,
        label_rate_noise_multiplier=rate,
        bands=bands,
    )
    noise = None
    if entry.evaluation_epsilon is not None:
        # As many rows as a day has for judging, which is what the night's own δ is taken from.
        judged = examples / entry.window_days * (1 - VALIDATION_SHARE)
        noise = comparison_noise_multiplier(epsilon=entry.evaluation_epsilon, delta=1 / judged)
    return PlannedNight(record, trainings, chosen, noise)


def releases_of(entry: Nightly, planned: PlannedNight, budget: str) -> NightReleases:
    """Returns the function from a newest day to what its night would release; ``budget`` is what is charged."""

    def of(day: datetime.date) -> list[Release]:
        before = [day - datetime.timedelta(days=number) for number in range(entry.window_days, 0, -1)]
        window, record = tuple(one.isoformat() for one in before), planned.record
        found = []
        if planned.vocabulary is not None:
            drawn = planned.vocabulary._replace(draw=day.isoformat())
            record = dataclasses.replace(record, vocabulary=drawn)
            found.append(Release("vocabulary", vocabulary(drawn), budget, window))
        found += [Release("model", dp_sgd(record), budget, window)] * planned.trainings
        if planned.evaluation_noise_multiplier is not None:
            compared = gaussian(planned.evaluation_noise_multiplier)
            found.append(Release("metric", compared, budget, (day.isoformat(),)))
        return found

    return of


def repeated(releases: Sequence[Release], newest: datetime.date) -> NightReleases:
    """Returns the function that repeats a night's releases, made with a newest day, on later days."""

    def of(day: datetime.date) -> Sequence[Release]:
        return moved(releases, (day - newest).days)

    return of


def simulate(
    entries: Sequence[Entry],
    releases: NightReleases,
    dataset: str,
    total: TotalBudget,
    first: datetime.date,
    nights: int,
) -> Simulation:
    """Plays nights after what stands in the ledger. A night that would exceed the total is refused and spends nothing.

    Args:
        entries: What stands.
        releases: What the night of a newest day releases.
        dataset: The dataset whose days are shown.
        total: The total.
        first: The newest day of the first night.
        nights: The number of nights.
    """
    standing, played = list(entries), []
    for number in range(nights):
        day = first + datetime.timedelta(days=number)
        made = tuple(releases(day))
        charges = charges_by_day(made)
        near = [entry for entry in standing if not entry.charges.keys().isdisjoint(charges)]
        highest = highest_total(near, charges, total.delta)
        refused = highest.epsilon > total.epsilon
        user = highest_user_total(standing, made, total) if total.user_epsilon is not None and not refused else None
        if user is not None and total.user_epsilon is not None and user.epsilon > total.user_epsilon:
            refused = True
            played.append(SimulatedNight(day.isoformat(), user.first.day, user.epsilon, refused, of_user=True))
        else:
            played.append(SimulatedNight(day.isoformat(), highest.day.day, highest.epsilon, refused))
        if not refused:
            standing.append(Entry(f"night of {day}", "reserved", made, made, total.epsilon, total.delta, "", ""))
    days = sorted({day for entry in standing for day in entry.charges if day.dataset == dataset})
    charged = standing_on(standing, days)
    return Simulation(tuple(played), {day.day: epsilon(charged[day], total.delta) for day in days})


def next_newest(entries: Sequence[Entry], dataset: Dataset, entry: Nightly, budget: str) -> datetime.date:
    """Returns the newest day of the night after the last one in the ledger; of the first possible one if none is."""
    last = max(
        (
            day
            for one in entries
            for release in one.releases
            if release.kind == "model" and release.dataset == budget
            for day in release.days
        ),
        default=None,
    )
    if last is not None:
        # A night trains on the days before its newest, so the last one's newest day is after these.
        return datetime.date.fromisoformat(last) + datetime.timedelta(days=2)
    days = dataset.synthetic.days if dataset.synthetic else None
    start = days.start if days is not None else datetime.date.today() - datetime.timedelta(days=entry.window_days)
    return start + datetime.timedelta(days=entry.window_days)


def forecast(simulation: Simulation, total: TotalBudget) -> str:
    """Returns the sentence that says where the budget goes if nights go on like this."""
    refused = simulation.first_refused
    if refused is not None and refused.of_user:
        return (
            f"At this rate the budget of a user from {refused.highest_day} on is used up on the night of "
            f"{refused.day}, which would be refused: ε = {refused.epsilon:.3g} of {total.user_epsilon:g}."
        )
    if refused is not None:
        return (
            f"At this rate the budget of {refused.highest_day} is used up on the night of {refused.day}, which would "
            f"be refused: ε = {refused.epsilon:.3g} of {total.epsilon:g}."
        )
    largest = max((night.epsilon for night in simulation.nights), default=0.0)
    return f"At this rate no day exceeds ε = {largest:.3g} of {total.epsilon:g}."
