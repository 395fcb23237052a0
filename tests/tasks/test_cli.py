"""The command line: its help, its answers and its error messages."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dp_core.accounting.epsilon import epsilon_bound
from dp_core.accounting.events import poisson_event
from tasks.cli import main
from tasks.runtime import airflow_home
from tasks.runtime.home import CHECKOUT

VERBS = (
    *("run", "up", "validate", "generate", "describe", "prepare", "plan"),
    *("train", "next-round", "audit", "measure", "report", "releases", "epsilon", "calibrate"),
)
EXAMPLES = 36_672_493
PAPER_RUN = ("--examples", str(EXAMPLES), "--batch-size", "65536", "--epochs", "150")
SMALL_RUN = ("--examples", "1000", "--batch-size", "100", "--steps", "10")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "home"
    monkeypatch.setenv("DP_ADS_HOME", str(folder))
    monkeypatch.delenv("DP_ADS_CONFIG", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    yield folder
    kept = {str(path.relative_to(folder).parent) for path in folder.rglob("*.json")} if folder.exists() else set()
    assert kept <= {"cache/accounting"}, "only answers about accounting are cached"


def shell(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``python -m tasks`` as a user does."""
    command = [sys.executable, "-m", "tasks", *arguments]
    return subprocess.run(
        command, cwd=CHECKOUT, env=os.environ | environment, capture_output=True, text=True, timeout=120, check=False
    )


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(arguments) == 0
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Returns the error message of a command that must fail, whether argparse or we print it."""
    try:
        status = main(arguments)
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert "Traceback" not in captured.err
    last = captured.err.splitlines()[-1]
    assert "error: " in last
    return last.split("error: ", 1)[1]


class TestHelp:
    def test_names_every_verb(self) -> None:
        done = shell("--help")
        assert done.returncode == 0
        for verb in VERBS:
            assert re.search(rf"^    {verb}\s+\w", done.stdout, re.MULTILINE), verb
        assert "differential privacy" in done.stdout
        steps = " ".join(done.stdout.split())
        assert "To do them one by one: prepare, plan, train, audit, report." in steps
        assert "A pipeline that trains nothing: prepare, plan, measure, report." in steps

    @pytest.mark.parametrize("verb", VERBS)
    def test_explains_every_option(self, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as stop:
            main([verb, "--help"])
        assert stop.value.code == 0
        text = capsys.readouterr().out
        assert text.count("\n  -") >= 2
        # The explanation follows two spaces, or is on the next line.
        assert re.findall(r"^  -[^ ]+(?: [A-Z_]+)?(?=\n  -|\n\n|\n$)", text, re.MULTILINE) == []

    @pytest.mark.parametrize(
        ("verb", "words"),
        [
            ("run", ["smoke, quick (the default) or paper", "pctr,pcvr", "1,10", "default: relative_loss", "--raw"]),
            ("up", ["Airflow UI", "MLflow", "8080", "5000", "127.0.0.1", "Ctrl-C"]),
            ("validate", ["pipelines.yaml"]),
            ("generate", ["synthetic", "--rows", "--profile"]),
            ("train", ["the latest", "--number", "HOST:PORT", "process 0"]),
            ("epsilon", ["poisson (the default)", "shuffle", "default: 1/N", "--steps", "clip norm", "one user"]),
            ("calibrate", ["budget", "default: 1/N", "--epochs"]),
        ],
    )
    def test_says_what_a_newcomer_needs(self, verb: str, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        text = capsys.readouterr().out
        assert [word for word in words if word not in text] == []


class TestAccounting:
    def test_epsilon_of_the_papers_run(self) -> None:
        done = shell("epsilon", *PAPER_RUN, "--noise-multiplier", "1.0", "--json")
        assert (done.returncode, done.stderr) == (0, "")
        result = json.loads(done.stdout)
        assert 3.68 <= result["epsilon"] <= 3.72
        assert result["rdp_epsilon"] == pytest.approx(3.93, abs=0.02)
        assert result["delta"] == 1 / EXAMPLES
        assert result["sampling_probability"] == 65_536 / EXAMPLES
        assert (result["sampler"], result["accountant"], result["converged"]) == ("poisson", "PLD", True)
        assert 0.99 * result["epsilon"] <= result["epsilon_lower"] <= result["epsilon"]
        assert result["neighboring_relation"] == "replace_special"

    def test_calibration_keeps_the_budget(self, capsys: pytest.CaptureFixture[str]) -> None:
        result = answer(capsys, "calibrate", *PAPER_RUN, "--epsilon", "3.0", "--json")
        event = poisson_event(
            sampling_probability=65_536 / EXAMPLES,
            noise_multiplier=result["noise_multiplier"],
            steps=result["steps"],
        )
        assert 0.995 * 3 <= epsilon_bound(event, 1 / EXAMPLES).epsilon <= 3.0
        assert 0.995 * 3 <= result["epsilon"] <= 3.0
        assert (result["target_epsilon"], result["delta"]) == (3.0, 1 / EXAMPLES)

    def test_several_budgets_at_once_and_again_from_memory(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Cached answers do not load an accountant."""
        arguments = ("calibrate", *SMALL_RUN, "--epsilon", "0.5,1,3,5,10,30,50", "--json")
        first = answer(capsys, *arguments)
        assert [item["target_epsilon"] for item in first] == [0.5, 1, 3, 5, 10, 30, 50]
        for item in first:
            assert 0.995 * item["target_epsilon"] <= item["epsilon"] <= item["target_epsilon"]
        code = f"import sys, tasks.cli; tasks.cli.main({list(arguments)}); print('dp_accounting' in sys.modules)"
        done = subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, capture_output=True, text=True, check=True)
        *text, loaded = done.stdout.splitlines()
        assert json.loads("\n".join(text)) == first
        assert loaded == "False"

    def test_shuffled_batches_get_no_amplification(self, capsys: pytest.CaptureFixture[str]) -> None:
        run = ("--examples", "573440", "--batch-size", "1024", "--epochs", "1", "--delta", "2.7e-8")
        arguments = ("epsilon", *run, "--noise-multiplier", "0.8", "--sampler", "shuffle")
        result = answer(capsys, *arguments, "--json")
        assert 7.1 <= result["epsilon_lower"] <= result["epsilon"] <= 7.25
        assert result["poisson_epsilon_not_valid_here"] == pytest.approx(1.24, abs=0.01)
        assert result["neighboring_relation"] == "replace_special"
        assert main(list(arguments)) == 0
        text = capsys.readouterr().out
        assert "no amplification by sampling" in text
        assert "Not valid here: 1.24" in text

    def test_balls_in_bins_are_worth_about_as_much_as_poisson_samples(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("epsilon", *SMALL_RUN, "--noise-multiplier", "1", "--json")
        bins = answer(capsys, *arguments, "--sampler", "balls_in_bins")
        poisson = answer(capsys, *arguments)
        assert 0.5 * poisson["epsilon"] < bins["epsilon"] < 1.2 * poisson["epsilon"]
        assert (bins["rdp_epsilon"], bins["epsilon_lower"]) == (None, None)
        assert "poisson_epsilon_not_valid_here" not in bins

    def test_several_examples_of_one_user(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("epsilon", *SMALL_RUN, "--noise-multiplier", "4")
        one, three = (answer(capsys, *arguments, "--group-size", size, "--json") for size in ("1", "3"))
        assert 2 * one["epsilon"] < three["epsilon"] < 6 * one["epsilon"]
        assert main([*arguments, "--group-size", "3"]) == 0
        assert "for 3 examples of one user" in capsys.readouterr().out
        assert main([*arguments, "--group-size", "1001"]) == 2
        assert "a group of 1,001 is larger than the 1,000 examples" in capsys.readouterr().err

    def test_steps_and_delta_can_be_given(self, capsys: pytest.CaptureFixture[str]) -> None:
        arguments = ("epsilon", *SMALL_RUN, "--noise-multiplier", "2", "--json")
        result = answer(capsys, *arguments, "--delta", "1e-5")
        assert (result["steps"], result["delta"]) == (10, 1e-5)
        assert result["epsilon"] > answer(capsys, *arguments)["epsilon"]

    def test_answers_in_words(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["epsilon", *SMALL_RUN, "--noise-multiplier", "2"]) == 0
        text = capsys.readouterr().out
        assert text.startswith("ε = ")
        assert "at δ = 0.001" in text
        assert "10 steps, Poisson sampling at probability 0.1" in text

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ("epsilon", "--examples", "10", "--batch-size", "20", "--epochs", "1", "--noise-multiplier", "1"),
                "a batch of 20 is larger than the 10 examples",
            ),
            (("epsilon", *SMALL_RUN, "--noise-multiplier", "1", "--delta", "1"), "delta must be below 1, got 1"),
            (("epsilon", *SMALL_RUN, "--noise-multiplier", "1", "--delta", "2.5"), "delta must be below 1, got 2.5"),
            (
                ("epsilon", *SMALL_RUN, "--noise-multiplier", "-1"),
                "argument --noise-multiplier: expected a positive number, got '-1'",
            ),
            (
                ("calibrate", *SMALL_RUN, "--epsilon", "inf"),
                "argument --epsilon: expected a positive number, got 'inf'",
            ),
            (
                ("calibrate", *SMALL_RUN, "--epsilon", "nan"),
                "argument --epsilon: expected a positive number, got 'nan'",
            ),
            (
                ("calibrate", *SMALL_RUN[2:], "--examples", "-5", "--epsilon", "1"),
                "argument --examples: expected a positive whole number, got '-5'",
            ),
            (
                ("calibrate", *SMALL_RUN[2:], "--examples", "1e6", "--epsilon", "1"),
                "argument --examples: expected a positive whole number, got '1e6'",
            ),
            (
                ("calibrate", *SMALL_RUN, "--epochs", "1", "--epsilon", "1"),
                "argument --epochs: not allowed with argument --steps",
            ),
            (
                ("calibrate", *SMALL_RUN[:4], "--epsilon", "1"),
                "one of the arguments --epochs --steps is required",
            ),
            (("epsilon", *SMALL_RUN), "the following arguments are required: --noise-multiplier"),
        ],
    )
    def test_refuses(self, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert refusal(capsys, *arguments) == message

    def test_refuses_a_budget_out_of_reach(self, capsys: pytest.CaptureFixture[str]) -> None:
        message = refusal(capsys, "calibrate", *PAPER_RUN, "--epsilon", "1e-9")
        assert message.startswith("the accountant cannot work this out: ")


class TestValidate:
    def test_the_shipped_file(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["validate"]) == 0
        expected = f"{CHECKOUT / 'pipelines.yaml'} is valid: 8 datasets, 3 profiles, 10 pipelines, 1 nightly retrain\n"
        assert capsys.readouterr().out == expected

    def test_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        expected = {"valid": True, "datasets": 8, "profiles": 3, "pipelines": 10, "nightly": 1}
        assert answer(capsys, "validate", "--json") == expected

    def test_a_file_with_mistakes(self, tmp_path: Path) -> None:
        path = tmp_path / "own.yaml"
        text = (CHECKOUT / "pipelines.yaml").read_text()
        path.write_text(text.replace("seeds: 5", "seeds: five", 1).replace("evaluations: 2", "evaluation: 2"))
        done = shell("validate", "--json", DP_ADS_CONFIG=str(path))
        assert (done.returncode, done.stdout) == (2, "")
        first, second = done.stderr.splitlines()
        assert first.startswith("error: own.yaml:")
        assert "profiles.smoke.evaluation: unknown key (did you mean 'evaluations'?)" in first
        assert "pipelines.relative_loss.grids.paper.seeds: input should be a valid integer, got 'five'" in second

    def test_no_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        monkeypatch.setenv("DP_ADS_CONFIG", str(tmp_path / "nowhere.yaml"))
        expected = f"cannot read the configuration {tmp_path / 'nowhere.yaml'}: No such file or directory"
        assert refusal(capsys, "validate") == expected


class TestRefusals:
    @pytest.fixture(autouse=True)
    def airflow_stays_off(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Options are checked before anything is started."""

        def started(*arguments: Any) -> None:
            raise AssertionError("Airflow was started")

        monkeypatch.setattr(airflow_home, "_set_up", started)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (
                ("run", "--dataset", "criteo_kaggle", "--tasks", "pctr", "--raw", "/nowhere"),
                "Raw log: the raw log /nowhere does not exist",
            ),
            (
                ("run", "--raw", "/nowhere"),
                "Raw log: it is for one Dataset, but the tasks read synthetic_display and synthetic_clicks: choose one",
            ),
            (
                ("run", "--dataset", "criteo_kagle"),
                "Dataset: unknown dataset 'criteo_kagle' (did you mean 'criteo_kaggle'?); "
                "known: synthetic_display, synthetic_clicks, heavy_display, heavy_clicks, synthetic_days, "
                "criteo_kaggle, criteo_attribution, criteo_search",
            ),
            (
                ("run", "--profile", "huge"),
                "Profile: unknown profile 'huge'; known: smoke, quick, paper",
            ),
            (("prepare", "--tasks", ","), "Prediction tasks: choose at least one of pCTR, pCVR, pConvs"),
            (("plan", "--epsilons", "2,2"), "Privacy budgets ε: 2 is listed twice"),
            (("run", "--seeds", "500"), "Seeds: 500 is too many; at most 100"),
            (
                ("generate", "nothing"),
                "unknown dataset 'nothing'; known: synthetic_display, synthetic_clicks, heavy_display, heavy_clicks, "
                "synthetic_days, criteo_kaggle, criteo_attribution, criteo_search",
            ),
            (
                ("generate", "criteo_kaggle"),
                "dataset 'criteo_kaggle' is not synthetic, so there is nothing to generate",
            ),
            (
                ("generate", "synthetic_display", "--rows", "0"),
                "argument --rows: expected a positive whole number, got '0'",
            ),
            (("train", "--number", "0"), "argument --number: expected a positive whole number, got '0'"),
            (
                ("up", "--airflow-port", "70000"),
                "AIRFLOW_PORT must be from 1 to 65535, got 70000",
            ),
            (
                ("up", "--airflow-port", "5000"),
                "AIRFLOW_PORT and MLFLOW_PORT are both 5000: choose different ports",
            ),
        ],
    )
    def test_one_line_says_what_is_wrong(
        self, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert refusal(capsys, *arguments) == message

    @pytest.mark.parametrize("verb", ["train", "audit", "report"])
    def test_steps_that_need_a_plan(self, verb: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
        plan = home / "runs" / "relative_loss" / "latest" / "plan.json"
        expected = f"no plan at {plan}: make one with `python -m tasks plan --pipeline relative_loss`"
        assert refusal(capsys, verb) == expected

    def test_a_step_of_an_unknown_pipeline(self, capsys: pytest.CaptureFixture[str]) -> None:
        message = refusal(capsys, "train", "--pipeline", "relative_los")
        assert message.startswith("unknown pipeline 'relative_los' (did you mean 'relative_loss'?); known: ")

    def test_an_unknown_verb(self) -> None:
        done = shell("rnu")
        assert (done.returncode, done.stdout) == (2, "")
        last = done.stderr.splitlines()[-1]
        assert last.startswith("python -m tasks: error: argument verb: invalid choice: 'rnu'")
        assert "run" in last

    def test_no_verb(self) -> None:
        done = shell()
        assert done.returncode == 2
        assert done.stderr.splitlines()[-1] == "python -m tasks: error: the following arguments are required: verb"
