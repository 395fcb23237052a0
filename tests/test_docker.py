"""What the container's files copy, install, publish and start agrees with the checkout."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import tasks.runtime.processes
import tasks.runtime.servers
from tasks.cli import main
from tasks.runtime.home import CHECKOUT

DOCKER = CHECKOUT / "docker"


def instructions() -> list[tuple[str, str]]:
    """Returns the Dockerfile's instructions with their arguments."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines if line)]


def arguments_of(name: str) -> list[str]:
    return [rest for each, rest in instructions() if each == name]


def environment() -> dict[str, str]:
    return dict(pair.split("=", 1) for rest in arguments_of("ENV") for pair in shlex.split(rest))


def service(file: str) -> dict[str, Any]:
    services = yaml.safe_load((DOCKER / file).read_text())["services"]
    assert list(services) == ["pipeline"]
    return services["pipeline"]


def started_up(monkeypatch: pytest.MonkeyPatch) -> tuple[tasks.runtime.servers.Ports, str]:
    """Returns the ports and the address that the container's command passes to ``up``."""
    given = []
    monkeypatch.setattr(tasks.runtime.servers, "up", lambda *arguments: given.append(arguments))
    command = json.loads(arguments_of("CMD")[-1])
    assert command[:3] == ["python", "-m", "tasks"]
    assert main(command[3:]) == 0
    return given[0]


def test_every_copied_file_is_there() -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text().split()
    copies = arguments_of("COPY")
    assert copies
    for copy in copies:
        *sources, _ = [word for word in shlex.split(copy) if not word.startswith("--")]
        for source in sources:
            assert (CHECKOUT / source).exists(), source
            assert source not in ignored
    assert shlex.split(copies[-1])[-2:] == [".", "."], "the checkout itself"


def test_nothing_generated_is_copied() -> None:
    ignored = {name.removeprefix("**/") for name in (CHECKOUT / ".dockerignore").read_text().split()}
    generated = {name.rstrip("/") for name in (CHECKOUT / ".gitignore").read_text().split()}
    assert generated - {"*.pyc"} <= ignored, "bytecode is in __pycache__"
    assert ".git" in ignored


def test_the_install_is_the_makefiles() -> None:
    assert "make .venv/installed" in arguments_of("RUN")
    printed = subprocess.run(
        ["make", "--dry-run", "--always-make", ".venv/installed"],
        cwd=CHECKOUT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    (install,) = [line for line in printed.splitlines() if "pip install" in line]
    assert {"--no-deps", "--require-hashes"} <= set(install.split())
    assert install.endswith("-r requirements.lock")
    # Only the GPU's libraries are outside the lock, and they must not change the version of a locked package.
    (extra,) = [rest for rest in arguments_of("RUN") if "pip install" in rest]
    assert extra.startswith('if [ "$ACCELERATOR" != cpu ]')
    assert '--constraint /tmp/locked "jax[$ACCELERATOR]"' in extra


def test_the_python_is_the_projects() -> None:
    (base,) = arguments_of("FROM")
    assert base == "python:3.11-slim"
    assert 'requires-python = ">=3.11,<3.12"' in (CHECKOUT / "pyproject.toml").read_text()


def test_runs_as_an_ordinary_user() -> None:
    names = [name for name, _ in instructions()]
    assert arguments_of("USER") == ["pipeline"]
    assert names.index("USER") < names.index("COPY") < names.index("CMD")


def test_listens_inside_the_container_and_is_published_on_loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    ports, host = started_up(monkeypatch)
    assert host == "0.0.0.0"
    assert service("compose.yaml")["ports"] == [f"127.0.0.1:{port}:{port}" for port in ports]
    assert arguments_of("EXPOSE") == [" ".join(map(str, ports))]


def test_what_is_generated_outlives_the_container() -> None:
    folder = environment()["DP_ADS_HOME"]
    assert arguments_of("VOLUME") == [folder]
    assert service("compose.yaml")["volumes"] == [f"home:{folder}"]
    assert "home" in yaml.safe_load((DOCKER / "compose.yaml").read_text())["volumes"]


def test_compose_builds_this_checkout() -> None:
    build = service("compose.yaml")["build"]
    context = (DOCKER / build["context"]).resolve()
    assert context == CHECKOUT
    assert (context / build["dockerfile"]).samefile(DOCKER / "Dockerfile")


def test_stopping_has_time_to_stop_the_servers() -> None:
    grace = service("compose.yaml")["stop_grace_period"]
    assert int(grace.removesuffix("s")) > 2 * tasks.runtime.processes.POLITE_SECONDS + 10


def test_the_gpu_is_an_argument_of_the_same_build() -> None:
    gpu = service("compose.gpu.yaml")
    assert gpu["build"] == {"args": {"ACCELERATOR": "cuda12"}}
    assert arguments_of("ARG") == ["ACCELERATOR=cpu"]
    assert "ports" not in gpu, "what compose.yaml publishes, and no more"


@pytest.mark.parametrize("path", sorted(DOCKER.glob("compose*.yaml")), ids=lambda path: path.name)
def test_says_how_it_is_started(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    files = re.findall(r"-f (\S+)", first)
    assert files[-1] == f"docker/{path.name}"
    assert all((CHECKOUT / file).exists() for file in files)
