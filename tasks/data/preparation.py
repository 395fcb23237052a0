"""Raw logs to encoded arrays: chronological split, log transform, vocabulary, encoding.

Every raw file is parsed once, block by block (``tasks.parts``). Then the training part of every block is counted into
the vocabulary, if that is made from counts, and every block's rows are encoded and written to their places in the
order of time. Blocks run in parallel under Dask; memory holds the blocks in flight and the vocabulary. The result does
not depend on how files were cut into blocks or on who worked on them; a private vocabulary's noise is drawn anew each
time.
"""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import dask
import numpy as np

from tasks.chronology import cut_after, time_at
from tasks.descriptions import SPLIT_FRACTIONS, Dataset
from tasks.earlier_rows import find_earlier_rows
from tasks.encode import encode_rows
from tasks.encoded import Layout, fingerprint
from tasks.errors import UserError
from tasks.home import home, read_json, short_hash, whole_directory, write_json
from tasks.kept_vocabulary import KeptVocabulary
from tasks.parallel import Phase, cluster
from tasks.parsed_blocks import ParsedBlock
from tasks.parts import NOT_IN_KEY, Part, parse_files
from tasks.progress import say
from tasks.quality import check_alike, check_bad_rows, check_time_order, check_time_unit, time_text, write_quarantine
from tasks.raw_files import RawFile, find_files
from tasks.statistics import ROWS_OF_A_DIGEST, by_split, digest_range, label_sums_by_position
from tasks.token_counts import chosen_tokens
from tasks.vocabulary import Selection, Vocabulary, chosen, hashed, kept, vocabulary_rule

# Raise it when prepared folders of an earlier version must not be used any more.
PREPARE_VERSION = 3

_SPLITS = tuple(SPLIT_FRACTIONS)
_FEWEST_ROWS = 10
# What the arrays do not depend on, and what the key has as the vocabulary's rule, with its defaults filled in. A claim
# to be in order is not among it: it must be looked into.
_NOT_IN_KEY = NOT_IN_KEY - {"in_time_order"}


def prepare(
    name: str,
    dataset: Dataset,
    raw: Path | str | Sequence[Path | str],
    *,
    min_count: int,
    block_bytes: int = 32 << 20,
    refit: bool = False,
) -> Path:
    """The folder of the dataset's encoded arrays, made now unless the same raw files were prepared before.

    A token belongs to a column's vocabulary if its count in the training part, for a private vocabulary its noisy
    count, is at least ``min_count``. A hashed one has a place for every token. ``refit`` makes a new vocabulary where
    the dataset would keep an earlier one.
    """
    files = find_files([raw] if isinstance(raw, Path | str) else raw)
    described, rule = dataset.model_dump(mode="json", exclude=_NOT_IN_KEY), vocabulary_rule(dataset, min_count)
    keeper = KeptVocabulary(name, dataset, rule, files, refit=refit)
    identity = [(str(file.path), file.size, file.modified) for file in files]
    final = home() / "data" / name / short_hash([PREPARE_VERSION, described, rule, identity, keeper.fitted_on])
    if final.is_dir():
        if _too_many_bad_rows(final, dataset):
            check_bad_rows(dataset, parse_files(name, dataset, files, block_bytes=block_bytes))
        keeper.save(final)
        say(f"{name}: already prepared in {final}")
        return final
    what = files[0].path if len(files) == 1 else f"{len(files)} files from {files[0].path}"
    say(f"{name}: preparing {what} ({sum(file.size for file in files) / 1e6:,.1f} MB)")
    try:
        with cluster():
            parts = parse_files(name, dataset, files, block_bytes=block_bytes)
            with whole_directory(final) as folder:
                stable = rule["kind"] == "hash" or keeper.fitted_on is not None
                encoding = short_hash([PREPARE_VERSION, described, rule, keeper.fitted_on]) if stable else None
                schema = _Preparation(name, dataset, parts, folder, rule, keeper, encoding).run()
                schema["ceiling"] = _ceiling(files[0])
                write_json(folder / "schema.json", schema)
                keeper.save(folder)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UserError(f"no space left on the disk of {home()} while preparing {name}") from None
        raise
    rows = ", ".join(f"{schema['splits'][split]['rows']:,} {split}" for split in _SPLITS)
    say(f"{name}: prepared in {final} ({rows} rows)")
    return final


class _Boundaries(NamedTuple):
    """The rows of each split in each block, and the times that divide them, if there are times."""

    cuts: list[np.ndarray]
    times: tuple[float, float] | None

    def sizes(self) -> list[int]:
        edges = [0, *(int(cut.sum()) for cut in self.cuts)]
        return [after - before for before, after in itertools.pairwise(edges)]


@dataclass(frozen=True)
class _Preparation:
    """The work between parsed files and the schema of a prepared folder."""

    name: str
    dataset: Dataset
    parts: list[Part]
    folder: Path
    rule: dict[str, Any]
    keeper: KeptVocabulary
    # Names what the ids follow from, if that is not the rows at hand: then those of earlier rows are the same.
    encoding: str | None

    def run(self) -> dict[str, Any]:
        """Writes everything but the schema, which it returns."""
        check_alike(self.parts)
        bad_rows = check_bad_rows(self.dataset, self.parts)
        check_time_unit(self.parts)
        if self.dataset.in_time_order and self.dataset.time_column:
            check_time_order(self.parts)
        rows = sum(block.rows for block in self.blocks)
        if rows < _FEWEST_ROWS:
            raise UserError(f"{self._source} has {rows} rows; {_FEWEST_ROWS} are the fewest that can be split")
        self.scratch.mkdir()
        boundaries = self._boundaries(rows)
        self.keeper.check(boundaries.sizes()[0])
        vocabulary = self._vocabulary(boundaries)
        layout = Layout(
            self.folder,
            tuple(zip(_SPLITS, boundaries.sizes(), strict=True)),
            len(self.dataset.integer_columns),
            len(self.dataset.categorical_columns),
            tuple(self.dataset.labels),
        )
        earlier = find_earlier_rows(self.name, self.dataset, self.parts, self.encoding)
        days = encode_rows(self.parts, vocabulary.encoder, layout, earlier=earlier, scratch=self.scratch)
        if bad_rows:
            write_quarantine(self.parts, self.folder / "quarantine.csv")
            say(f"{self.name}: {bad_rows.total():,} unreadable rows are in quarantine.csv")
        shutil.rmtree(self.scratch)
        return self._schema(layout, boundaries, vocabulary, days, bad_rows)

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @cached_property
    def blocks(self) -> list[ParsedBlock]:
        return [block for part in self.parts for block in part.blocks()]

    @cached_property
    def times(self) -> list[np.ndarray]:
        """Of each block, mapped into memory."""
        return [block.times() for block in self.blocks]

    @property
    def time_unit(self) -> str:
        return self.parts[0].summary["time_unit"]

    @property
    def _source(self) -> str:
        more = f" with {len(self.parts) - 1} more files" if len(self.parts) > 1 else ""
        return self.parts[0].summary["source"] + more

    def _boundaries(self, rows: int) -> _Boundaries:
        """All rows of one moment fall on one side of a boundary, so equal times never straddle it."""
        shares = itertools.accumulate(SPLIT_FRACTIONS.values())
        last = [int(share * rows) for share in itertools.islice(shares, 2)]
        sizes = np.array([block.rows for block in self.blocks])
        if not self.dataset.time_column:
            starts = np.cumsum(sizes) - sizes
            return _Boundaries([*(np.clip(rank - starts, 0, sizes) for rank in last), sizes], None)
        moments = [time_at(self.times, rank - 1) for rank in last]
        boundaries = _Boundaries(
            [*(cut_after(self.times, moment) for moment in moments), sizes], (moments[0], moments[1])
        )
        totals = boundaries.sizes()
        for split, total in zip(_SPLITS, totals, strict=True):
            if not total:
                raise UserError(
                    f"{self._source}: the {split} part would be empty, because too many rows have the same value of "
                    f"{self.dataset.time_column!r} (the 80/10/10 split gives {totals[0]}, {totals[1]} and "
                    f"{totals[2]} rows, and rows of one time stay together); use a finer time or remove "
                    "`time_column` to split by file order"
                )
        return boundaries

    def _vocabulary(self, boundaries: _Boundaries) -> Vocabulary:
        columns = self.dataset.categorical_columns
        if self.rule["kind"] == "hash":
            return hashed(self.rule, columns, self.folder)
        if self.keeper.file is not None:
            return kept(self.keeper.description, columns, self.keeper.file, self.folder)
        phase, examples = Phase("vocabulary"), boundaries.sizes()[0]
        selection = Selection.of(self.rule, len(columns), examples)
        tables = chosen_tokens(self.blocks, boundaries.cuts[0].tolist(), selection, phase=phase, scratch=self.scratch)
        vocabulary = chosen(selection.description, columns, tables, self.folder)
        phase.done(examples)
        return vocabulary

    def _schema(
        self,
        layout: Layout,
        boundaries: _Boundaries,
        vocabulary: Vocabulary,
        days: dict[int, list[float]],
        bad_rows: dict[str, int],
    ) -> dict[str, Any]:
        phase = Phase("check")
        ranges = layout.ranges(ROWS_OF_A_DIGEST)
        found = phase.compute(
            [dask.delayed(digest_range)(layout, first, last) for _, first, last in ranges],
            [last - first for _, first, last in ranges],
        )
        phase.done(layout.rows)
        tasks, columns = list(self.dataset.labels), [*self.dataset.integer_columns, *self.dataset.categorical_columns]
        missing = {column: sum(part.summary["missing"].get(column, 0) for part in self.parts) for column in columns}
        meaning = {
            "tasks": {task: label.kind for task, label in self.dataset.labels.items()},
            "integer_columns": list(self.dataset.integer_columns),
            **vocabulary.meaning(),
            **({"vocabulary_kept": True} if self.keeper.origin is not None else {}),
        }
        return {
            "dataset": self.name,
            **meaning,
            "vocabulary": vocabulary.description,
            "vocabulary_kept_from": self.keeper.origin,
            "splits": self._describe_splits(layout, boundaries),
            # The last moments of the training and of the validation part.
            "boundaries": boundaries.times and {"unit": self.time_unit, "times": list(boundaries.times)},
            "split_by": "timestamp" if self.dataset.time_column else "file order",
            "statistics": {
                "by_split": by_split(layout, [(r[0], result) for r, result in zip(ranges, found, strict=True)]),
                "tasks": tasks,
                "by_day": {str(np.datetime64(day, "D")): row for day, row in days.items()},
                "by_position": [] if self.dataset.time_column else label_sums_by_position(layout),
                "missing": missing,
                "rows": layout.rows,
                "bad_rows": dict(bad_rows),
                "lines": sum(part.summary["lines"] for part in self.parts),
                "window_days": max((events.within_days for events in self.dataset.following), default=None),
            },
            "source": {
                "path": Path(self.parts[0].summary["source"]).name,
                "files": len(self.parts),
                "bytes": sum(part.summary["bytes"] for part in self.parts),
            },
            "encoding": self.encoding,
            "parts": [part.folder.name for part in self.parts],
            "fingerprint": fingerprint(meaning, vocabulary.tokens, [result["digests"] for result in found]),
        }

    def _describe_splits(self, layout: Layout, boundaries: _Boundaries) -> dict[str, dict[str, Any]]:
        described: dict[str, dict[str, Any]] = {}
        before = np.zeros(len(self.blocks), int)
        for (split, rows), after in zip(layout.splits, boundaries.cuts, strict=True):
            described[split] = {"rows": rows, "first_time": None, "last_time": None}
            if self.dataset.time_column:
                inside = [i for i in range(len(self.blocks)) if after[i] > before[i]]
                first = min(self.times[i][before[i]] for i in inside)
                last = max(self.times[i][after[i] - 1] for i in inside)
                described[split]["first_time"] = time_text(first, self.time_unit)
                described[split]["last_time"] = time_text(last, self.time_unit)
            before = after
        return described


def _too_many_bad_rows(folder: Path, dataset: Dataset) -> bool:
    """Whether more rows were put aside than are tolerated by now."""
    statistics = read_json(folder / "schema.json")["statistics"]
    return sum(statistics["bad_rows"].values()) > dataset.tolerated_bad_rows * statistics["lines"]


def _ceiling(file: RawFile) -> Any:
    """What the planted model of a synthetic log reaches, if it is one."""
    path = file.path.parent / "ceiling.json"
    if not path.exists():
        return None
    try:
        return read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from None
