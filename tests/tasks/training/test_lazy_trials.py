"""A trial with lazy tables, from data to a verdict: it resumes, it is audited, and only a settled model is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dp_core.training.lazy_updates import NoisePending
from tasks.config.loading import load_config
from tasks.data.prepared import Prepared
from tasks.privacy.verdict import judge
from tasks.training.finished import flat_parameters, write_finished
from tasks.training.loop import run_trial
from tasks.training.setup import set_up
from tests.support.trials import evidence_of, make_prepared, make_trial, parameters_of, record_of


@pytest.fixture
def prepared(own_home: Path, tmp_path: Path) -> Prepared:
    return make_prepared(tmp_path / "raw")


@pytest.mark.lazy
def test_a_lazy_trial_passes_the_audit(prepared: Prepared) -> None:
    trial = make_trial(prepared, table_updates="lazy")
    run_trial(trial, prepared)
    whole = parameters_of(trial)
    record = record_of(trial)
    assert record["trial"]["table_updates"] == "lazy"
    result, statement = judge(trial, record, evidence_of(trial))
    assert result["verdict"] == "passed", result
    assert "Rows of embedding tables" in statement
    assert len(whole) == 5
    assert make_trial(prepared).key != trial.key
    assert make_trial(prepared, table_updates="dense").key == make_trial(prepared).key


@pytest.mark.lazy
def test_an_interrupted_lazy_run_is_the_run(prepared: Prepared) -> None:
    finals = []
    for stops in ((), (5, 20)):
        trial = make_trial(prepared, table_updates="lazy", seed=3)
        for stop in stops:
            run_trial(trial, prepared, stop_after=stop)
        run_trial(trial, prepared)
        finals.append(parameters_of(trial))
        trial.folder.rename(trial.folder.with_name(f"moved{len(finals)}"))
    for name, value in finals[0].items():
        np.testing.assert_array_equal(value, finals[1][name])


def test_a_table_with_pending_noise_cannot_be_written(prepared: Prepared) -> None:
    trial = make_trial(prepared, table_updates="lazy")
    _, state, _ = set_up(trial, prepared, load_config().hardware, checkpoint_seconds=60)
    with pytest.raises(NoisePending):
        flat_parameters(state.params)
    with pytest.raises(NoisePending):
        write_finished(trial, {}, {}, state.params)  # type: ignore[typeddict-item]
    assert not trial.folder.exists()
