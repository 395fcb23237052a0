"""The command line, ``python -m tasks <verb>``: its parser and the dispatch to the verbs in ``cli_verbs``."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from tasks import cli_ledger, cli_nights, cli_score, cli_verbs
from tasks.cli_arguments import add_verb, list_of, positive
from tasks.config.pipeline import SamplerName
from tasks.config.selection import as_list
from tasks.outages.told import said_as
from tasks.runtime.interrupted_make import watch_make


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb and returns the exit status: 0 if it succeeded, 2 for an error that the user can fix.

    A verb that looks for something, such as damage, has status 1 if it found some.
    """
    options = _parser().parse_args(arguments)
    watch_make()
    try:
        if options.json:
            with _standard_output_to_standard_error():
                answer = options.verb(options)
            print(json.dumps(answer.result, indent=2))
        else:
            answer = options.verb(options)
            if answer.text:
                print(answer.text)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        reason = said_as(error)
        if reason is None:
            raise
        print(f"error: {reason}", file=sys.stderr)
        return 2
    return answer.status


@contextlib.contextmanager
def _standard_output_to_standard_error() -> Iterator[None]:
    """Keeps standard output free for the JSON: progress, and whatever libraries print, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks",
        description="Train ad-prediction models with differential privacy, and measure what privacy costs.",
        epilog="`run` does all steps of a pipeline through Airflow. To do them one by one: prepare, plan, train, "
        "audit, report. A search in rounds: next-round and train again, until nothing is "
        "left. A pipeline that trains nothing: prepare, plan, measure, report.",
    )
    verbs = parser.add_subparsers(required=True, metavar="verb")
    _add_pipeline_verbs(verbs)
    _add_data_verbs(verbs)
    _add_step_verbs(verbs)
    _add_privacy_verbs(verbs)
    cli_nights.add_verbs(verbs)
    cli_score.add_verbs(verbs)
    cli_ledger.add_verbs(verbs)
    return parser


def _add_pipeline_verbs(verbs: Any) -> None:
    verb = add_verb(verbs, "run", cli_verbs.run, "run a pipeline through its Airflow DAG and print its table")
    _selection_arguments(verb, pipeline="pipeline to run, or `all` (default: relative_loss)")
    verb = add_verb(verbs, "up", cli_verbs.up, "serve the reports, the Airflow UI and MLflow; Ctrl-C stops them")
    verb.add_argument("--reports-port", type=int, default=8090, metavar="PORT", help="default: 8090")
    verb.add_argument("--airflow-port", type=int, default=8080, metavar="PORT", help="default: 8080")
    verb.add_argument("--mlflow-port", type=int, default=5000, metavar="PORT", help="default: 5000")
    verb.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine only)"
    )
    add_verb(verbs, "validate", cli_verbs.validate, "check pipelines.yaml and list every mistake in it")
    add_verb(verbs, "log-pending", cli_verbs.log_pending, "log runs to MLflow whose server did not answer")
    add_verb(verbs, "verify", cli_verbs.verify, "read all results and list every file that is not what was written")


def _add_data_verbs(verbs: Any) -> None:
    verb = add_verb(
        verbs,
        "generate",
        cli_verbs.generate,
        "generate a synthetic log, with the best loss that a model can reach on it",
    )
    verb.add_argument("dataset", help="a synthetic dataset of pipelines.yaml")
    verb.add_argument("--profile", default="quick", help="profile that sets the number of rows (default: quick)")
    verb.add_argument("--rows", type=positive(int), metavar="N", help="number of rows, instead of the profile's")
    verb = add_verb(
        verbs, "describe", cli_verbs.describe, "read your log files and draft their section of pipelines.yaml"
    )
    verb.add_argument("files", nargs="+", help="one or more files, folders or quoted patterns")
    verb.add_argument("--name", help="name of the dataset (default: from the file's name)")


def _add_step_verbs(verbs: Any) -> None:
    verb = add_verb(verbs, "prepare", cli_verbs.prepare, "split, transform and encode the datasets of a pipeline")
    _selection_arguments(verb)
    verb.add_argument(
        "--refit", action="store_true", help="build a new vocabulary, for a dataset that keeps an earlier one"
    )
    verb = add_verb(verbs, "plan", cli_verbs.plan, "prepare the data, then list a pipeline's trials with their noise")
    _selection_arguments(verb)
    verb = add_verb(verbs, "train", cli_verbs.train, "train the trials of a plan")
    _planned_run_arguments(verb)
    _number_argument(verb)
    several = verb.add_argument_group(
        "several processes", "start the same command in each; every process trains its share of each batch"
    )
    several.add_argument(
        "--processes", type=positive(int), default=1, metavar="N", help="number of processes (default: 1)"
    )
    several.add_argument(
        "--process", type=int, default=0, metavar="I", help="index of this process, from 0; process 0 writes the files"
    )
    several.add_argument("--coordinator", metavar="HOST:PORT", help="address on which process 0 listens for the others")
    verb = add_verb(
        verbs, "next-round", cli_verbs.next_round, "add to a trained plan what its search trains next, if anything"
    )
    _planned_run_arguments(verb)
    verb = add_verb(verbs, "audit", cli_verbs.audit, "recompute ε of a plan's trained trials from their records")
    _planned_run_arguments(verb)
    _number_argument(verb)
    verb = add_verb(
        verbs, "measure", cli_verbs.measure, "compute the noise curves or measure the speed that a plan asks for"
    )
    _planned_run_arguments(verb)
    verb = add_verb(verbs, "report", cli_verbs.report, "audit a plan's trained trials and write its page and tables")
    _planned_run_arguments(verb)


def _add_privacy_verbs(verbs: Any) -> None:
    verb = add_verb(
        verbs, "releases", cli_verbs.releases, "compute the total ε of publishing several models of the same data"
    )
    verb.add_argument(
        "trials",
        nargs="+",
        help="keys of audited trials with `randomness: secret`: the names of their folders in trials/",
    )
    verb.add_argument("--delta", type=positive(float), help="δ of the result (default: the trials' own)")
    verb = add_verb(verbs, "epsilon", cli_verbs.epsilon, "compute the ε of a DP-SGD run from its noise multiplier")
    _mechanism_arguments(verb)
    verb.add_argument(
        "--noise-multiplier",
        type=positive(float),
        required=True,
        metavar="SIGMA",
        help="σ: standard deviation of the noise, in units of the clip norm",
    )
    verb.add_argument(
        "--group-size",
        type=positive(int),
        default=1,
        metavar="K",
        help="protect K examples of one user together (default: 1)",
    )
    verb = add_verb(verbs, "calibrate", cli_verbs.calibrate, "compute the noise multiplier that a budget ε needs")
    _mechanism_arguments(verb)
    verb.add_argument(
        "--epsilon",
        type=list_of(positive(float)),
        required=True,
        help="budget that the run must not exceed, or several: 1,10",
    )


def _selection_arguments(verb: argparse.ArgumentParser, pipeline: str = "default: relative_loss") -> None:
    verb.add_argument("--pipeline", default="relative_loss", metavar="NAME", help=pipeline)
    verb.add_argument("--profile", metavar="NAME", help="scale of the run: smoke, quick (the default) or paper")
    verb.add_argument("--dataset", metavar="NAME", help="dataset of pipelines.yaml to use for all tasks")
    verb.add_argument("--raw", metavar="FILES", help="raw log of --dataset: a file, a folder or a quoted pattern")
    verb.add_argument("--tasks", type=as_list, metavar="TASK,…", help="for example pctr,pcvr (default: the pipeline's)")
    verb.add_argument("--epsilons", metavar="EPSILON,…", help="privacy budgets, for example 1,10 (default: the grid's)")
    verb.add_argument(
        "--seeds", type=_number_or_text, metavar="N", help="number of seeds to average over (default: the grid's)"
    )


def _planned_run_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--pipeline", default="relative_loss", metavar="NAME", help="default: relative_loss")
    verb.add_argument("--run", default="latest", metavar="NAME", help="name of the planned run (default: the latest)")


def _number_argument(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--number", type=positive(int), metavar="N", help="only trial N of the plan, counted from 1")


def _mechanism_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--examples", type=positive(int), required=True, metavar="N", help="N, the number of training examples"
    )
    verb.add_argument("--batch-size", type=positive(int), required=True, metavar="B", help="expected batch size")
    duration = verb.add_mutually_exclusive_group(required=True)
    duration.add_argument("--epochs", type=positive(float), help="expected number of passes over the examples")
    duration.add_argument("--steps", type=positive(int), help="number of steps, instead of --epochs")
    verb.add_argument("--delta", type=positive(float), help="default: 1/N")
    verb.add_argument(
        "--sampler",
        choices=get_args(SamplerName),
        default="poisson",
        help="how batches are drawn: poisson (the default), each example joins each batch independently; "
        "balls_in_bins, each example joins one batch of every epoch, drawn independently; shuffle, each epoch is "
        "shuffled and cut into batches of one size",
    )
    verb.add_argument(
        "--bands",
        type=positive(int),
        default=1,
        metavar="b",
        help="number of steps that noise is correlated over, with poisson (default: 1, independent noise)",
    )


def _number_or_text(text: str) -> int | str:
    """Returns the whole number, or the text: the check of the run's options says all that is wrong, at once."""
    try:
        return int(text)
    except ValueError:
        return text
