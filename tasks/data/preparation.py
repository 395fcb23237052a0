"""From raw logs to encoded arrays: chronological split, log transform, vocabulary, encoding.

Every raw file is parsed once, block by block (``parts``). Then the tokens of the training split are counted, if the
vocabulary needs counts, and the rows of every block are encoded and written in chronological order. Blocks run in
parallel under Dask; memory holds the blocks in flight and the vocabulary. The result does not depend on how files are
cut into blocks or on the number of workers, but the noise of a private vocabulary is drawn anew each time.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dask
import numpy as np

from tasks.config.dataset import Dataset
from tasks.data.earlier_rows import find_earlier_rows
from tasks.data.encoding import encode_rows
from tasks.data.kept_vocabulary import KeptVocabulary, VocabularyKeeper
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.parts import BLOCK_BYTES, NOT_IN_KEY, Part, parse_files
from tasks.data.prepared import Layout, check_tokens, fingerprint, open_prepared, read_prepared
from tasks.data.quality import (
    check_bad_rows,
    check_same_columns,
    check_time_order,
    check_time_unit,
    format_time,
    write_quarantine,
)
from tasks.data.schema import Schema, SplitFacts, Statistics, VocabularyFacts
from tasks.data.splits import SPLITS, Boundaries, Chronological, Splitting
from tasks.data.statistics import ROWS_OF_A_DIGEST, counts_by_split, digest_range, label_sums_by_position
from tasks.data.token_counts import select_tokens
from tasks.data.vocabulary import (
    TokenSelection,
    Vocabulary,
    counted_vocabulary,
    hash_vocabulary,
    reused_vocabulary,
    vocabulary_rule,
)
from tasks.integrity.manifest import write_manifest
from tasks.logs.files import RawFile, find_files
from tasks.owners.locks import one_at_a_time
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json, short_hash, whole_directory, write_json
from tasks.runtime.parallel import Phase, cluster
from tasks.runtime.progress import say

# Raise it when prepared folders of an earlier version must no longer be used.
PREPARE_VERSION = 4

# Keys that the arrays do not depend on, and those of the vocabulary, which are in its rule with defaults filled in.
# `in_time_order` stays in the cache key, because the claim must be checked.
_NOT_IN_KEY = NOT_IN_KEY - {"in_time_order"}


def prepare(
    name: str,
    dataset: Dataset,
    raw: Path | str | Sequence[Path | str],
    *,
    min_count: int,
    block_bytes: int = BLOCK_BYTES,
    refit: bool = False,
) -> Path:
    """Prepares a log, unless the same files were prepared before; returns the folder of its encoded arrays.

    Args:
        name: The name of the dataset.
        dataset: Its description.
        raw: Files, folders or patterns.
        min_count: The count in the training split, noisy for a private vocabulary, that a token needs to get an id.
        block_bytes: About how much of a file a task holds in memory.
        refit: Whether to make a new vocabulary where the dataset would keep an earlier one.

    Raises:
        UserError: A file cannot be read, or the log cannot be split.
    """
    files, rule = find_files([raw] if isinstance(raw, Path | str) else raw), vocabulary_rule(dataset, min_count)
    keeper = KeptVocabulary(name, dataset, rule, files, refit=refit)
    return prepare_files(name, dataset, files, rule, keeper, Chronological(), block_bytes=block_bytes)


def prepare_files(
    name: str,
    dataset: Dataset,
    files: Sequence[RawFile],
    rule: VocabularyFacts,
    keeper: VocabularyKeeper,
    splitting: Splitting,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Path:
    """Prepares files, unless the same ones were prepared before; returns the folder of their encoded arrays.

    Args:
        name: The name of the dataset.
        dataset: Its description.
        files: The files, in the order of the groups of ``splitting``.
        rule: The kind of the vocabulary and its parameters (``vocabulary_rule``).
        keeper: Keeps the vocabulary, if the dataset does.
        splitting: Which rows are in which split.
        block_bytes: About how much of a file a task holds in memory.
    """
    description = dataset.model_dump(mode="json", exclude=_NOT_IN_KEY)
    night = splitting.night
    key = [PREPARE_VERSION, description, rule, [file.identity for file in files], keeper.fitted_on]
    final = home() / "data" / name / short_hash([*key, *([night["day"], sorted(night["days"])] if night else [])])
    with one_at_a_time(f"data {final}", f"is preparing {name}"):
        return _prepare(name, dataset, files, rule, keeper, splitting, final, block_bytes=block_bytes)


def _prepare(
    name: str,
    dataset: Dataset,
    files: Sequence[RawFile],
    rule: VocabularyFacts,
    keeper: VocabularyKeeper,
    splitting: Splitting,
    final: Path,
    *,
    block_bytes: int,
) -> Path:
    night = splitting.night
    description = dataset.model_dump(mode="json", exclude=_NOT_IN_KEY)
    if final.exists():
        if _too_many_bad_rows(final, dataset):
            check_bad_rows(dataset, parse_files(name, dataset, files, block_bytes=block_bytes))
        keeper.save(final)
        say(f"{name}: already prepared in {final}")
        return final
    what = files[0].path if len(files) == 1 else f"{len(files)} files from {files[0].path}"
    say(f"{name}: preparing {what} ({sum(file.size for file in files) / 1e6:,.1f} MB)")
    with cluster():
        parts = parse_files(name, dataset, files, block_bytes=block_bytes)
        with whole_directory(final) as folder:
            # Ids that do not depend on the rows of this folder are the same in earlier folders.
            stable = night is None and (rule["kind"] == "hash" or keeper.fitted_on is not None)
            encoding = short_hash([PREPARE_VERSION, description, rule, keeper.fitted_on]) if stable else None
            preparation = _Preparation(name, dataset, parts, folder, rule, keeper, splitting, encoding)
            schema = preparation.run(_ceiling(files[0]))
            write_json(folder / "schema.json", schema)
            written = read_prepared(folder)
            for split in SPLITS:
                check_tokens(written, split)
            write_manifest(folder)
            keeper.save(folder)
    rows = ", ".join(f"{schema['splits'][split]['rows']:,} {split}" for split in SPLITS)
    say(f"{name}: prepared in {final} ({rows} rows)")
    return final


@dataclass(frozen=True)
class _Preparation:
    """Turns parsed files into a prepared folder."""

    name: str
    dataset: Dataset
    parts: list[Part]
    folder: Path
    rule: VocabularyFacts
    keeper: VocabularyKeeper
    splitting: Splitting
    # The cache key of the id assignment; None if ids depend on the rows of this folder.
    encoding: str | None

    def run(self, ceiling: dict[str, Any] | None) -> Schema:
        """Writes everything but the schema, and returns that."""
        check_same_columns(self.parts)
        bad_rows = check_bad_rows(self.dataset, self.parts)
        check_time_unit(self.parts)
        if self.dataset.in_time_order and self.dataset.time_column:
            check_time_order(self.parts)
        boundaries = self.splitting.boundaries(self.parts, self._source)
        self.scratch.mkdir()
        self.keeper.check(boundaries.sizes()[0])
        vocabulary = self._vocabulary(boundaries)
        layout = Layout(
            self.folder,
            tuple(zip(SPLITS, boundaries.sizes(), strict=True)),
            len(self.dataset.integer_columns),
            len(self.dataset.categorical_columns),
            tuple(self.dataset.labels),
        )
        earlier = find_earlier_rows(self.name, self.dataset, self.parts, self.encoding)
        groups = self.splitting.groups(self.parts)
        days = encode_rows(groups, vocabulary.encoder, layout, earlier=earlier, scratch=self.scratch)
        if bad_rows:
            write_quarantine(self.parts, self.folder / "quarantine.csv")
            say(f"{self.name}: {bad_rows.total():,} bad rows are in quarantine.csv")
        shutil.rmtree(self.scratch)
        return {**self._schema(layout, boundaries, vocabulary, days, bad_rows), "ceiling": ceiling}

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @cached_property
    def blocks(self) -> list[ParsedBlock]:
        return [block for part in self.parts for block in part.blocks()]

    @cached_property
    def times(self) -> list[np.ndarray]:
        """The times of each block, memory-mapped."""
        return [block.times() for block in self.blocks]

    @property
    def time_unit(self) -> str:
        return self.parts[0].summary["time_unit"]

    @property
    def _source(self) -> str:
        more = f" with {len(self.parts) - 1} more files" if len(self.parts) > 1 else ""
        return self.parts[0].summary["source"] + more

    def _vocabulary(self, boundaries: Boundaries) -> Vocabulary:
        columns = self.dataset.categorical_columns
        if self.rule["kind"] == "hash":
            return hash_vocabulary(self.rule, columns, self.folder)
        if self.keeper.file is not None:
            return reused_vocabulary(self.keeper.description, columns, self.keeper.file, self.folder)
        phase, examples = Phase("vocabulary"), boundaries.sizes()[0]
        selection = TokenSelection.of(self.rule, len(columns), examples)
        training_rows = boundaries.cuts[0].tolist()
        tables, noise = select_tokens(self.blocks, training_rows, selection, phase=phase, scratch=self.scratch)
        vocabulary = counted_vocabulary(selection.described(noise), columns, tables, self.folder)
        phase.done(examples)
        return vocabulary

    def _schema(
        self,
        layout: Layout,
        boundaries: Boundaries,
        vocabulary: Vocabulary,
        days: dict[int, list[float]],
        bad_rows: dict[str, int],
    ) -> Schema:
        phase = Phase("check")
        ranges = layout.ranges(ROWS_OF_A_DIGEST)
        found = phase.compute(
            [dask.delayed(digest_range)(layout, first, last) for _, first, last in ranges],
            [last - first for _, first, last in ranges],
        )
        phase.done(layout.rows)
        meaning: dict[str, Any] = {
            "tasks": {task: label.kind for task, label in self.dataset.labels.items()},
            "integer_columns": list(self.dataset.integer_columns),
            **vocabulary.meaning(),
            **({"vocabulary_kept": True} if self.keeper.origin is not None else {}),
        }
        by_range = [(split, result) for (split, _, _), result in zip(ranges, found, strict=True)]
        return {
            "dataset": self.name,
            "tasks": meaning["tasks"],
            "integer_columns": meaning["integer_columns"],
            "categorical_columns": vocabulary.column_facts(),
            "vocabulary": vocabulary.description,
            "vocabulary_kept_from": self.keeper.origin,
            "splits": self._split_facts(layout, boundaries),
            "boundaries": boundaries.times and {"unit": self.time_unit, "times": list(boundaries.times)},
            "split_by": self.splitting.split_by(self.dataset),
            "statistics": self._statistics(layout, counts_by_split(layout, by_range), days, bad_rows),
            "source": {
                "path": Path(self.parts[0].summary["source"]).name,
                "files": len(self.parts),
                "bytes": sum(part.summary["bytes"] for part in self.parts),
            },
            "encoding": self.encoding,
            "parts": [part.folder.name for part in self.parts],
            "ceiling": None,
            "night": self.splitting.night,
            "fingerprint": fingerprint(meaning, vocabulary.tokens, [result.digests for result in found]),
        }

    def _statistics(
        self,
        layout: Layout,
        by_split: dict[str, dict[str, list[float]]],
        days: dict[int, list[float]],
        bad_rows: dict[str, int],
    ) -> Statistics:
        columns = [*self.dataset.integer_columns, *self.dataset.categorical_columns]
        return {
            "by_split": by_split,
            "tasks": list(self.dataset.labels),
            "by_day": {str(np.datetime64(day, "D")): row for day, row in days.items()},
            "by_position": [] if self.dataset.time_column else label_sums_by_position(layout),
            "missing": {name: sum(part.summary["missing"].get(name, 0) for part in self.parts) for name in columns},
            "rows": layout.rows,
            "bad_rows": dict(bad_rows),
            "lines": sum(part.summary["lines"] for part in self.parts),
            "window_days": max((events.within_days for events in self.dataset.following), default=None),
        }

    def _split_facts(self, layout: Layout, boundaries: Boundaries) -> dict[str, SplitFacts]:
        facts: dict[str, SplitFacts] = {}
        before = np.zeros(len(self.blocks), int)
        for (split, rows), after in zip(layout.splits, boundaries.cuts, strict=True):
            facts[split] = {"rows": rows, "first_time": None, "last_time": None}
            if self.dataset.time_column:
                inside = [i for i in range(len(self.blocks)) if after[i] > before[i]]
                first = min(self.times[i][before[i]] for i in inside)
                last = max(self.times[i][after[i] - 1] for i in inside)
                facts[split]["first_time"] = format_time(first, self.time_unit)
                facts[split]["last_time"] = format_time(last, self.time_unit)
            before = after
        return facts


def _too_many_bad_rows(folder: Path, dataset: Dataset) -> bool:
    """Whether a prepared folder has more bad rows than the description now tolerates."""
    statistics = open_prepared(folder).statistics
    return sum(statistics["bad_rows"].values()) > dataset.tolerated_bad_rows * statistics["lines"]


def _ceiling(file: RawFile) -> dict[str, Any] | None:
    """Returns the losses of the planted model; None unless the log is synthetic."""
    path = file.path.parent / "ceiling.json"
    if not path.exists():
        return None
    try:
        return read_json(path, alone=True)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error}") from None
