"""Table 3: planted effects of large batches are found, and none where none was planted."""

from __future__ import annotations

import pytest

from tasks.reporting.document import Verdict
from tests.support.exhibits import rows_of, verdicts
from tests.support.sweeps import SWEEPS, VERDICTS, by_chance, show, text_of


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_large_batches_are_better_if_they_are(effect: float, verdict: Verdict) -> None:
    shown = show("large_batch", lambda trial: 0.25 + (effect + by_chance(trial)) * (trial.batch_size == 1024))
    assert verdicts(shown) == [verdict] * 2
    assert f"from {0.735 - effect:.4f} (batch 1,024 · 8 epochs) to 0.7350 (batch 8,192 · 32 epochs)" in shown.headline
    assert rows_of(shown.tables[0])["8"]["batch 8,192 · 32 epochs"].startswith(text_of(0.75))


def test_arms_go_by_size_and_not_by_their_place_in_the_grid() -> None:
    sweeping = SWEEPS["large_batch"]
    turned = sweeping._replace(methods=sweeping.methods[::-1])
    losses = {1024: 0.3, 8192: 0.2}
    shown = show("large_batch", lambda trial: losses.get(trial.batch_size, 0.1), turned)
    assert verdicts(shown) == ["shown"] * 2
