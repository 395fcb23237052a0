"""Token counts equal those of a Counter for any blocks and portions."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.config.dataset import Dataset
from tasks.data import token_counts
from tasks.data.parsed_blocks import ParsedBlock
from tasks.data.token_counts import select_tokens
from tasks.data.vocabulary import TokenSelection
from tasks.runtime.parallel import Phase

DATASET = Dataset.model_validate(
    {
        "format": "parquet",
        "categorical_columns": ["few", "many"],
        "labels": {"pctr": {"column": "click", "kind": "binary"}},
    }
)


def make_blocks(folder: Path, rows: list[tuple[str, str]], sizes: list[int]) -> list[ParsedBlock]:
    blocks, start = [], 0
    for number, size in enumerate(sizes):
        columns = [pa.array([row[i] for row in rows[start : start + size]]).dictionary_encode() for i in (0, 1)]
        batch = pa.record_batch(columns, names=["token 0", "token 1"])
        path = folder / f"{number}.arrow"
        with pa.ipc.new_file(str(path), batch.schema) as file:
            file.write_batch(batch)
        distinct = tuple(len(column.dictionary) for column in columns)
        blocks.append(ParsedBlock(path, size, distinct, None, None, DATASET))
        start += size
    return blocks


@pytest.mark.parametrize("portion_size", [3, 50, 10**6])
@pytest.mark.parametrize("sizes", [[2000], [700, 1, 1299], [100] * 20])
def test_counts_equal_a_counter(tmp_path: Path, sizes: list[int], portion_size: int) -> None:
    draw = random.Random(0)
    rows = [(draw.choice(["", "a", "größe"]), f"{int(draw.paretovariate(0.5)):x}") for _ in range(2000)]
    training = [max(0, size - 10) for size in sizes]
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    selection = TokenSelection.of({"kind": "threshold", "min_count": 3}, 2, sum(training))
    tables, noise = select_tokens(
        make_blocks(tmp_path, rows, sizes),
        training,
        selection,
        phase=Phase("vocabulary"),
        scratch=scratch,
        portion_size=portion_size,
    )
    assert set(noise) == {None}
    starts = np.cumsum([0, *sizes[:-1]])
    counted = [row for start, count in zip(starts, training, strict=True) for row in rows[start : start + count]]
    for column, table in enumerate(tables):
        expected = {token: n for token, n in Counter(row[column] for row in counted).items() if n >= 3}
        found = dict(zip(table["token"].to_pylist(), table["count"].to_pylist(), strict=True))
        assert len(found) == len(table)
        assert found == expected


def test_no_step_holds_more_than_its_portion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 12,000 distinct tokens in portions of 500, a uniform hash puts about 500 in each and never 700."""
    rows = [("x", f"token{number}") for number in range(12_000)]
    seen: list[int] = []
    original = token_counts._sum

    def spy(files: list[Path], batch: int) -> pa.Table:
        table = original(files, batch)
        seen.append(len(table))
        return table

    monkeypatch.setattr(token_counts, "_sum", spy)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    select_tokens(
        make_blocks(tmp_path, rows, [1000] * 12),
        [1000] * 12,
        TokenSelection.of({"kind": "threshold", "min_count": 1}, 2, 12_000),
        phase=Phase("vocabulary"),
        scratch=scratch,
        portion_size=500,
    )
    assert sum(seen) == 12_001
    assert max(seen) < 700
