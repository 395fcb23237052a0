"""The prepared data of a night: the days of the window to train on, the newest day to judge on.

| split | rows |
|---|---|
| train | all rows of the window's days that are there |
| validation | the first tenth of the newest day, in time |
| test | the rest of the newest day |

A row belongs to the day of its file. The folder is like every other prepared one, so that training, audits and data
cards need not know about nights. Only days that no earlier night parsed are parsed; all rows of the window are encoded
again, because that takes about as long as copying them would.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dp_core.models.spec import MLPSpec
from tasks.config.dataset import TASK_TITLES
from tasks.config.loading import Config
from tasks.data.preparation import prepare_files
from tasks.data.prepared import Prepared, open_prepared
from tasks.data.schema import NightFacts
from tasks.data.splits import FEWEST_ROWS, NewestDay
from tasks.data.vocabulary import vocabulary_rule
from tasks.days.data_checks import night_days
from tasks.days.delivered import Survey
from tasks.days.deliveries import record_use
from tasks.days.night_vocabulary import NightVocabulary
from tasks.reporting.data_card import write_data_card
from tasks.runtime.errors import UserError


@dataclass(frozen=True)
class PreparedWindow:
    """The prepared data of a night.

    Attributes:
        path: The prepared folder.
        fingerprint: That of the folder.
        day: The newest day.
        window: The days of the window that are in it.
        left_out: The days of the window that are not, each with the reason.
        rows: For each day of the window and the newest one, its number of rows.
        contents: The same for the digests of their contents.
        vocabulary_days: The days that the vocabulary was made from; empty if it uses no data.
        vocabulary_is_reused: Whether an earlier night made the vocabulary.
    """

    path: Path
    fingerprint: str
    day: str
    window: tuple[str, ...]
    left_out: dict[str, str]
    rows: dict[str, int]
    contents: dict[str, str]
    vocabulary_days: tuple[str, ...]
    vocabulary_is_reused: bool

    @property
    def examples(self) -> int:
        """The number of training examples."""
        return sum(self.rows[day] for day in self.window)


def prepare_window(
    config: Config, entry: str, day: str, *, found: Survey | None = None, refit: bool = False
) -> PreparedWindow:
    """Prepares the data of a night, unless the same days with the same contents were prepared before.

    Args:
        config: The configuration.
        entry: The name of the nightly entry.
        day: The newest day.
        found: The days as ``night_days`` found them; by default it looks now.
        refit: Whether a dataset that keeps its vocabulary gets a new one.

    Raises:
        UserError: The newest day cannot be used, no day of the window can, or there are too few rows to judge on.
    """
    nightly = config.night(entry)
    name, dataset = nightly.dataset, config.dataset(nightly.dataset)
    found = found or night_days(config, entry, day)
    if found.newest.state != "delivered":
        raise UserError(found.newest.sentence)
    if not found.present:
        reasons = "; ".join(found.left_out.values())
        raise UserError(f"there is no day to train on before {day}: {reasons}")
    states = [*found.present, found.newest]
    night: NightFacts = {
        "day": day,
        "days": {state.day: {"rows": state.rows, "contents": state.contents} for state in states},
        "left_out": found.left_out,
    }
    rule = vocabulary_rule(dataset, config.profile(nightly.profile).min_count)
    keeper = NightVocabulary(
        name,
        dataset,
        rule,
        day=day,
        window=[(state.day, state.contents) for state in found.present],
        examples=sum(state.rows for state in found.present),
        refit=refit,
    )
    path = prepare_files(
        name,
        # The data checks decide how many bad rows a night may have.
        dataset.model_copy(update={"tolerated_bad_rows": 1.0}),
        [file for state in states for file in state.files],
        rule,
        keeper,
        NewestDay(night, files=len(found.newest.files)),
    )
    prepared = open_prepared(path)
    models = {profile: MLPSpec(hidden_layers=of.hidden_layers) for profile, of in config.profiles.items()}
    write_data_card(prepared, prepared.data_card, models=models)
    _check_labels(prepared, nightly.task, day)
    contents = {state.day: state.contents for state in states}
    record_use(name, contents, f"night {day} of {entry}")
    return PreparedWindow(
        path=path,
        fingerprint=prepared.fingerprint,
        day=day,
        window=tuple(state.day for state in found.present),
        left_out=found.left_out,
        rows={state.day: state.rows for state in states},
        contents=contents,
        vocabulary_days=() if rule["kind"] == "hash" else tuple(keeper.days),
        vocabulary_is_reused=keeper.is_reused,
    )


def _check_labels(prepared: Prepared, task: str, day: str) -> None:
    """Refuses a newest day whose splits cannot judge a model."""
    title = {str(name): title for name, title in TASK_TITLES.items()}[task]
    for split in ("validation", "test"):
        rows = prepared.splits[split]["rows"]
        if rows < FEWEST_ROWS:
            raise UserError(f"the {split} split of {day} has {rows} rows; judging needs at least {FEWEST_ROWS}")
        positive = int(prepared.statistics["by_split"][split][f"label_{task}"][1])
        if not positive or (positive == rows and prepared.tasks[task] != "count"):
            raise UserError(
                f"the {split} split of {day} has {rows:,} rows, all {'with' if positive else 'without'} a positive "
                f"label for {title}: no model can be judged on them"
            )
