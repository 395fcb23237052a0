"""Sealed objects: any change of the contents, or of what they are about, is found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.integrity.sealed import Damaged, seal, unseal
from tasks.runtime.home import read_json, write_json

VALUE = {"verdict": "passed", "epsilon": 0.998, "findings": [], "ε": None}


def test_a_sealed_object_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "audit.json"
    write_json(path, seal(VALUE, {"record.json": "ab"}))
    assert unseal(path, read_json(path), advice="") == (VALUE, {"record.json": "ab"})


@pytest.mark.parametrize(
    "changed",
    [
        {**seal(VALUE), "epsilon": 0.1234},
        {**seal(VALUE), "more": 1},
        {name: value for name, value in seal(VALUE).items() if name != "findings"},
        {**seal(VALUE), "seal": seal({**VALUE, "epsilon": 0.1})["seal"]},
        {**seal(VALUE), "seal": {**seal(VALUE)["seal"], "about": {"record.json": "another"}}},
        {**seal(VALUE), "seal": None},
        {**seal(VALUE), "seal": {}},
        VALUE,
        [],
        None,
    ],
)
def test_a_change_is_named(changed: Any) -> None:
    with pytest.raises(Damaged, match=r"^/a/audit\.json is damaged: .*\. Delete it$"):
        unseal(Path("/a/audit.json"), changed, advice="Delete it")


def test_an_earlier_version_wrote_no_seal() -> None:
    assert unseal(Path("audit.json"), VALUE, advice="", required=False) == (VALUE, {})
