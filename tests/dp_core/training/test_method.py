"""A method accepts registered names and sensible numbers only."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from dp_core.training.method import Method
from dp_core.training.step import make_trainer
from tests.support.models import make_model

METHOD = Method(make_model(), task="pctr", optimizer="sgd", momentum=0.9, private=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"task": "ctr"}, "unknown task 'ctr'; known: pctr, pcvr, pconvs"),
        ({"optimizer": "sdg"}, "unknown optimizer 'sdg'; registered: sgd, "),
        ({"clipping": "none"}, "unknown clip factor 'none'; registered: fixed, "),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": float("nan")}, "momentum must be in"),
        ({"microbatch_size": 0}, "microbatch_size must be at least 1, got 0"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        dataclasses.replace(METHOD, **changes)


def test_equal_methods_share_a_trainer() -> None:
    same = Method(make_model(), task="pctr", optimizer="sgd", momentum=0.9, private=True)
    assert same is not METHOD
    assert make_trainer(same) is make_trainer(METHOD)
    assert make_trainer(dataclasses.replace(METHOD, momentum=0.5)) is not make_trainer(METHOD)
