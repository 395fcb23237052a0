"""The prepare step refuses logs that nothing can be learnt from, before anything is trained."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.prepare import prepare_datasets
from tasks.runtime.errors import UserError

CONFIG = """
datasets:
  clicks:
    format: csv
    header: true
    raw: RAW
    time_column: time
    integer_columns: [price]
    categorical_columns: []
    labels: {pctr: {column: clicked, kind: binary}, pconvs: {column: sales, kind: count}}
profiles:
  tiny: {min_count: 1, synthetic_rows: 1000, hidden_layers: [4], evaluations: 1}
pipelines:
  losses:
    title: Losses
    datasets: {pctr: clicks, pconvs: clicks}
    grids:
      tiny:
        epsilons: [1]
        seeds: 1
        tasks:
          pctr: &both
            non_private: {optimizer: sgd, learning_rate: 0.1, batch_size: 10, epochs: 1}
            dp_sgd: {optimizer: sgd, learning_rate: 0.1, batch_size: 10, epochs: 1, l2_clip_norm: 1}
          pconvs: *both
"""
ROWS = 100


@pytest.mark.parametrize(
    ("clicked", "sales", "refused"),
    [
        (lambda row: row % 2, lambda row: row % 3, []),
        (lambda row: row % 2 and row < 80, lambda row: row % 3, ["validation split have the label 0", "test split"]),
        (lambda row: row % 2 or row < 80, lambda row: row % 3, ["all 80 rows of the train split have the label 1"]),
        (lambda row: row % 2, lambda row: 3 * (row >= 80), ["train split have the label 0 for pConvs"]),
        (lambda row: row % 2, lambda row: 3 * (row < 80), []),
    ],
    ids=["both classes", "no click later", "clicks only at first", "no sale to learn from", "no sale to test on"],
)
def test_a_split_with_one_class_is_refused(
    own_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clicked, sales, refused: list[str]
) -> None:
    lines = [f"{1_700_000_000 + row},{row % 7},{int(clicked(row))},{int(sales(row))}" for row in range(ROWS)]
    raw = tmp_path / "clicks.csv"
    raw.write_text("time,price,clicked,sales\n" + "\n".join(lines) + "\n")
    (tmp_path / "my.yaml").write_text(CONFIG.replace("RAW", str(raw)))
    monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "my.yaml"))
    options = {"pipeline": "losses", "profile": "tiny"}
    if not refused:
        assert len(prepare_datasets(options)) == 1
        return
    with pytest.raises(UserError) as caught:
        prepare_datasets(options)
    problems = str(caught.value).splitlines()
    assert len(problems) == len(refused)
    for problem, expected in zip(problems, refused, strict=True):
        assert problem.startswith("clicks: all ")
        assert expected in problem
    other = "pconvs" if "pCTR" in problems[0] else "pctr"
    assert len(prepare_datasets({**options, "tasks": [other]})) == 1, "the other task's labels are fine"
