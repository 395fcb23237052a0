"""Paths of pages in the MLflow UI, the views of runs that they open, and the conventions of their charts.

MLflow shows no metric in a new experiment's table and has no setting for its columns. It can, however, open a view that
was shared: the columns, order and charts that a tag of the experiment holds, named by a key in the address. The views
here are shared in that way. Imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from tasks.runtime.home import short_hash

# The number that stands for the infinite ε of a trial without privacy: MLflow's charts leave out infinity.
NON_PRIVATE_EPSILON = 100.0
# Metrics of a pipeline run are logged at this many steps per unit of ε, because MLflow's steps are whole numbers.
STEPS_PER_EPSILON = 1000
# The tag of an experiment that holds a shared view, followed by the view's key.
VIEW_TAG = "mlflow.sharedViewState."
# The view of all trials of an experiment.
ALL_TRIALS = "trials"
# The longest value of such a tag.
_MOST_CHARACTERS = 20_000
# MLflow shows pages for generative AI unless the address says otherwise or the user has chosen "Model training" before.
_TRAINING = "workflowType=machine_learning"
_ALL = "tags.trial != ''"
_METRICS = (
    *("relative_loss_percent", "test/auc", "test/log_loss", "test/poisson_log_loss"),
    *("test/normalized_entropy", "test/calibration", "epsilon", "seconds"),
)


class SweepMetric(NamedTuple):
    """A number of a report, at a budget if it belongs to one, for the charts of a pipeline run over ε."""

    name: str
    epsilon: float | None
    value: float

    @property
    def step(self) -> int:
        """The step that the number is logged at.

        >>> SweepMetric("test_loss/pctr", 0.5, 0.2).step, SweepMetric("baseline_loss/pctr", None, 0.2).step
        (500, 0)
        """
        return round(STEPS_PER_EPSILON * (self.epsilon or 0))


def run_path(experiment: str, run_id: str, artifact: str = "") -> str:
    """Returns the path of a run's page, or of one of its artifacts there.

    >>> run_path("1", "0c8f")
    'experiments/1/runs/0c8f?workflowType=machine_learning'
    """
    inside = f"/artifacts/{artifact}" if artifact else ""
    return f"experiments/{experiment}/runs/{run_id}{inside}?{_TRAINING}"


def children_path(experiment: str, run_id: str) -> str:
    """Returns the path of the table of the trials that were logged under a pipeline run."""
    query = quote(f"tags.`mlflow.parentRunId` = '{run_id}'")
    return f"experiments/{experiment}/runs?{_TRAINING}&searchFilter={query}"


def experiment_path(experiment: str) -> str:
    """Returns the path of the table of an experiment's trials, with their metrics and parameters as columns."""
    return _view_path(experiment, ALL_TRIALS)


def compare_path(experiment: str, run_ids: Iterable[str]) -> str:
    """Returns the path of the charts that compare runs: parallel coordinates and a scatter plot.

    The tag of ``comparison_view`` makes the view itself. Equal sets of runs share one.
    """
    return f"{_view_path(experiment, _comparison_key(run_ids))}&compareRunsMode=CHART"


def trials_view(varies: Sequence[str]) -> tuple[str, str]:
    """Returns the tag of the view of all trials, given the settings that vary: its name and value."""
    return VIEW_TAG + ALL_TRIALS, json.dumps({**_state(_ALL, varies), "viewMaximized": False, "runListHidden": False})


def comparison_view(run_ids: Iterable[str], varies: Sequence[str]) -> tuple[str, str]:
    """Returns the tag of the view that ``compare_path`` opens, given the settings that vary: its name and value."""
    run_ids = sorted(run_ids)
    named = ", ".join(f"'{run_id}'" for run_id in run_ids)
    value = json.dumps(_state(f"attributes.run_id IN ({named})", varies))
    if len(value) > _MOST_CHARACTERS:  # the runs do not fit: all trials of the experiment
        value = json.dumps(_state(_ALL, varies))
    return VIEW_TAG + _comparison_key(run_ids), value


def _view_path(experiment: str, key: str) -> str:
    return f"experiments/{experiment}/runs?{_TRAINING}&viewStateShareKey={key}"


def _comparison_key(run_ids: Iterable[str]) -> str:
    return short_hash(sorted(run_ids))


def _state(query: str, varies: Sequence[str]) -> dict[str, Any]:
    """Returns the state of the UI by the names that MLflow 3.17 stores it under."""
    section = {"uuid": "comparison", "name": "Comparison", "display": True, "isReordered": True, "columns": 1}
    columns = [
        *(f"metrics.`{name}`" for name in _METRICS),
        *(f"params.`{name}`" for name in varies if name != "epsilon"),
    ]
    return {
        "searchFilter": query,
        # Ordered by time, trials would be folded under their pipeline runs and be missing in the charts.
        "orderByKey": "metrics.`relative_loss_percent`",
        "orderByAsc": True,
        "selectedColumns": columns,
        # The charts get the room of the run list and of the header.
        "viewMaximized": True,
        "runListHidden": True,
        "runsHiddenMode": "SHOW_ALL",
        "compareRunCharts": _charts(varies),
        "compareRunSections": [{**section, "deleted": False, "isGenerated": False}],
        "isAccordionReordered": True,
    }


def _charts(varies: Sequence[str]) -> list[dict[str, Any]]:
    """Returns the charts. A trial without one of the parameters has no line, so baselines have a chart of few."""
    common = {"metricSectionId": "comparison", "deleted": False, "isGenerated": False}
    coordinates = {**common, "type": "PARALLEL", "runsCountToCompare": 100, "showAllRuns": True}
    coordinates["selectedMetrics"] = ["epsilon", "relative_loss_percent"]
    task = [name for name in varies if name == "task"]
    settings = [name for name in varies if name not in ("epsilon", "seed", "mechanism")]
    charts = [
        {**coordinates, "uuid": "all", "displayName": "All trials", "selectedParams": task},
        {
            **common,
            "uuid": "scatter",
            "type": "SCATTER",
            "displayName": f"Relative loss over ε ({NON_PRIVATE_EPSILON:g}: no privacy)",
            "runsCountToCompare": 100,
            "xaxis": {"key": "epsilon", "type": "METRIC"},
            "yaxis": {"key": "relative_loss_percent", "type": "METRIC"},
        },
    ]
    if settings != task:
        charts.append({**coordinates, "uuid": "settings", "displayName": "Settings", "selectedParams": settings})
    return charts
