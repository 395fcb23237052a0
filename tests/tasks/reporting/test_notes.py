"""Notes below a sweep's results: each is there exactly when it applies."""

from __future__ import annotations

from tasks.reporting.notes import fairness_notes
from tasks.reporting.results import Outcome, choose
from tests.support.sweeps import baseline, of_labels, outcomes, private


def notes(found: list[Outcome], columns: tuple[str, ...] = ()) -> str:
    return " ".join(fairness_notes(choose(found, columns)))


def test_what_epsilon_and_the_spread_cover_is_always_said() -> None:
    text = notes(outcomes())
    assert "The ε of a cell is that of the one training whose model is kept" in text
    assert "Standard deviations are over seeds" in text


def test_an_unequal_number_of_trainings_is_said() -> None:
    """DP-SGD has two clip norms and two seeds, LabelDP one setting and two seeds."""
    assert "numbers of trainings" not in notes(outcomes())
    labels = [Outcome(of_labels(epsilon=1.0, task="pcvr", seed=seed), 0.3, 0.3) for seed in (0, 1)]
    assert "different numbers of trainings to choose from (2, 4 per cell)" in notes([*outcomes(), *labels])
    assert "numbers of trainings" not in notes([*outcomes(), *labels], ("l2_clip_norm",))


def test_noise_of_the_papers_scale_is_said() -> None:
    def scaled(sensitivity: str) -> list[Outcome]:
        trial = private(epsilon=1.0, microbatch_size=4, sensitivity=sensitivity)
        return [Outcome(baseline(), 0.2, 0.2), Outcome(trial, 0.3, 0.3)]

    assert "`sensitivity: paper`" in notes(scaled("paper"))
    assert "`sensitivity: paper`" not in notes(scaled("proven"))


def test_fixed_seeds_are_said() -> None:
    assert "must not be released" in notes(outcomes())
    secret = [Outcome(found.trial.model_copy(update={"randomness": "secret"}), 0.2, 0.2) for found in outcomes()]
    assert "must not be released" not in notes(secret)


def test_unlike_guarantees_are_said() -> None:
    """LabelDP protects labels only. All samplers have the same neighbours."""
    labels = [Outcome(of_labels(epsilon=1.0, task="pcvr", seed=seed), 0.3, 0.3) for seed in (0, 1)]
    assert "LabelDP protects only the labels" in notes([*outcomes(), *labels])
    assert "not the same guarantee" not in notes(outcomes())
    shuffled = [Outcome(private(epsilon=1.0, sampler="shuffle", seed=seed), 0.3, 0.3) for seed in (0, 1)]
    assert "not the same guarantee" not in notes([*outcomes(), *shuffled], ("sampler",))


def test_one_seed_is_said() -> None:
    text = notes([found for found in outcomes() if found.trial.seed == 0])
    assert "There is one seed" in text
    assert "Standard deviations" not in text
    assert "There is one seed" not in notes(outcomes())


def test_one_training_per_cell_is_no_choice() -> None:
    one = [Outcome(baseline(), 0.2, 0.2), Outcome(private(epsilon=1.0), 0.3, 0.3)]
    assert "choosing among several trainings" not in notes(one)
    assert "choosing among several trainings" in notes(outcomes())
