"""The section of ``pipelines.yaml`` that describes a nightly retrain: its data, schedule, settings and budget."""

from __future__ import annotations

import datetime
import re
import zoneinfo
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from tasks.config.dataset import TaskName
from tasks.config.pipeline import SAME_MECHANISM, PrivateGrid
from tasks.config.sections import Finite, OneOrMore, Section, did_you_mean
from tasks.runtime.errors import UserError

# The title of the field for a night's day in the form, by which messages call it.
DAY_FIELD = "Day"
_RANDOM = re.compile(r"(?<![a-z])r(?![a-z])", re.IGNORECASE)
# A share of something.
_Share = Annotated[float, Field(ge=0, le=1)]
# How many times as much: 2 allows from a half to the double.
_Factor = Annotated[float, Field(gt=1, le=1000)]


def _cron(text: str) -> str:
    # Imported here: it takes a tenth of a second, and only nightly entries need it.
    from croniter import CroniterError, croniter

    # croniter would draw a new time for R whenever it is asked.
    if len(text.split()) != 5 or not croniter.is_valid(text) or _RANDOM.search(text):
        raise ValueError(f"{text!r} is not a cron schedule of five fields: use for example '0 3 * * *' for 3:00")
    try:
        croniter(text, datetime.datetime(2026, 1, 1)).get_next()
    except CroniterError:
        raise ValueError(f"{text!r} never comes: there is no such date") from None
    return text


def _time_zone(name: str) -> str:
    known = zoneinfo.available_timezones()
    if name not in known:
        raise ValueError(f"no such time zone: {name!r}{did_you_mean(name, known)}; use for example Europe/Berlin")
    return name


class TotalBudget(Section):
    """What all releases together may tell about one example: no example's total may exceed (``epsilon``, ``delta``).

    Attributes:
        epsilon: The total ε of everything that was released from one day's data.
        delta: The δ of that guarantee.
        user_days: Beside the total of one example, the ledger shows that of a user with examples on this many days
            in a row.
        user_examples: The number of examples that such a user has on each of these days.
        user_epsilon: The total ε of such a user, at the same δ. Without it, that is shown and not limited.
    """

    epsilon: Finite
    delta: Annotated[Finite, Field(lt=1)]
    user_days: Annotated[int, Field(ge=1, le=366)] = 1
    user_examples: Annotated[int, Field(ge=1, le=1000)] = 1
    user_epsilon: Finite | None = None


class ColumnChecks(Section):
    """Limits for one column in place of those for all columns. An ``unseen_tokens`` of 1 is no limit."""

    unseen_tokens: _Share | None = None
    drift: Finite | None = None


class DataChecks(Section):
    """Limits for a new day's data against the days of the window. A breach stops the night before training.

    Attributes:
        bad_rows: The largest share of unreadable rows, of the new day and of each day of the window. For nights, it
            takes the place of the dataset's ``tolerated_bad_rows``.
        other_days: The largest share of rows with a time on another day (UTC) than their file's.
        rows: The largest factor between the number of rows and the usual number, the median of the window's days.
        label_rate: The largest factor between the mean label and that of the window.
        unseen_tokens: The largest share of a column's rows with a token that the window does not have.
        drift: The largest population stability index of a column. 0.1 is a small shift, 0.25 a large one.
        columns: Other limits for single columns.
    """

    bad_rows: _Share = 0.01
    other_days: _Share = 0.01
    rows: _Factor = 2.0
    label_rate: _Factor = 2.0
    unseen_tokens: _Share = 0.3
    drift: Finite = 0.25
    columns: dict[str, ColumnChecks] = Field(default={})


class Alerts(Section):
    """Where messages go when a night needs a person: addresses of e-mail, and the address of a webhook."""

    email: OneOrMore[str] | None = None
    webhook: Annotated[str, Field(pattern=r"^https?://")] | None = None


class Nightly(Section):
    """A model that is trained anew every night on a sliding window of days, and judged on the newest day.

    Attributes:
        dataset: A dataset that comes by days: its ``raw`` has ``{day}``, or it is synthetic with ``days``.
        profile: The profile that sets hidden layers, vocabulary counts and evaluations.
        schedule: A cron schedule of five fields.
        timezone: The time zone of the schedule. A run on one date is the night of the day before.
        wait_hours: How long a night waits for its day's data.
        window_days: The number of days W before the newest that a night trains on.
        epsilon: The budget of one night: of all its trainings together, and of its vocabulary if that is private.
        delta: The δ of a night; by default 1/N, where N is the number of examples in the window.
        dp_sgd: The settings. Where there is a list, validation loss chooses, and every training counts.
        warm_start: Whether training starts from the champion's parameters instead of random ones.
        tolerance: How much larger than the champion's loss the challenger's may be, as a share of it.
        calibration: How far the sum of predictions may be from that of the labels, as a share, before a challenger
            that is worse calibrated than the champion is kept out.
        private_evaluation: Whether champion and challenger are compared through a private release, which is charged.
        evaluation_epsilon: The budget of that release.
        total: What all nights together may spend on one day's data.
        checks: Limits for a new day's data.
        alerts: Who is told when a night needs a person.
    """

    description: str = ""
    dataset: str
    task: TaskName
    profile: str = "quick"
    schedule: Annotated[str, AfterValidator(_cron)]
    timezone: Annotated[str, AfterValidator(_time_zone)] = "UTC"
    wait_hours: Annotated[float, Field(ge=0, le=240)] = 6.0
    window_days: Annotated[int, Field(ge=1, le=366)]
    epsilon: Finite
    delta: Annotated[Finite, Field(lt=1)] | None = None
    dp_sgd: PrivateGrid
    warm_start: bool = False
    tolerance: Annotated[float, Field(ge=0, le=1)] = 0.01
    calibration: Annotated[float, Field(gt=0, le=10)] = 0.2
    private_evaluation: bool = False
    evaluation_epsilon: Finite | None = None
    total: TotalBudget
    checks: DataChecks = DataChecks()
    alerts: Alerts = Alerts()

    @model_validator(mode="after")
    def _agrees(self) -> Nightly:
        for name in SAME_MECHANISM:
            if len(getattr(self.dp_sgd, name)) > 1:
                raise ValueError(
                    f"`dp_sgd.{name}` has several values, but all trainings of a night must be equally private (the "
                    f"same noise, batches and steps), so that they can be added up before training: give one {name}"
                )
        if self.dp_sgd.sensitivity == ("paper",) and self.dp_sgd.microbatch_size != (1,):
            raise ValueError("`sensitivity: paper` proves no ε, so its models cannot be released: leave it out")
        if self.evaluation_epsilon is not None and not self.private_evaluation:
            raise ValueError("`evaluation_epsilon` needs `private_evaluation: true`")
        if self.private_evaluation and self.evaluation_epsilon is None:
            raise ValueError("`private_evaluation` needs its budget, `evaluation_epsilon`, for example 0.1")
        if self.epsilon > self.total.epsilon:
            raise ValueError(
                f"a night's ε of {self.epsilon:g} is more than the total of {self.total.epsilon:g}, so that no night "
                "could ever run"
            )
        return self


def parsed_day(text: str) -> datetime.date | None:
    """Returns the day that a text such as 2026-01-31 names; None if it names none.

    >>> parsed_day("2026-01-31"), parsed_day("31.1.2026"), parsed_day("2026-W01-4")
    (datetime.date(2026, 1, 31), None, None)
    """
    try:
        found = datetime.date.fromisoformat(text)
    except ValueError:
        return None
    # Python also reads weeks, such as 2026-W01-4: a day must have one name only.
    return found if found.isoformat() == text else None


def checked_day(text: object) -> str:
    """Returns a day that a person or an asset event names. Raises ``UserError`` if it is none."""
    day = parsed_day(text) if isinstance(text, str) else None
    if day is None:
        raise UserError(f"{DAY_FIELD}: {text!r} is not a day: write it as 2026-01-31")
    return str(day)
