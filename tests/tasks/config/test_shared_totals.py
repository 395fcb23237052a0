"""Entries of ``nightly`` that share a dataset share the budget of its days."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tasks.config.loading import config_path, load_config
from tasks.runtime.errors import UserError


@pytest.mark.parametrize(("epsilon", "fits"), [(3, True), (5, False)])
def test_entries_of_one_dataset_have_one_total(tmp_path: Path, epsilon: int, fits: bool) -> None:
    text = config_path().read_text(encoding="utf-8")
    entry = text[text.index("\n  conversions:") :].split("\n\n")[0].rstrip() + "\n"
    second = entry.replace("conversions:", "second:").replace("{epsilon: 3,", f"{{epsilon: {epsilon},")
    path = tmp_path / "pipelines.yaml"
    path.write_text(text.replace(entry, entry + second.lstrip("\n")), encoding="utf-8")
    if fits:
        assert list(load_config(path).nightly) == ["conversions", "second"]
    else:
        with pytest.raises(UserError, match=r"nightly\.second\.total.*conversions has another total"):
            load_config(path)


SECOND = """
  second_name:
    raw: /data/day={day}/*.parquet
    shares_budget_with: OTHER
    format: parquet
    time_column: timestamp
    integer_columns: [price]
    categorical_columns: [site]
    labels:
      pcvr: {column: conversions, kind: any}
    vocabulary: hash
    vocabulary_buckets: 100
"""


@pytest.mark.parametrize(
    ("other", "epsilon", "said"),
    [
        ("synthetic_days", 3, ""),
        ("a_name_that_it_had_before", 5, ""),
        ("synthetic_days", 5, "conversions has another total for the days of synthetic_days"),
        ("second_name", 3, "a dataset has its own budget unless it names another one"),
    ],
)
def test_datasets_that_share_a_budget_have_one_total(tmp_path: Path, other: str, epsilon: int, said: str) -> None:
    text = config_path().read_text(encoding="utf-8")
    entry = text[text.index("\n  conversions:") :].split("\n\n")[0].rstrip() + "\n"
    second = entry.replace("conversions:", "second:").replace("{epsilon: 3,", f"{{epsilon: {epsilon},")
    second = second.replace("dataset: synthetic_days", "dataset: second_name")
    text = text.replace(entry, entry + second.lstrip("\n"))
    text = text.replace("\ndatasets:\n", "\ndatasets:" + SECOND.replace("OTHER", other), 1)
    path = tmp_path / "pipelines.yaml"
    path.write_text(text, encoding="utf-8")
    if not said:
        assert load_config(path).budget_name("second_name") == other
    else:
        with pytest.raises(UserError, match=said):
            load_config(path)


def test_a_budget_that_is_shared_is_not_shared_on(tmp_path: Path) -> None:
    text = config_path().read_text(encoding="utf-8")
    third = SECOND.replace("second_name", "third_name").replace("OTHER", "second_name")
    both = "\ndatasets:" + SECOND.replace("OTHER", "first_name") + third.lstrip("\n")
    path = tmp_path / "pipelines.yaml"
    path.write_text(text.replace("\ndatasets:\n", both, 1), encoding="utf-8")
    with pytest.raises(UserError, match="second_name itself spends the budget of first_name: name first_name"):
        load_config(path)


def test_a_limit_for_users_is_one_that_both_entries_have(tmp_path: Path) -> None:
    text = config_path().read_text(encoding="utf-8")
    entry = text[text.index("\n  conversions:") :].split("\n\n")[0].rstrip() + "\n"
    second = entry.replace("conversions:", "second:").replace("user_days: 3}", "user_days: 3, user_epsilon: 9}")
    path = tmp_path / "pipelines.yaml"
    path.write_text(text.replace(entry, entry + second.lstrip("\n")), encoding="utf-8")
    with pytest.raises(UserError, match=r"the same epsilon and delta, and the same total of a user"):
        load_config(path)


def test_a_limit_for_users_needs_a_vocabulary_that_has_a_number_for_them(tmp_path: Path) -> None:
    text = config_path().read_text(encoding="utf-8").replace("user_days: 3}", "user_days: 3, user_epsilon: 9}")
    days = text[text.index("\n  synthetic_days:") :].split("\n\n")[0]
    private = re.sub(
        r"vocabulary: hash.*\n(\s+)vocabulary_buckets: .*", r"vocabulary: private\n\1vocabulary_epsilon: 0.1", days
    )
    assert private != days
    path = tmp_path / "pipelines.yaml"
    path.write_text(text.replace(days, private), encoding="utf-8")
    with pytest.raises(UserError, match=r"nightly\.conversions\.total\.user_epsilon.*has a private vocabulary"):
        load_config(path)


def test_a_limit_for_users_needs_independent_noise(tmp_path: Path) -> None:
    text = config_path().read_text(encoding="utf-8").replace("user_days: 3}", "user_days: 3, user_epsilon: 9}")
    correlated = text.replace("epochs: 10, l2_clip_norm: 16}", "epochs: 10, l2_clip_norm: 16, bands: auto}")
    assert correlated != text
    path = tmp_path / "pipelines.yaml"
    path.write_text(correlated, encoding="utf-8")
    with pytest.raises(UserError, match=r"nightly\.conversions\.total\.user_epsilon.*correlated noise"):
        load_config(path)
