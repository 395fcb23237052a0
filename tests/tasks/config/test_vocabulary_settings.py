"""The settings of a dataset's vocabulary."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.yaml_files import SMALL, Load, edit, mistakes


class TestVocabulary:
    """The keys of a dataset that decide which tokens get an id."""

    LINE = "    integer_columns: [n]\n"

    @pytest.mark.parametrize(
        "keys",
        [
            {},
            {"vocabulary": "threshold"},
            {"vocabulary": "hash"},
            {"vocabulary": "hash", "vocabulary_buckets": 2},
            {"vocabulary": "private"},
            {"vocabulary": "private", "vocabulary_epsilon": 0.5},
            {"vocabulary": "private", "vocabulary_epsilon": 1},
        ],
    )
    def test_what_is_allowed(self, load: Load, keys: dict[str, Any]) -> None:
        lines = "".join(f"    {key}: {value}\n" for key, value in keys.items())
        dataset = load(edit(SMALL, self.LINE, self.LINE + lines)).dataset("logs")
        assert dataset.vocabulary == keys.get("vocabulary", "threshold")
        assert dataset.vocabulary_buckets == keys.get("vocabulary_buckets")
        assert dataset.vocabulary_epsilon == keys.get("vocabulary_epsilon")

    @pytest.mark.parametrize(
        ("lines", "line", "message"),
        [
            (
                ["vocabulary_buckets: 100"],
                7,
                "_buckets: only for `vocabulary: hash`, but `vocabulary` is threshold: leave out one of the two",
            ),
            (
                ["vocabulary: private", "vocabulary_buckets: 100"],
                8,
                "_buckets: only for `vocabulary: hash`, but `vocabulary` is private: leave out one of the two",
            ),
            (
                ["vocabulary_epsilon: 1.0", "vocabulary: hash"],
                7,
                "_epsilon: only for `vocabulary: private`, but `vocabulary` is hash: leave out one of the two",
            ),
            (
                ["vocabulary_epsilon: 1.0"],
                7,
                "_epsilon: only for `vocabulary: private`, but `vocabulary` is threshold: leave out one of the two",
            ),
            (["vocabulary: hashed"], 7, ": input should be 'threshold', 'hash' or 'private', got 'hashed'"),
            (
                ["vocabulary: hashed", "vocabulary_buckets: 5"],
                7,
                ": input should be 'threshold', 'hash' or 'private', got 'hashed'",
            ),
            (
                ["vocabulary: hash", "vocabulary_buckets: 1"],
                8,
                "_buckets: input should be greater than or equal to 2, got 1",
            ),
            (
                ["vocabulary: hash", "vocabulary_buckets: 2.5"],
                8,
                "_buckets: input should be a valid integer, got 2.5",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: 0"],
                8,
                "_epsilon: input should be greater than 0, got 0",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: .inf"],
                8,
                "_epsilon: input should be a finite number, got inf",
            ),
            (
                ["vocabulary: private", "vocabulary_epsilon: 1001"],
                8,
                "_epsilon: input should be less than or equal to 1000, got 1001",
            ),
        ],
    )
    def test_one_mistake_is_one_line(self, load: Load, lines: list[str], line: int, message: str) -> None:
        text = edit(SMALL, self.LINE, self.LINE + "".join(f"    {added}\n" for added in lines))
        assert mistakes(load, text) == [f"my.yaml:{line}: datasets.logs.vocabulary{message}"]

    def test_without_categorical_columns(self, load: Load) -> None:
        text = edit(SMALL, "    categorical_columns: [c]\n", "    vocabulary: private\n")
        assert mistakes(load, text) == ["my.yaml:2: datasets.logs: `vocabulary: private` needs `categorical_columns`"]
