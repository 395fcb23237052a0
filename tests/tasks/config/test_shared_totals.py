"""Entries of ``nightly`` that share a dataset share the budget of its days."""

from __future__ import annotations

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
