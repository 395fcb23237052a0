"""Vocabularies: hashes never change, and private ones publish only noisy counts."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from dp_core.partition_selection import VOCABULARY_SHARE_OF_DELTA, PartitionSelection
from tasks.config.dataset import Dataset
from tasks.data import preparation as prepare_module
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.data.stable_hash import stable_hash
from tasks.data.vocabulary import Buckets, TokenSelection, Vocabulary, counted_vocabulary

pytestmark = pytest.mark.usefixtures("own_home")

SPLITS = ("train", "validation", "test")
ROWS = 5000
OFTEN = [f"often{number}" for number in range(5)]
# Hashes of "", "68fd1e64", "größe" and "a longer token" in column C1, and the buckets of the first two in C2.
KNOWN = [0x1F824166A9BEDAC2, 0x1009EB06D606787C, 0x6C6B118DE0F21C4B, 0x5034FD3184528940]
KNOWN_IDS = [8130, 1688]


def dataset(**changes: Any) -> Dataset:
    columns = {"format": "tsv", "columns": ["click", "site", "ad"], "categorical_columns": ["site", "ad"]}
    return Dataset.model_validate({**columns, "labels": {"pctr": {"column": "click", "kind": "binary"}}, **changes})


def random_rows(seed: int = 0) -> list[list[str]]:
    """Both columns have frequent tokens, including the missing one; ``ad`` also has tokens of a single row."""
    draw = random.Random(seed)
    rows = []
    for row in range(ROWS):
        ad = draw.choice([*OFTEN, f"once{row}"])
        rows.append([draw.choice("01"), draw.choice(["", *OFTEN]), ad])
    return rows


def write(path: Path, rows: list[list[str]]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def encoded(folder: Path) -> np.ndarray:
    """Returns the ids of all rows in the order of the raw file."""
    prepared = open_prepared(folder)
    return np.concatenate([prepared.split(name, "pctr").categoricals for name in SPLITS])


def slow_hash(column: str, token: str) -> int:
    """Computes ``stable_hash`` token by token, as its docstring says."""
    all_bits = 2**64 - 1

    def mixed(state: int) -> int:
        state = (state + 0x9E3779B97F4A7C15) & all_bits
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & all_bits
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & all_bits
        return state ^ (state >> 31)

    text = token.encode()
    name = hashlib.blake2b(column.encode(), digest_size=8).digest()
    state = mixed(int.from_bytes(name, "little") ^ len(text))
    for start in range(0, len(text), 8):
        state = mixed(state ^ int.from_bytes(text[start : start + 8], "little"))
    return state


class TestHash:
    def test_known_values(self) -> None:
        """If this fails, the ids of every model trained on hashed tokens have lost their meaning."""
        assert stable_hash("C1", pa.array(["", "68fd1e64", "größe", "a longer token"])).tolist() == KNOWN
        ids = Buckets(("C1", "C2"), 10_000).ids(1, pa.array(["", "68fd1e64"]))
        assert (ids.tolist(), ids.dtype) == (KNOWN_IDS, np.int32)

    def test_equals_its_description(self) -> None:
        draw = random.Random(0)
        tokens = ["".join(draw.choices("aé€😀\0", k=draw.randint(0, 12))) for _ in range(500)]
        tokens += ["", "12345678", "123456789", "a", "a\0", "x" * 1000]
        array = pa.array(tokens)
        expected = [slow_hash("site", token) for token in tokens]
        assert stable_hash("site", array).tolist() == expected
        assert stable_hash("site", array[37:411]).tolist() == expected[37:411]
        assert stable_hash("site", pa.array(["", ""])).tolist() == [slow_hash("site", "")] * 2
        assert len(stable_hash("site", pa.array([], pa.string()))) == 0

    @pytest.mark.parametrize("buckets", [2, 1000, 1024])
    @pytest.mark.parametrize("form", ["{}", "{:08x}", "campaign-2024-{}", "{:0300d}"])
    def test_tokens_spread_evenly(self, buckets: int, form: str) -> None:
        """Chi-squared test; its false-alarm rate is 10⁻⁴ for each of the twelve cases (seeds are fixed)."""
        tokens = pa.array([form.format(number) for number in range(20_000)])
        assert len(np.unique(stable_hash("site", tokens))) == 20_000
        filled = np.bincount(Buckets(("site",), buckets).ids(0, tokens), minlength=buckets + 1)
        assert filled[0] == 0
        assert len(filled) == buckets + 1
        assert stats.chisquare(filled[1:]).pvalue > 1e-4

    def test_columns_are_hashed_apart(self) -> None:
        """Chi-squared test on pairs of buckets; its false-alarm rate is 10⁻⁴ (the seed is fixed)."""
        tokens, both = pa.array([str(number) for number in range(50_000)]), Buckets(("C1", "C2"), 32)
        pairs = np.bincount(32 * (both.ids(0, tokens) - 1) + both.ids(1, tokens) - 1, minlength=32**2)
        assert stats.chisquare(pairs).pvalue > 1e-4

    def test_prepared_data(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """For any blocks, and without counting tokens."""
        rows = random_rows()
        raw, described = write(tmp_path / "raw", rows), dataset(vocabulary="hash", vocabulary_buckets=50)
        monkeypatch.setattr(prepare_module, "select_tokens", None)
        fingerprints = set()
        for block_bytes in (900, 20_000, 32 << 20):
            folder = prepare(f"logs{block_bytes}", described, raw, min_count=2, block_bytes=block_bytes)
            expected = [[1 + slow_hash("site", row[1]) % 50, 1 + slow_hash("ad", row[2]) % 50] for row in rows]
            np.testing.assert_array_equal(encoded(folder), np.array(expected, np.int32), strict=True)
            fingerprints.add(open_prepared(folder).fingerprint)
        assert len(fingerprints) == 1
        assert "vocabulary" not in capsys.readouterr().out
        prepared = open_prepared(folder)
        assert prepared.vocabulary == {"kind": "hash", "buckets": 50}
        assert [column.vocabulary_size for column in prepared.categorical_columns] == [51, 51]
        table = pq.read_table(folder / "vocabulary.parquet")
        assert (table.num_rows, table.column_names) == (0, ["column", "id", "token", "count"])

    def test_one_row_changes_no_other_rows_ids(self, tmp_path: Path) -> None:
        """Neither its tokens nor its presence does: a hashed vocabulary needs no privacy budget."""
        rows, described = random_rows(), dataset(vocabulary="hash")
        variants = {
            "as it is": rows,
            "changed": [*rows[:7], ["1", "new", "other"], *rows[8:]],
            "removed": rows[:7] + rows[8:],
        }
        ids = {
            name: encoded(prepare("logs", described, write(tmp_path / name, variant), min_count=2))
            for name, variant in variants.items()
        }
        others = np.delete(ids["as it is"], 7, axis=0)
        np.testing.assert_array_equal(np.delete(ids["changed"], 7, axis=0), others)
        np.testing.assert_array_equal(ids["removed"], others)
        assert np.all(ids["changed"][7] != ids["as it is"][7])

    def test_fingerprint_depends_on_the_buckets(self, tmp_path: Path) -> None:
        raw = write(tmp_path / "raw", random_rows())
        found = {
            open_prepared(prepare("logs", dataset(vocabulary="hash", **more), raw, min_count=2)).fingerprint
            for more in ({}, {"vocabulary_buckets": 10_000}, {"vocabulary_buckets": 9_999})
        }
        assert len(found) == 2


def choose(folder: Path, counts: dict[str, int], *, seed: int = 0, min_count: int = 1, **changes: Any) -> Vocabulary:
    """Makes a private vocabulary of one column from counts."""
    (folder / "scratch").mkdir(parents=True)
    rule = {"kind": "private", "epsilon": 0.5, "min_count": min_count, **changes}
    table = pa.table({"token": list(counts), "count": np.array(list(counts.values()))})
    selection = TokenSelection.of(rule, 1, 100_000)
    return counted_vocabulary(
        selection.description, ("site",), [selection.select(table, np.random.default_rng(seed)).table], folder
    )


class TestPrivate:
    def test_prepared_data(self, tmp_path: Path) -> None:
        """Frequent tokens have the ids of the file; tokens of a single row have none.

        The noise is not seeded: the false-alarm rate is 10⁻⁵.
        """
        rows = random_rows()
        raw, described = write(tmp_path / "raw", rows), dataset(vocabulary="private", vocabulary_epsilon=2.0)
        folder = prepare("logs", described, raw, min_count=3, block_bytes=9000)
        prepared = open_prepared(folder)
        selection = PartitionSelection.calibrated(epsilon=2.0, delta=VOCABULARY_SHARE_OF_DELTA / 4000, columns=2)
        numbers = {"kind": "private", "epsilon": 2.0, "min_count": 3, **selection._asdict()}
        drawn = {name: prepared.vocabulary[name] for name in ("draw", "noise")}
        assert prepared.vocabulary == {**numbers, **drawn}
        # Preparing again draws the noise again, which is another release of the same log.
        again = open_prepared(prepare("again", described, raw, min_count=3))
        assert again.vocabulary == {**numbers, **{name: again.vocabulary[name] for name in ("draw", "noise")}}
        assert again.vocabulary["draw"] != prepared.vocabulary["draw"]
        assert again.fingerprint != prepared.fingerprint
        assert selection.delta == 0.05 / 4000
        # Dropping a frequent token would take noise of 100 standard deviations.
        assert 500 - selection.threshold > 100 * selection.standard_deviation
        file = pd.read_parquet(folder / "vocabulary.parquet")
        ids = {(row.column, row.token): row.id for row in file.itertuples()}
        assert {name for column, name in ids if column == "site"} == {"", *OFTEN}
        assert {name for column, name in ids if column == "ad" and name in OFTEN} == set(OFTEN)
        # Each of about 670 tokens of a single row is revealed with probability δ/2: two are very unlikely.
        assert sum(column == "ad" for column, _ in ids) <= 6
        expected = [[ids.get(("site", row[1]), 0), ids.get(("ad", row[2]), 0)] for row in rows]
        np.testing.assert_array_equal(encoded(folder), np.array(expected, np.int32), strict=True)
        sizes = [1 + sum(column == name for column, _ in ids) for name in ("site", "ad")]
        assert [column.vocabulary_size for column in prepared.categorical_columns] == sizes

    def test_file_has_noisy_counts_only(self, tmp_path: Path) -> None:
        """Noisy counts differ from exact ones by rounded noise of the stated scale.

        Kolmogorov-Smirnov test; its false-alarm rate is 10⁻⁴ (the seed is fixed).
        """
        counts = {f"token{number}": 10_000 + number for number in range(3000)}
        vocabulary = choose(tmp_path, counts)
        selection = PartitionSelection.calibrated(epsilon=0.5, delta=VOCABULARY_SHARE_OF_DELTA / 100_000, columns=1)
        file = pd.read_parquet(tmp_path / "vocabulary.parquet")
        assert len(file) == len(counts)
        differences = file["count"] - file["token"].map(counts)
        uniform = np.random.default_rng(1).uniform(-0.5, 0.5, len(file))  # undoes the rounding
        assert stats.kstest((differences + uniform) / selection.standard_deviation, "norm").pvalue > 1e-4
        assert vocabulary.description["threshold"] == selection.threshold

    def test_ids_are_in_the_order_of_the_noisy_counts(self, tmp_path: Path) -> None:
        """If counts differ by much less than the noise, tokens with the larger count are hardly more often in front.

        Sorted by exact counts, all first 1000 tokens would have the larger count. Sorted by noisy counts about 520 do;
        more than 600 has a probability below 10⁻⁶ (the seed is fixed).
        """
        counts = {f"{number:04}": 10_000 + number % 2 for number in range(2000)}
        vocabulary = choose(tmp_path, counts)
        file = pd.read_parquet(tmp_path / "vocabulary.parquet")
        assert file["id"].tolist() == list(range(1, 2001))
        assert file["token"].tolist() == vocabulary.tokens[0].to_pylist()
        assert file["count"].is_monotonic_decreasing
        assert (file["token"][:1000].map(counts) == 10_001).sum() < 600

    def test_rare_tokens_stay_hidden(self, tmp_path: Path) -> None:
        counts = {f"often{number}": 10_000 for number in range(10)} | {f"once{number}": 1 for number in range(10_000)}
        vocabulary = choose(tmp_path, counts)
        assert sorted(vocabulary.tokens[0].to_pylist()) == [f"often{number}" for number in range(10)]

    def test_min_count_is_a_bar_on_the_noisy_count(self, tmp_path: Path) -> None:
        counts = {f"token{number}": number for number in range(1, 5000)}
        plain, higher = (choose(tmp_path / str(bar), counts, min_count=bar) for bar in (1, 3000))
        least = [pd.read_parquet(tmp_path / bar / "vocabulary.parquet")["count"].min() for bar in ("1", "3000")]
        assert plain.description["threshold"] - 0.5 <= least[0] < 2 * plain.description["threshold"]
        assert least[1] >= 3000
        assert higher.tokens[0].to_pylist() == plain.tokens[0].to_pylist()[: len(higher.tokens[0])]

    def test_no_token_may_be_left(self, tmp_path: Path) -> None:
        folder = prepare("logs", dataset(vocabulary="private"), write(tmp_path / "raw", random_rows()), min_count=10**6)
        assert [column.vocabulary_size for column in open_prepared(folder).categorical_columns] == [1, 1]
        assert not np.any(encoded(folder))
        assert pq.read_table(folder / "vocabulary.parquet").num_rows == 0

    def test_noise_is_drawn_once_for_a_folder_and_anew_for_another(self, tmp_path: Path) -> None:
        raw = write(tmp_path / "raw", random_rows())
        folders = [
            prepare(name, dataset(vocabulary="private", **more), raw, min_count=2)
            for name, more in [("a", {}), ("a", {"vocabulary_epsilon": 0.1}), ("b", {})]
        ]
        assert folders[0] == folders[1]
        files = [(folder / "vocabulary.parquet").read_bytes() for folder in folders]
        assert files[0] != files[2]

    def test_fingerprint_depends_on_what_it_costs(self, tmp_path: Path) -> None:
        """Even if no token has an id in either."""
        raw = write(tmp_path / "raw", random_rows())
        found = [
            open_prepared(prepare("logs", dataset(**kind), raw, min_count=10**6)).fingerprint
            for kind in ({}, {"vocabulary": "private"}, {"vocabulary": "private", "vocabulary_epsilon": 0.2})
        ]
        assert len(set(found)) == 3


def test_each_kind_has_a_folder_of_its_own(tmp_path: Path) -> None:
    raw = write(tmp_path / "raw", random_rows())
    folders = {
        (kind, min_count): prepare("logs", dataset(vocabulary=kind), raw, min_count=min_count)
        for kind in ("threshold", "hash", "private")
        for min_count in (2, 3)
    }
    assert len(set(folders.values())) == 5
    assert folders["hash", 2] == folders["hash", 3], "buckets know nothing of counts"
