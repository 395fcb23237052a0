"""The registry of exhibits: ours register themselves, and the configuration knows them without heavy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tasks.reporting.exhibits.registry import exhibits
from tests.support.yaml_files import SMALL, edit, loader, mistakes

NAMES = {
    *("relative_loss", "clip_norm", "large_batch", "throughput", "optimizers"),
    *("noise_and_batch", "microbatch", "accountants", "label_dp", "comparison", "decomposition"),
}


def test_every_exhibit_is_registered() -> None:
    assert set(exhibits()) == NAMES
    assert all(spec.name == name for name, spec in exhibits().items())


def test_an_exhibit_that_is_not_registered(tmp_path: Path) -> None:
    (only,) = mistakes(
        loader(tmp_path), edit(SMALL, "    title: A sweep\n", "    title: A sweep\n    exhibit: clip_nrm\n")
    )
    assert only.startswith(
        "my.yaml:17: pipelines.sweep.exhibit: no such name: 'clip_nrm' (did you mean 'clip_norm'?); known: "
    )
    assert "toy" not in only


def test_the_configuration_knows_exhibits_without_what_draws_and_tests() -> None:
    """Loading the configuration is part of parsing DAGs."""
    heavy = ("jax", "scipy", "numpy", "dask", "mlflow", "pyarrow", "pandas", "matplotlib")
    code = (
        "import sys; from tasks.config.loading import load_config; load_config(); "
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
