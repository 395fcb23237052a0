"""Limits of the data checks in ``pipelines.yaml``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.config.cross_checks import contradictions
from tasks.config.loading import Config, load_config
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT


def with_checks(tmp_path: Path, checks: str) -> Config:
    text = (CHECKOUT / "pipelines.yaml").read_text()
    path = tmp_path / "pipelines.yaml"
    path.write_text(text.replace("    tolerance: 0.02\n", f"    tolerance: 0.02\n    checks: {checks}\n"))
    return load_config(path)


def test_a_column_may_have_limits_of_its_own(tmp_path: Path) -> None:
    config = with_checks(tmp_path, "{drift: 0.5, columns: {product: {unseen_tokens: 1.0}}}")
    checks = config.night("conversions").checks
    assert (checks.drift, checks.bad_rows, checks.columns["product"].unseen_tokens) == (0.5, 0.01, 1.0)
    assert checks.columns["product"].drift is None


@pytest.mark.parametrize(
    ("checks", "mistake"),
    [
        ("{columns: {prodct: {drift: 1.0}}}", "has no feature 'prodct' (did you mean 'product'?)"),
        ("{columns: {cart_value_cents: {unseen_tokens: 0.5}}}", "`unseen_tokens` is for categorical columns"),
        ("{rows: 1.0}", "nightly.conversions.checks.rows"),
        ("{columns: {product: {rows: 2.0}}}", "nightly.conversions.checks.columns.product.rows: unknown key"),
    ],
)
def test_impossible_limits(tmp_path: Path, checks: str, mistake: str) -> None:
    with pytest.raises(UserError) as error:
        with_checks(tmp_path, checks)
    assert mistake in str(error.value)


def test_a_night_is_not_recalibrated() -> None:
    """Its ledger would not charge the validation examples."""
    config = load_config()
    night = config.night("conversions")
    grid = night.dp_sgd.model_copy(update={"recalibration": ("shift",)})
    nights = {**config.nightly, "conversions": night.model_copy(update={"dp_sgd": grid})}
    found = list(contradictions(config.model_copy(update={"nightly": nights})))
    assert [key for key, _ in found] == [("nightly", "conversions", "dp_sgd", "recalibration")]
    assert "the ledger does not charge" in found[0][1]
