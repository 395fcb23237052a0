"""Sweeps with planted losses, for tests of results and exhibits. Nothing is trained."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import stdev
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from tasks.config.dataset import TaskName
from tasks.data.prepared import Prepared
from tasks.reporting.document import Verdict
from tasks.reporting.exhibits.common import Exhibit, Sweep
from tasks.reporting.exhibits.registry import exhibits
from tasks.reporting.results import Outcome, choose
from tasks.training.trial import Trial
from tests.support.exhibits import pipeline_of, well_formed
from tests.support.trials import make_trial, without_privacy

# These trials are never trained, so they need no data.
NOWHERE = cast(Prepared, SimpleNamespace(fingerprint="0" * 16, splits={"train": {"rows": 2400}}))


def private(**changes: Any) -> Trial:
    return make_trial(NOWHERE, **changes)


def baseline(**changes: Any) -> Trial:
    return without_privacy(NOWHERE, **changes)


def of_labels(**changes: Any) -> Trial:
    """Returns a trial of randomised response, by default not debiased."""
    response = "k_ary" if changes.get("task") == "pconvs" else "binary"
    values: dict[str, Any] = {"mechanism": "label_dp", "target_delta": 0.0, "response": response, "debias": False}
    values |= {"accountant": None, "noise_multiplier": None, "l2_clip_norm": None, "clipping": None}
    return private(**{**values, **changes})


def outcomes() -> list[Outcome]:
    """Returns outcomes with two seeds in which, at ε = 1, C = 2 is better on validation and worse on test."""
    rows = [Outcome(baseline(seed=0), 0.20, 0.21), Outcome(baseline(seed=1), 0.20, 0.19)]
    for clip, validation, test in ((1.0, 0.30, 0.25), (2.0, 0.28, 0.30)):
        rows += [
            Outcome(private(epsilon=1.0, l2_clip_norm=clip, seed=0), validation, test),
            Outcome(private(epsilon=1.0, l2_clip_norm=clip, seed=1), validation, test + 0.02),
        ]
    return rows


SEEDS = 4
# Added to all losses of a seed times its number: large, but it cancels when methods are compared seed by seed.
BY_SEED = 0.01
# The size of planted noise between methods, with a sign that alternates between seeds.
CHANCE = 0.004
VERDICTS: list[tuple[float, Verdict]] = [(0.05, "shown"), (-0.05, "not shown"), (0.0, "within noise")]

Loss = Callable[[Trial], float | None]


class Sweeping(NamedTuple):
    """The trials of a sweep: each method at each budget, with each seed."""

    baselines: Sequence[Callable[..., Trial]]
    methods: Sequence[Callable[..., Trial]]
    epsilons: Sequence[float] = (1.0, 8.0)
    seeds: int = SEEDS

    def trials(self) -> Iterable[Trial]:
        for make, seed in itertools.product(self.baselines, range(self.seeds)):
            yield make(seed=seed)
        for epsilon, make, seed in itertools.product(self.epsilons, self.methods, range(self.seeds)):
            yield make(epsilon=epsilon, seed=seed)


def settings(make: Callable[..., Trial] = private, **lists: Sequence[Any]) -> list[Callable[..., Trial]]:
    """Returns a method for each combination of the lists' values."""
    combinations = [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]
    return [functools.partial(make, **{"task": "pctr", **values}) for values in combinations]


TASKS = ("pctr", "pcvr", "pconvs")
SWEEPS: dict[str, Sweeping] = {
    "relative_loss": Sweeping(settings(baseline, task=TASKS), settings(task=TASKS)),
    "clip_norm": Sweeping(settings(baseline), settings(l2_clip_norm=[1.0, 3.0, 30.0])),
    "large_batch": Sweeping(
        settings(baseline),
        [functools.partial(private, task="pctr", batch_size=b, epochs=e) for b, e in ((1024, 8), (8192, 32))],
    ),
    "optimizers": Sweeping(
        settings(baseline, optimizer=["sgd", "yogi"], learning_rate=[0.01, 0.1]),
        settings(optimizer=["sgd", "yogi"], learning_rate=[0.01, 0.1]),
    ),
    "microbatch": Sweeping(settings(baseline), settings(l2_clip_norm=[1.0, 8.0], microbatch_size=[1, 4])),
    "accountants": Sweeping(
        settings(baseline),
        [
            functools.partial(private, task="pctr", accountant=name, noise_multiplier=noise)
            for name, noise in (("tightest", 1.0), ("RDP", 1.25))
        ],
    ),
    "label_dp": Sweeping(
        settings(baseline, task=("pctr", "pconvs")),
        [
            *settings(task=("pctr", "pconvs")),
            *settings(of_labels, debias=[False, True]),
            *settings(of_labels, task=["pconvs"], response=["k_ary", "bins"]),
        ],
    ),
}


def show(
    name: str,
    loss: Loss,
    sweeping: Sweeping | None = None,
    *,
    validation: Loss | None = None,
    ceilings: Mapping[TaskName, Mapping[str, float]] | None = None,
    **changes: Any,
) -> Exhibit:
    """Makes a pipeline's exhibit of a sweep with planted losses. ``changes`` are keys of the pipeline."""
    found = []
    for trial in (sweeping or SWEEPS[name]).trials():
        planted, chosen_by = loss(trial), (validation or loss)(trial)
        shift = BY_SEED * trial.seed
        if planted is None or chosen_by is None:
            found.append(Outcome(trial, None, None))
        else:
            found.append(Outcome(trial, chosen_by + shift, planted + shift))
    pipeline = pipeline_of(name).model_copy(update=changes)
    spec = exhibits()[pipeline.exhibit]
    results = choose(found, pipeline.columns, may_diverge=spec.columns != ())
    return well_formed(spec.make(Sweep(pipeline, results, ceilings or {})))


def by_chance(trial: Trial) -> float:
    return CHANCE * (-1) ** trial.seed


def text_of(score: float, seeds: int = SEEDS, task: str = "pctr", mark: str = "") -> str:
    """Returns a score as tables show it, given the score of seed 0."""
    mean = score + (1 if task == "pconvs" else -1) * BY_SEED * (seeds - 1) / 2
    return f"{mean:.4f} ± {stdev(BY_SEED * k for k in range(seeds)):.4f}{mark}"


def plain(trial: Trial) -> float:
    return 0.2 + 0.01 / (trial.epsilon or 10.0) + (trial.l2_clip_norm or 0.0) / 1000
