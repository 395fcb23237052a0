"""Every exhibit of trainings with one seed, one budget, one method, divergence or another task."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import pytest

from tasks.runtime.errors import UserError
from tasks.training.trial import Trial
from tests.support.exhibits import csv_of, rows_of, verdicts
from tests.support.sweeps import SEEDS, SWEEPS, baseline, of_labels, plain, settings, show

COMPARING = [name for name in SWEEPS if name != "relative_loss"]


@pytest.mark.parametrize("name", SWEEPS)
def test_one_seed_is_never_more_than_noise(name: str) -> None:
    shown = show(name, plain, SWEEPS[name]._replace(seeds=1))
    told = [finding for finding in shown.findings if "over 1 seed, which cannot show" in finding.evidence]
    assert {finding.verdict for finding in told} <= {"within noise"}
    captions = " ".join(table.caption for table in shown.tables)
    assert "with one seed" in captions
    assert "t-test" not in captions
    texts = "".join(cell.text for table in shown.tables for row in table.rows for cell in row)
    assert not set("±≈") & set(texts)


@pytest.mark.parametrize("name", SWEEPS)
def test_one_budget(name: str) -> None:
    shown = show(name, plain, SWEEPS[name]._replace(epsilons=(3.0,)))
    assert "3" in rows_of(shown.tables[0])
    assert "against" not in "".join(finding.claim for finding in shown.findings)


@pytest.mark.parametrize("name", [name for name in SWEEPS if name != "accountants"])
def test_one_method(name: str) -> None:
    """With one method there is nothing to compare, so no effect is shown."""
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
    """A count task shows its loss as it is, never as an AUC."""
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
