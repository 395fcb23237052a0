"""Plug-ins that ``pipelines.yaml`` names are imported wherever a step runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dp_core.models.spec import MODELS
from tasks.runtime.errors import UserError
from tasks.runtime.home import CHECKOUT
from tasks.train import train
from tests.support.reports import configure, planned, report_home
from tests.support.yaml_files import SMALL, loader

PLUGIN = """
from typing import Literal
from pydantic import PositiveInt
from dp_core.models.spec import ModelSpec, register_model

@register_model
class WideSpec(ModelSpec):
    name: Literal["wide"] = "wide"
    width: PositiveInt = 4

    def build(self, features):
        from dp_core.models.mlp import AdModel
        return AdModel(tuple(features), (self.width,))
"""
TAKING = """
from tasks.reporting.exhibits.registry import ExhibitSpec, register_exhibit

register_exhibit(ExhibitSpec("clip_norm", print))
"""
AUDIT = """
import json, sys
from tasks.audit import audit_group
json.dump(audit_group(json.load(sys.stdin)), sys.stdout)
"""


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Removes what a test's plug-in has registered in this process."""
    yield
    sys.modules.pop("my_wide_model", None)
    MODELS.pop("wide", None)


@pytest.mark.usefixtures("forgotten")
def test_a_model_of_a_plugin_is_planned_trained_and_audited(tmp_path: Path) -> None:
    """The audit runs in a new process, as Airflow runs it: only the configuration names the plug-in there."""
    with report_home(tmp_path) as here:
        (here / "my_wide_model.py").write_text(PLUGIN)
        configure(here, "l2_clip_norm: [1, 3]}", "l2_clip_norm: 1, model: {name: wide, width: 5}}")
        file = here / "my.yaml"
        file.write_text("plugins: [my_wide_model]\n" + file.read_text())
        groups = planned("losses", epsilons=[8], seeds=1)["groups"]
        items = [item for group in groups for item in group["items"] if "wide" in item["name"]]
        done = subprocess.run(
            [sys.executable, "-c", AUDIT],
            input=json.dumps(train({"name": "wide", "items": items})),
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        [audited] = json.loads(done.stdout.splitlines()[-1])
        assert "wide (width 5)" in audited["name"]
        assert 0 < audited["epsilon"] <= 8


@pytest.mark.parametrize(
    ("plugins", "message"),
    [
        (
            "[no_such_plugin]",
            "plugins.0: cannot import 'no_such_plugin': "
            "there is no module 'no_such_plugin' in FOLDER or on the Python path",
        ),
        ("[needy_plugin]", "cannot import 'needy_plugin': ModuleNotFoundError: No module named 'nothing_here'"),
        ("[ending_plugin]", "plugins.0: cannot import 'ending_plugin': it calls sys.exit()"),
        (
            "[taking_plugin]",
            "plugins.0: cannot import 'taking_plugin': ValueError: an exhibit named 'clip_norm' is already registered",
        ),
        ("[broken_plugin]", "plugins.0: cannot import 'broken_plugin': ZeroDivisionError: division by zero"),
        ("broken_plugin", "plugins: should be a list, got 'broken_plugin'"),
        ("[3]", "plugins.0: input should be a valid string, got 3"),
    ],
)
def test_a_plugin_that_cannot_be_imported_is_named(tmp_path: Path, plugins: str, message: str) -> None:
    (tmp_path / "broken_plugin.py").write_text("1 / 0\n")
    (tmp_path / "needy_plugin.py").write_text("import nothing_here\n")
    (tmp_path / "ending_plugin.py").write_text("import sys; sys.exit()\n")
    (tmp_path / "taking_plugin.py").write_text(TAKING)
    with pytest.raises(UserError) as caught:
        loader(tmp_path)(f"plugins: {plugins}\n{SMALL}")
    (only,) = str(caught.value).splitlines()
    assert message.replace("FOLDER", str(tmp_path)) in only


@pytest.mark.usefixtures("forgotten")
def test_a_plugin_that_fails_leaves_nothing_registered(tmp_path: Path) -> None:
    """A second load in the same process meets the same error."""
    (tmp_path / "failing_wide_model.py").write_text(PLUGIN + "\n1 / 0\n")
    load, before = loader(tmp_path), dict(MODELS)
    for _ in range(2):
        with pytest.raises(UserError, match="cannot import 'failing_wide_model': ZeroDivisionError: division by zero"):
            load(f"plugins: [failing_wide_model]\n{SMALL}")
        assert before == MODELS


def test_our_exhibits_are_registered_before_a_plugin_is_imported(tmp_path: Path) -> None:
    """In a new process, where nothing has asked for the exhibits yet."""
    (tmp_path / "taking_plugin.py").write_text(TAKING)
    (tmp_path / "my.yaml").write_text(f"plugins: [taking_plugin]\n{SMALL}")
    done = subprocess.run(
        [sys.executable, "-m", "tasks", "validate"],
        env=os.environ | {"DP_ADS_CONFIG": str(tmp_path / "my.yaml")},
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert (
        "cannot import 'taking_plugin': ValueError: an exhibit named 'clip_norm' is already registered" in done.stderr
    )
