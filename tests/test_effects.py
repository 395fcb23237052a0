"""The effects that the paper reports, on the numbers of the quick pipelines: ``make effects`` runs those, then these.

They read the newest quick report of each pipeline below the home folder, and train nothing themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tasks.runtime.home import home, read_json

pytestmark = pytest.mark.effects

Claims = Callable[[str], dict[str, str]]


@pytest.fixture
def claims() -> Claims:
    """The verdict on each claim of a pipeline's newest quick report."""

    def read(pipeline: str) -> dict[str, str]:
        reports = sorted((home() / "reports" / pipeline).glob("*-quick-*/summary.json"))
        assert reports, f"no quick report of {pipeline}: `make effects` makes them"
        summary: dict[str, Any] = read_json(reports[-1])
        return {claim["claim"]: claim["verdict"] for claim in summary["claims"]}

    return read


def test_a_larger_budget_loses_less(claims: Claims) -> None:
    """Of the two tasks whose seeds agree: pConvs' spread over seeds is as large as what it loses."""
    found = claims("relative_loss")
    assert len(found) == 3
    assert "not shown" not in found.values()


def test_a_large_clip_norm_needs_a_large_budget(claims: Claims) -> None:
    assert claims("clip_norm") == {
        "At ε = 0.5 a large clip norm is worse than a small one": "shown",
        "At ε = 8 the gap is smaller": "shown",
    }


def test_large_batches_with_more_epochs_win(claims: Claims) -> None:
    found = claims("large_batch")
    assert len(found) == 3
    assert set(found.values()) == {"shown"}


def test_ghost_clipping_is_fast_and_vmap_is_not(claims: Claims) -> None:
    found = claims("throughput")
    assert len(found) == 3
    assert set(found.values()) == {"shown"}


def test_private_training_wants_other_settings(claims: Claims) -> None:
    found = claims("optimizers")
    assert len(found) == 3
    assert found[next(iter(found))] == "shown"
    assert "not shown" not in found.values()


def test_noise_falls_at_fixed_epochs_and_plateaus_at_fixed_steps(claims: Claims) -> None:
    found = claims("noise_and_batch")
    assert len(found) == 2
    assert set(found.values()) == {"shown"}


def test_pld_needs_less_noise_at_every_epsilon(claims: Claims) -> None:
    assert claims("accountants")["PLD accounting needs less noise than RDP at every ε"] == "shown"


def test_dp_sgd_wins_at_small_epsilon_and_randomised_response_at_large(claims: Claims) -> None:
    """The paper's randomised response is not debiased. Debiased, it is nearly as good as DP-SGD at ε = 0.5 already."""
    found = claims("label_dp")
    assert found["pCTR, randomised response: at ε = 0.5 DP-SGD is better"] == "shown"
    assert found["pCTR, randomised response: at ε = 10 LabelDP is better"] == "shown"
    assert found["pCTR, randomised response · debiased: at ε = 10 LabelDP is better"] == "shown"
    assert "not shown" not in found.values()


def test_tuning_c_and_m_together_is_reported(claims: Claims) -> None:
    """Whether microbatches help is the data's to say: the page must say so for each budget."""
    assert len(claims("microbatch")) == 4
