"""What each pipeline shows of the paper: effects that were planted are found, and those that were not are not."""

from __future__ import annotations

import functools
import importlib
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from statistics import stdev
from typing import Any, NamedTuple

import pytest

from tasks.document import Verdict
from tasks.errors import UserError
from tasks.exhibits.common import Exhibit, Sweep
from tasks.results import Outcome, choose
from tasks.trial import Trial
from tests.exhibits import csv_of, pipeline_of, rows_of, verdicts, well_formed
from tests.test_results import baseline, of_labels, private

SEEDS = 4
# What seeds have in common: large, and of no matter where they are compared with themselves.
BY_SEED = 0.01
# Of this much, one way and the other, methods differ by chance.
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
    """A method for each way to take one value of each list."""
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
    name: str, loss: Loss, sweeping: Sweeping | None = None, *, validation: Loss | None = None, **changes: Any
) -> Exhibit:
    """The exhibit of a sweep with planted losses."""
    found = []
    for trial in (sweeping or SWEEPS[name]).trials():
        planted, chosen_by = loss(trial), (validation or loss)(trial)
        shift = BY_SEED * trial.seed
        if planted is None or chosen_by is None:
            found.append(Outcome(trial, None, None))
        else:
            found.append(Outcome(trial, chosen_by + shift, planted + shift))
    pipeline = pipeline_of(name)
    sweep = Sweep(pipeline, choose(found, pipeline.columns), changes.pop("ceilings", {}))
    assert not changes
    shown = importlib.import_module(f"tasks.exhibits.{pipeline.exhibit}").exhibit(sweep)
    return well_formed(shown)


def by_chance(trial: Trial) -> float:
    return CHANCE * (-1) ** trial.seed


def text_of(score: float, seeds: int = SEEDS, task: str = "pctr", mark: str = "") -> str:
    """A score as tables show it, where the loss of seed 0 is given."""
    mean = score + (1 if task == "pconvs" else -1) * BY_SEED * (seeds - 1) / 2
    return f"{mean:.4f} ± {stdev(BY_SEED * k for k in range(seeds)):.4f}{mark}"


# Table 1.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_relative_loss_falls_with_the_budget_if_it_does(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        return 0.2 if trial.epsilon is None else 0.25 + (effect + by_chance(trial)) * (trial.epsilon == 1)

    shown = show("relative_loss", loss)
    assert verdicts(shown) == [verdict] * 3
    assert [finding.claim.split(":")[0] for finding in shown.findings] == ["pCTR", "pCVR", "pConvs"]


def test_relative_loss_against_arithmetic_by_hand() -> None:
    losses = {None: 0.2, 1.0: 0.3, 10.0: 0.25}
    sweeping = SWEEPS["relative_loss"]._replace(epsilons=(10.0, 1.0), seeds=2)
    ceilings = {"pctr": {"auc": 0.95}, "pconvs": {"poisson_log_loss": 0.19}}
    shown = show("relative_loss", lambda trial: losses[trial.epsilon], sweeping, ceilings=ceilings)
    # In the mean over two seeds all are 0.005 more.
    at_1, at_10 = 100 * 0.1 / 0.205, 100 * 0.05 / 0.205
    spread = 100 * stdev([0.0, BY_SEED]) / 0.205
    table = rows_of(shown.tables[0])
    assert list(table) == ["1", "10"]
    assert table["1"]["pCTR ours"] == f"{at_1:.2f} ± {spread:.2f}"
    assert table["10"]["pConvs ours"] == f"{at_10:.2f} ± {spread:.2f}"
    assert table["1"]["pCTR paper"] == "13.58"
    records = csv_of(shown.tables[0])
    assert [(row["task"], row["epsilon"]) for row in records] == [
        (task, epsilon) for task in TASKS for epsilon in ("inf", "1", "10")
    ]
    assert float(records[0]["relative_loss_percent_mean"]) == 0
    assert float(records[1]["relative_loss_percent_mean"]) == pytest.approx(at_1, rel=1e-6)
    assert float(records[1]["relative_loss_percent_std"]) == pytest.approx(spread, rel=1e-6)
    assert {row["seeds"] for row in records} == {"2"}
    assert f"from ε = 1 to 10: pCTR {at_1:.1f} % to {at_10:.1f} %, pCVR" in shown.headline
    assert f"goes {100 * (0.795 - 0.5) / 0.45:.1f} % of the way" in shown.notes[0]
    assert "planted model's loss is 0.1900, the non-private model's 0.2050 ± 0.0071" in shown.notes[1]


def test_a_random_search_keeps_trainings_of_different_seeds() -> None:
    """There is no pair of them, and so nothing that could be more than noise."""
    found = [Outcome(baseline(), 0.2, 0.2)]
    for epsilon, seed in ((1.0, 3), (10.0, 5)):
        found.append(Outcome(private(epsilon=epsilon, seed=seed), 0.3 / epsilon, 0.3 / epsilon))
    results = choose(found, each_alone=True)
    shown = importlib.import_module("tasks.exhibits.relative_loss").exhibit(
        Sweep(pipeline_of("relative_loss"), results, {})
    )
    assert verdicts(well_formed(shown)) == ["within noise"]
    assert "no seed in common" in shown.findings[0].evidence
    assert rows_of(shown.tables[0])["1"]["pCVR ours"] == "50.00"


# Table 2.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_a_large_clip_norm_is_worse_at_a_small_budget_if_it_is(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        large_at_low = (trial.l2_clip_norm, trial.epsilon) == (30.0, 1.0)
        return 0.25 + (effect + by_chance(trial)) * large_at_low + 0.1 * (trial.l2_clip_norm == 3)

    shown = show("clip_norm", loss)
    assert verdicts(shown) == [verdict] * 2
    assert f"worse by {effect:.4f} at ε = 1, 0.0000 at ε = 8" in shown.findings[1].evidence.replace("-0.0000", "0.0000")


def test_clip_norms_by_budget() -> None:
    planted = {
        (1.0, 1.0): 0.25,
        (3.0, 1.0): 0.27,
        (30.0, 1.0): 0.4,
        (1.0, 8.0): 0.24,
        (3.0, 8.0): 0.2,
        (30.0, 8.0): 0.3,
    }

    def loss(trial: Trial) -> float:
        return planted.get((trial.l2_clip_norm or 0.0, trial.epsilon or 0.0), 0.1)

    def noisy(trial: Trial) -> float:
        """At ε = 1, C = 3 is as good as C = 1 on test, but for chance."""
        same = (trial.l2_clip_norm, trial.epsilon) == (3.0, 1.0)
        return 0.25 + by_chance(trial) if same else loss(trial)

    shown = show("clip_norm", noisy, validation=loss)
    assert shown.headline == ("At ε = 1 the best clip norm is 1 (AUC 0.7350), at ε = 8 it is 3 (AUC 0.7850).")
    table = shown.tables[0]
    assert list(table.columns) == ["ε", "C = 1", "C = 3", "C = 30"]
    found = rows_of(table)
    assert found["1"]["C = 1"] == text_of(0.75)
    assert found["1"]["C = 3"].startswith("0.7350 ± ")
    assert found["1"]["C = 3"].endswith(" ≈")
    assert found["1"]["C = 30"] == text_of(0.6)
    assert found["8"] == {"C = 1": text_of(0.76), "C = 3": text_of(0.8), "C = 30": text_of(0.7)}
    assert f"baseline has {text_of(0.9)}." in table.caption
    assert [[cell.strong for cell in row[1:]] for row in table.rows] == [
        [True, False, False],
        [False, True, False],
    ]
    # Sorted by a column, a row is where its score belongs.
    assert [row[1].sort for row in table.rows] == pytest.approx([0.735, 0.745])
    records = csv_of(table)
    assert [(row["method"], row["epsilon"]) for row in records] == [
        ("non-private", "inf"),
        *((f"C = {c}", epsilon) for epsilon in ("1", "8") for c in (1, 3, 30)),
    ]
    assert float(records[3]["loss_mean"]) == pytest.approx(0.415)
    assert float(records[3]["score"]) == pytest.approx(0.585)
    assert (records[3]["seeds"], records[3]["trainings"], records[3]["l2_clip_norm"]) == ("4", "4", "30")


@pytest.mark.parametrize("name", ["clip_norm", "large_batch"])
def test_the_papers_numbers_stand_beside_ours(name: str) -> None:
    paper = pipeline_of(name).paper
    table = next(table for table in show(name, lambda trial: 0.2).tables if table.name == "paper")
    found = rows_of(table)
    assert list(found) == ["0.5", "3", "8"]
    for method, by_epsilon in paper.items():
        for epsilon, value in by_epsilon.items():
            assert found[f"{epsilon:g}"][method] == f"{value:.4f}"


# Table 3.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_large_batches_are_better_if_they_are(effect: float, verdict: Verdict) -> None:
    shown = show("large_batch", lambda trial: 0.25 + (effect + by_chance(trial)) * (trial.batch_size == 1024))
    assert verdicts(shown) == [verdict] * 2
    assert f"from {0.735 - effect:.4f} (batch 1,024 · 8 epochs) to 0.7350 (batch 8,192 · 32 epochs)" in shown.headline
    assert rows_of(shown.tables[0])["8"]["batch 8,192 · 32 epochs"].startswith(text_of(0.75))


def test_arms_go_by_size_and_not_by_their_place_in_the_grid() -> None:
    sweeping = SWEEPS["large_batch"]
    turned = sweeping._replace(methods=sweeping.methods[::-1])
    losses = {1024: 0.3, 8192: 0.2}
    shown = show("large_batch", lambda trial: losses.get(trial.batch_size, 0.1), turned)
    assert verdicts(shown) == ["shown"] * 2


# Figure 1.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_what_is_best_without_privacy_is_not_with_it_if_so(effect: float, verdict: Verdict) -> None:
    def is_reused(trial: Trial) -> bool:
        return (trial.optimizer, trial.learning_rate) == ("yogi", 0.01)

    def loss(trial: Trial) -> float:
        return 0.25 + (effect + by_chance(trial)) * (trial.epsilon is not None and is_reused(trial))

    def validation(trial: Trial) -> float:
        best = is_reused(trial) if trial.epsilon is None else (trial.optimizer, trial.learning_rate) == ("sgd", 0.1)
        return 0.2 if best else 0.3

    shown = show("optimizers", loss, validation=validation)
    assert verdicts(shown) == [verdict] * 2
    assert shown.headline == "Without privacy yogi · 0.01 is best, at ε = 1 it is sgd · 0.1."
    assert "The thick line is yogi · 0.01" in shown.figures[0].caption
    assert f"AUC {text_of(0.75)} with sgd · 0.1" in shown.findings[0].evidence


def test_the_non_private_choice_may_be_the_private_one_too() -> None:
    shown = show("optimizers", lambda trial: 0.2 + 0.1 * (trial.optimizer == "sgd") + trial.learning_rate / 100)
    assert verdicts(shown) == ["not shown"] * 2
    assert "yogi · 0.01 is the best private choice too" in shown.findings[0].evidence


def test_the_non_private_choice_may_not_have_been_tried() -> None:
    sweeping = SWEEPS["optimizers"]._replace(methods=settings(optimizer=["sgd"], learning_rate=[0.1]))
    shown = show("optimizers", lambda trial: 0.2 + 0.1 * (trial.optimizer == "sgd") + trial.learning_rate, sweeping)
    assert verdicts(shown) == ["not shown"] * 2
    assert "yogi · 0.01 was not tried with privacy" in shown.findings[0].evidence


# Figure 3.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_microbatches_help_if_they_do(effect: float, verdict: Verdict) -> None:
    chosen_by = {(1.0, 1): 0.30, (8.0, 1): 0.29, (1.0, 4): 0.28, (8.0, 4): 0.27}

    def loss(trial: Trial) -> float:
        return 0.25 + (effect + by_chance(trial)) * (trial.epsilon is not None and trial.microbatch_size == 1)

    def validation(trial: Trial) -> float:
        return chosen_by.get((trial.l2_clip_norm or 0.0, trial.microbatch_size), 0.1)

    assert verdicts(show("microbatch", loss, validation=validation)) == [verdict] * 4


@pytest.mark.parametrize(
    ("losses", "ways"),
    [
        ({(1, 1): 4, (8, 1): 3, (1, 4): 2, (8, 4): 1}, [(1, 1), (8, 1), (1, 4), (8, 4)]),
        ({(1, 1): 1, (8, 1): 2, (1, 4): 3, (8, 4): 4}, [(1, 1), (1, 1), (1, 1), (1, 1)]),
        ({(1, 1): 2, (8, 1): 1, (1, 4): 3, (8, 4): 4}, [(1, 1), (8, 1), (1, 1), (8, 1)]),
        ({(1, 1): 3, (8, 1): 4, (1, 4): 1, (8, 4): 2}, [(1, 1), (1, 1), (1, 4), (1, 4)]),
    ],
    ids=["both", "neither", "C", "m"],
)
def test_the_four_ways_to_tune_c_and_m(losses: dict[tuple[int, int], int], ways: list[tuple[int, int]]) -> None:
    def loss(trial: Trial) -> float:
        return losses[int(trial.l2_clip_norm), trial.microbatch_size] / 10 if trial.l2_clip_norm else 0.05

    shown = show("microbatch", loss)
    table, everything = shown.tables
    assert list(table.columns) == ["ε", "neither", "C alone", "m alone", "both"]
    expected = [f"{text_of(1 - losses[way] / 10)} (C = {way[0]} · m = {way[1]})" for way in ways]
    assert [list(row.values()) for row in rows_of(table).values()] == [expected] * 2
    assert rows_of(everything)["1"]["C = 8 · m = 4"].startswith(text_of(1 - losses[8, 4] / 10))
    assert all(text.split(" (")[0] in shown.headline for text in expected[1:])
    # Where validation chooses the same, tuning more did not help.
    same = [ways[0] == ways[2], ways[1] == ways[3]]
    assert verdicts(shown) == [("not shown" if one else "shown") for one in same] * 2


# Figure 4(a).


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_less_noise_gives_a_better_model_if_it_does(effect: float, verdict: Verdict) -> None:
    shown = show("accountants", lambda trial: 0.25 + (effect + by_chance(trial)) * (trial.accountant == "RDP"))
    assert verdicts(shown) == ["shown", verdict, verdict]
    assert shown.headline == "PLD accounting needs 20.0 to 20.0 % less noise than RDP for the same ε."
    assert rows_of(shown.tables[1])["8"] == {"PLD": "1.0000", "RDP": "1.2500", "less": "20.0 %"}
    assert list(shown.tables[0].columns) == ["ε", "PLD", "RDP"]


def test_the_noise_of_accountants_is_compared_at_the_same_settings() -> None:
    """Validation chooses large batches, which need more noise, for RDP alone."""
    noises = {("tightest", 100): 1.0, ("RDP", 100): 1.1, ("tightest", 400): 2.0, ("RDP", 400): 2.2}
    methods = [
        functools.partial(private, task="pctr", accountant=name, batch_size=size, noise_multiplier=noise)
        for (name, size), noise in noises.items()
    ]

    def loss(trial: Trial) -> float:
        return 0.2 if trial.batch_size == (400 if trial.accountant == "RDP" else 100) else 0.3

    shown = show("accountants", loss, SWEEPS["accountants"]._replace(methods=methods))
    assert rows_of(shown.tables[1])["1"] == {"PLD": "1.0000", "RDP": "1.1000", "less": "9.1 %"}
    assert shown.findings[0].verdict == "shown"


def test_an_accountant_that_asks_for_more_noise() -> None:
    more = [
        functools.partial(private, task="pctr", accountant=name, noise_multiplier=noise)
        for name, noise in (("tightest", 1.25), ("RDP", 1.0))
    ]
    shown = show("accountants", lambda trial: 0.25, SWEEPS["accountants"]._replace(methods=more))
    assert verdicts(shown) == ["not shown", "within noise", "within noise"]


# Figure 5.


@pytest.mark.parametrize(("effect", "verdict"), VERDICTS)
def test_label_dp_is_ahead_at_large_budgets_alone_if_it_is(effect: float, verdict: Verdict) -> None:
    def loss(trial: Trial) -> float:
        if trial.epsilon is None:
            return 0.1
        loses = (trial.mechanism == "label_dp") == (trial.epsilon == 1)
        return 0.25 + (effect + by_chance(trial)) * loses

    shown = show("label_dp", loss)
    # Two responses for each of two tasks, at two budgets.
    assert verdicts(shown) == [verdict] * 8
    assert [table.name for table in shown.tables] == ["table", "table_pconvs"]
    assert list(shown.tables[0].columns) == [
        *("ε", "DP-SGD", "randomised response", "randomised response · debiased"),
    ]
    assert list(shown.tables[1].columns) == [
        *("ε", "DP-SGD", "randomised response on counts", "randomised response on bins"),
    ]
    assert f"baseline has {text_of(0.9)}." in shown.tables[0].caption
    assert f"baseline has {text_of(0.1, task='pconvs')}." in shown.tables[1].caption


EPSILONS = (0.5, 1.0, 3.0, 10.0)


def crossing(gain: Callable[[float], float]) -> tuple[Exhibit, str]:
    """What is said of one response that is ahead of DP-SGD by this much."""
    sweeping = Sweeping(settings(baseline), [*settings(), *settings(of_labels)], EPSILONS)

    def loss(trial: Trial) -> float:
        return 0.25 - gain(trial.epsilon or 1.0) * (trial.mechanism == "label_dp")

    shown = show("label_dp", loss, sweeping)
    said = shown.headline.removeprefix("Where LabelDP overtakes DP-SGD: pCTR, randomised response: ")
    assert said in shown.notes[0]
    return shown, said


@pytest.mark.parametrize("where", [0.6, 0.99, 1.7, 4.4, 9.5])
def test_where_label_dp_overtakes(where: float) -> None:
    """With a difference that is a line over log ε, it is exactly where the line crosses zero."""
    shown, said = crossing(lambda epsilon: 0.01 * math.log(epsilon / where))
    before = max(epsilon for epsilon in EPSILONS if epsilon < where)
    after = min(epsilon for epsilon in EPSILONS if epsilon > where)
    assert said == f"between ε = {before:g} and {after:g}, at about {where:.2g}."
    assert verdicts(shown) == ["shown", "shown"]


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ((0.1, 0.1, 0.2, 0.3), "ahead at every ε from 0.5."),
        ((-0.1, -0.1, -0.01, 0.0), "behind at every ε up to 10."),
        ((-0.1, 0.1, -0.1, 0.1), "no single crossing: ahead at ε = 1, 10."),
        ((0.1, 0.1, -0.1, -0.1), "no single crossing: ahead at ε = 0.5, 1."),
        ((-0.1, 0.0, 0.1, 0.1), "between ε = 1 and 3, at about 1."),
    ],
)
def test_there_may_be_no_place_where_label_dp_overtakes(gains: Sequence[float], said: str) -> None:
    assert crossing(lambda epsilon: dict(zip(EPSILONS, gains, strict=True)).get(epsilon, 0.0))[1] == said


# What may go wrong in any sweep.


def plain(trial: Trial) -> float:
    return 0.2 + 0.01 / (trial.epsilon or 10.0) + (trial.l2_clip_norm or 0.0) / 1000


COMPARING = [name for name in SWEEPS if name != "relative_loss"]


@pytest.mark.parametrize("name", SWEEPS)
def test_one_seed_is_never_more_than_noise(name: str) -> None:
    shown = show(name, plain, SWEEPS[name]._replace(seeds=1))
    told = [finding for finding in shown.findings if "over 1 seed)" in finding.evidence]
    assert {finding.verdict for finding in told} <= {"within noise"}
    assert "over 1 seed" in " ".join(table.caption for table in shown.tables)
    assert "±" not in "".join(cell.text for table in shown.tables for row in table.rows for cell in row)


@pytest.mark.parametrize("name", SWEEPS)
def test_one_budget(name: str) -> None:
    shown = show(name, plain, SWEEPS[name]._replace(epsilons=(3.0,)))
    assert "3" in rows_of(shown.tables[0])
    assert "against" not in "".join(finding.claim for finding in shown.findings)


@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "accountants"])
def test_one_method(name: str) -> None:
    """There is no other that it could be better than."""
    one = SWEEPS[name]._replace(baselines=SWEEPS[name].baselines[:1], methods=SWEEPS[name].methods[:1])
    shown = show(name, plain, one)
    assert "shown" not in verdicts(shown) or name == "relative_loss"
    assert len(shown.tables[0].rows) >= 2


def test_one_accountant_is_none_to_compare() -> None:
    for methods in (SWEEPS["accountants"].methods[:1], SWEEPS["accountants"].methods[1:]):
        with pytest.raises(UserError, match=r"give `accountant: \[tightest, RDP\]`"):
            show("accountants", plain, SWEEPS["accountants"]._replace(methods=methods))


def test_label_dp_alone_has_nothing_to_overtake() -> None:
    sweeping = SWEEPS["label_dp"]._replace(baselines=settings(baseline), methods=settings(of_labels))
    assert "randomised response: nothing to compare with." in show("label_dp", plain, sweeping).headline


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("which", [0, -1], ids=["first", "last"])
def test_a_method_that_always_diverges(name: str, which: int) -> None:
    sweeping = SWEEPS[name]
    gone = {
        make(epsilon=epsilon, seed=seed)
        for make in (sweeping.methods[which],)
        for epsilon, seed in itertools.product(sweeping.epsilons, range(SEEDS))
    }
    shown = show(name, lambda trial: None if trial in gone else plain(trial))
    texts = [cell.text for table in shown.tables for row in table.rows for cell in row]
    assert sum(text.startswith("diverged") for text in texts) >= 2
    assert not any(
        cell.strong for table in shown.tables for row in table.rows for cell in row if "diverged" in cell.text
    )
    empty = [row for table in shown.tables if table.records for row in csv_of(table) if row["seeds"] == "0"]
    assert len(empty) == 2
    assert {row["loss_mean"] + row["score"] for row in empty} == {""}


@pytest.mark.parametrize("name", COMPARING)
@pytest.mark.parametrize("epsilons", [(1.0,), (8.0,), (1.0, 8.0)], ids=str)
def test_where_every_method_diverges(name: str, epsilons: tuple[float, ...]) -> None:
    shown = show(name, lambda trial: None if trial.epsilon in epsilons else plain(trial))
    for epsilon in epsilons:
        assert {text.split(" (")[0] for text in list(rows_of(shown.tables[0])[f"{epsilon:g}"].values())} == {"diverged"}
    told = [finding for finding in shown.findings if "noise than RDP" not in finding.claim]
    if len(epsilons) == 2:
        assert "shown" not in {finding.verdict for finding in told}


@pytest.mark.parametrize("name", ["clip_norm", "large_batch", "optimizers", "microbatch", "accountants"])
@pytest.mark.parametrize("diverges", [False, True], ids=["finite", "diverged"])
def test_another_task_is_judged_by_its_own_loss(name: str, diverges: bool) -> None:
    """Pipelines may be given counts instead: their loss is shown as it is, and it is no AUC."""
    sweeping = SWEEPS[name]

    def counting(make: Callable[..., Trial]) -> Callable[..., Trial]:
        return functools.partial(make, task="pconvs")

    sweeping = sweeping._replace(
        baselines=[counting(make) for make in sweeping.baselines], methods=[counting(make) for make in sweeping.methods]
    )
    last = sweeping.methods[-1](epsilon=1.0, seed=0).model_copy(update={"epsilon": None, "seed": 0})

    def loss(trial: Trial) -> float | None:
        same = trial.model_copy(update={"epsilon": None, "seed": 0}) == last
        return None if diverges and same else plain(trial)

    shown = show(name, loss, sweeping)
    said = [
        shown.headline,
        *(f.evidence for f in shown.findings),
        *(t.title for t in shown.tables),
        *(f.title for f in shown.figures),
    ]
    assert "AUC" not in "".join(text for text in said if "paper" not in text)
    assert "Poisson log loss" in "".join(said)
    finite = min(cell.text for row in shown.tables[0].rows for cell in row[1:] if cell.text)
    assert float(finite.split()[0]) < 0.3
