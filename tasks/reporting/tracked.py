"""What a report logs to MLflow: its numbers over ε, the relative loss of every trial, and a description."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from tasks.config.pipeline import Pipeline
from tasks.privacy.choice_cost import ChoiceCost
from tasks.reporting.document import Document, Figure
from tasks.reporting.exhibits.common import Sweep
from tasks.reporting.exhibits.recipes import compared_recipes
from tasks.reporting.exhibits.relative_loss import relative_percent
from tasks.reporting.files import PAGE
from tasks.reporting.markdown import table_text
from tasks.reporting.price.doubts import Judgement, together
from tasks.reporting.results import Arm, Result
from tasks.runtime.mlflow_views import SweepMetric, compare_path, run_path
from tasks.training.finished import FinishedTrial
from tasks.training.items import AuditedTrial, ParentRun


def sweep_metrics(pipeline: Pipeline, results: Sequence[Result], costs: Mapping[int, ChoiceCost]) -> list[SweepMetric]:
    """Returns each cell's numbers, named by its task and by its method if there are several."""
    metrics = []
    baselines = {result.task: result for result in results if result.epsilon is None}
    several = bool(pipeline.columns) or len({result.arm for result in results if result.epsilon is not None}) > 1
    for number, result in enumerate(results):
        if result.epsilon is None:
            if not result.diverged:
                metrics.append(SweepMetric(f"baseline_loss/{result.task}", None, result.loss))
            continue
        cell = f"{result.task}/{_method(result.arm)}" if several else result.task
        if not result.diverged:
            metrics.append(SweepMetric(f"test_loss/{cell}", result.epsilon, result.loss))
            relative, _ = relative_percent(result, baselines[result.task])
            if math.isfinite(relative):
                metrics.append(SweepMetric(f"relative_loss_percent/{cell}", result.epsilon, relative))
        if (cost := costs.get(number)) is not None and cost.holds is not None:
            metrics.append(SweepMetric(f"epsilon_with_choice/{cell}", result.epsilon, cost.holds))
        elif cost is not None and cost.only_seeded:
            # Seeded trials have no guarantee. This is what they would have cost, each with a secret draw of its own.
            metrics.append(SweepMetric(f"epsilon_with_choice_if_secret/{cell}", result.epsilon, cost.priced))
    return [*metrics, *_recipe_metrics(Sweep(pipeline, results, {}))]


def _recipe_metrics(sweep: Sweep) -> list[SweepMetric]:
    """Returns how our recipe compares with the paper's: the ratio and the difference of their relative losses."""
    metrics = []
    for one in compared_recipes(sweep):
        if one.ratio is not None:
            metrics.append(SweepMetric(f"ratio_to_paper_recipe/{one.task}", one.epsilon, one.ratio.mean))
        name = f"difference_to_paper_recipe_percent/{one.task}"
        metrics.append(SweepMetric(name, one.epsilon, one.difference.mean))
    return metrics


def relative_losses(
    audited: Sequence[AuditedTrial], finished: Sequence[FinishedTrial], results: Sequence[Result]
) -> dict[str, float | None]:
    """Returns the relative loss of each trial in percent, against the chosen baseline of its task, by its MLflow run.

    None for a trial that diverged, or whose baseline did.
    """
    baselines = {result.task: result for result in results if result.epsilon is None}
    relative: dict[str, float | None] = {}
    for item, one in zip(audited, finished, strict=True):
        loss, baseline = one.record["test_loss"], baselines.get(one.trial.task)
        relative[item["mlflow_run"]] = None
        if loss is not None and baseline is not None and not baseline.diverged and baseline.loss != 0:
            relative[item["mlflow_run"]] = 100 * (loss - baseline.loss) / abs(baseline.loss)
    return relative


def judgement_metrics(judgement: Judgement) -> list[SweepMetric]:
    """Returns the number of claims that are serious, as the page has them, and of doubts of each kind.

    They are for the parent run: runs can be filtered and compared by them.
    """
    serious = sum(doubt.serious for _, doubt in together(judgement.doubts))
    metrics = [SweepMetric("serious_doubts", None, float(serious))]
    return [*metrics, *(SweepMetric(f"doubts/{kind}", None, float(n)) for kind, n in judgement.counts().items())]


def judgement_tags(judgement: Judgement) -> dict[str, str]:
    """Returns the verdict as tags of the parent run; none if the page claims no price of privacy."""
    if not judgement.claims_price:
        return {}
    return {"price_of_privacy": "yes" if judgement.holds else "not yet", "verdict": judgement.verdict}


def description(document: Document, parent: ParentRun, trial_runs: Iterable[str]) -> str:
    """Returns the description of a pipeline run for MLflow, in Markdown: the result as a table and a picture."""
    run, trial_runs = parent["mlflow_run"], list(trial_runs)
    links = [f"[Page of this report](#/{run_path(parent['experiment'], run, PAGE)})"]
    if trial_runs:
        compare = compare_path(parent["experiment"], trial_runs)
        links.insert(0, f"[Compare the {len(trial_runs)} trials](#/{compare})")
    pictures = [_picture(figure, run) for figure in document.figures]
    headline = [f"**{document.headline}**", document.verdict]
    caveats = "\n".join(f"- {one.claim}: {one.consequence}" for one in document.caveats if one.serious)
    parts = [*headline, " · ".join(links), *map(table_text, document.tables[:1]), *pictures[:1], caveats]
    return "\n\n".join(part for part in parts if part)


def _picture(figure: Figure, run: str) -> str:
    """Returns a figure from a run's artifacts: the SVG, which has the size that it is read at."""
    return f"![{figure.title}](get-artifact?path={quote(figure.name)}.svg&run_uuid={run})"


def _method(arm: Arm) -> str:
    """Returns a method's name in a metric; a recipe has the name of ``pipelines.yaml``.

    >>> _method(Arm("dp_sgd", recipe="paper_recipe")), _method(Arm("dp_sgd", recipe="ours"))
    ('paper_recipe', 'ours')
    """
    rest = metric_part(arm._replace(recipe=None).label) if arm.values else ""
    return "_".join(filter(None, [arm.recipe, rest])) or metric_part(arm.label)


def metric_part(label: str) -> str:
    """Returns a method's name with the characters that MLflow allows in a metric.

    >>> metric_part("batch 8,192 · 32 epochs")
    'batch_8192_32_epochs'
    """
    kept = "".join(c if c.isalnum() or c in "._-" else " " for c in label.replace(",", ""))
    return "_".join(kept.split())
