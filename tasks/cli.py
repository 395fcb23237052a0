"""The command line: ``python -m tasks <verb>``. Every step is the function that the DAG calls."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

from tasks.errors import UserError
from tasks.grids import SamplerName
from tasks.home import home

# Heavy libraries are imported by the verbs that need them: `--help` and `validate` stay quick.


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; 0 if it went well, 2 if the user has something to put right."""
    options = _parser().parse_args(arguments)
    try:
        if options.json:
            with _standard_output_as_errors():
                options.action(options)
            print(json.dumps(options.result, indent=2))
        else:
            options.action(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tasks",
        description="Train ad-prediction models with differential privacy and see what it costs.",
        epilog="Steps one by one: generate, prepare, plan, train, audit, report (for some pipelines: "
        "generate, prepare, plan, measure, report). All at once, through Airflow: run.",
    )
    verbs = parser.add_subparsers(required=True, metavar="verb")

    verb = _verb(verbs, "run", _run, "run a pipeline, or all of them, through its Airflow DAG and print its table")
    _selection_arguments(verb)
    verb = _verb(verbs, "up", _up, "start the Airflow UI and an MLflow server, until Ctrl-C")
    verb.add_argument("--airflow-port", type=int, default=8080, help="default: 8080")
    verb.add_argument("--mlflow-port", type=int, default=5000, help="default: 5000")
    verb.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1, this machine)")
    _verb(verbs, "validate", _validate, "check pipelines.yaml")

    verb = _verb(verbs, "generate", _generate, "make a dataset's synthetic log, with the best loss it allows")
    verb.add_argument("dataset", help="a synthetic dataset of pipelines.yaml")
    verb.add_argument("--profile", default="quick", help="sets the number of rows (default: quick)")
    verb.add_argument("--rows", type=_positive(int), help="number of rows, instead of the profile's")
    verb = _verb(verbs, "describe", _describe, "draft the description of a log for pipelines.yaml from its files")
    verb.add_argument("files", nargs="+", help="a file, a folder, a pattern in quotes, or several of these")
    verb.add_argument("--name", help="what to call the dataset (default: after the file)")
    verb = _verb(verbs, "prepare", _prepare, "split, transform and encode the datasets of a pipeline")
    _selection_arguments(verb)
    verb.add_argument(
        "--refit", action="store_true", help="make a new vocabulary where the dataset keeps an earlier one"
    )
    verb = _verb(verbs, "plan", _plan, "prepare, then list the trials of a pipeline with their noise")
    _selection_arguments(verb)
    verb = _verb(verbs, "train", _train, "train the trials of a plan")
    _planned_run_arguments(verb, "only the trial with this number")
    several = verb.add_argument_group("several processes", "each trains a part of every batch, on devices of its own")
    several.add_argument("--processes", type=_positive(int), default=1, help="how many there are (default: 1)")
    several.add_argument("--process", type=int, default=0, help="which of them this is, from 0; the first one writes")
    several.add_argument("--coordinator", help="host:port, where the first listens and the others find it")
    verb = _verb(verbs, "audit", _audit, "recompute ε of the trained trials from their records")
    _planned_run_arguments(verb, "only the trial with this number")
    verb = _verb(verbs, "measure", _measure, "compute or measure what a plan without trials is about")
    _planned_run_arguments(verb)
    verb = _verb(verbs, "report", _report, "audit the trained trials of a plan and make its page and tables")
    _planned_run_arguments(verb)

    verb = _verb(verbs, "releases", _releases, "the ε of publishing several trained models of the same data")
    verb.add_argument("trials", nargs="+", help="keys of trained trials: the names of their folders in trials/")
    verb.add_argument("--delta", type=_positive(float), help="default: the trials' own")

    verb = _verb(verbs, "epsilon", _epsilon, "the ε of DP-SGD with given noise")
    _mechanism_arguments(verb)
    verb.add_argument("--noise-multiplier", type=_positive(float), required=True, help="σ, in units of the clip norm")
    verb.add_argument(
        "--group-size", type=_positive(int), default=1, help="for so many examples of one user (default: 1)"
    )
    verb = _verb(verbs, "calibrate", _calibrate, "the noise multiplier that a budget ε needs")
    _mechanism_arguments(verb)
    verb.add_argument(
        "--epsilon",
        type=_list_of(_positive(float)),
        required=True,
        help="the budget that must not be exceeded, or several: 1,10",
    )
    return parser


def _verb(verbs: Any, name: str, action: Callable[[argparse.Namespace], None], text: str) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    verb.add_argument("--json", action="store_true", help="print the result as JSON, for a program to read")
    verb.set_defaults(action=action, result=None)
    return verb


def _selection_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--pipeline", default="relative_loss", help="default: relative_loss")
    verb.add_argument("--profile", help="how large: smoke, quick (the default) or paper")
    verb.add_argument("--dataset", help="a dataset of pipelines.yaml, for all tasks")
    verb.add_argument("--raw", help="the raw log of --dataset: a file, a folder or a pattern in quotes")
    verb.add_argument("--tasks", type=_list_of(str), help="for example pctr,pcvr (default: the pipeline's)")
    verb.add_argument("--epsilons", type=_list_of(_positive(float)), help="for example 1,10 (default: the grid's)")
    verb.add_argument("--seeds", type=_positive(int), help="how many seeds to average over (default: the grid's)")


def _planned_run_arguments(verb: argparse.ArgumentParser, number_help: str | None = None) -> None:
    verb.add_argument("--pipeline", default="relative_loss", help="default: relative_loss")
    verb.add_argument("--run", default="latest", help="the planned run's name (default: the latest)")
    if number_help:
        verb.add_argument("--number", type=_positive(int), help=number_help)


def _mechanism_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--examples", type=_positive(int), required=True, help="N, the number of training examples")
    verb.add_argument("--batch-size", type=_positive(int), required=True, help="expected batch size")
    duration = verb.add_mutually_exclusive_group(required=True)
    duration.add_argument("--epochs", type=_positive(float), help="passes over the examples, on average")
    duration.add_argument("--steps", type=_positive(int), help="instead of --epochs")
    verb.add_argument("--delta", type=_positive(float), help="default: 1/N")
    verb.add_argument(
        "--sampler",
        choices=get_args(SamplerName),
        default="poisson",
        help="how batches are made: poisson (the default); balls_in_bins, one batch an epoch for each example by "
        "itself; shuffle, batches of one size from a shuffled epoch",
    )


def _positive(kind: type) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = kind(text)
        except ValueError:
            value = None
        if value is None or not 0 < value < float("inf"):
            raise argparse.ArgumentTypeError(f"expected a positive {kind.__name__}, got {text!r}")
        return value

    return parse


def _list_of(parse: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    def parse_all(text: str) -> list[Any]:
        values = [parse(part.strip()) for part in text.split(",") if part.strip()]
        if not values:
            raise argparse.ArgumentTypeError(f"expected a list such as a,b, got {text!r}")
        return values

    return parse_all


def _selection(options: argparse.Namespace) -> dict[str, Any]:
    names = ("pipeline", "profile", "dataset", "raw", "tasks", "epsilons", "seeds")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _show(options: argparse.Namespace, result: Any, text: str) -> None:
    options.result = result
    if not options.json:
        print(text)


@contextlib.contextmanager
def _standard_output_as_errors() -> Iterator[None]:
    """Progress goes to standard error, and so does what libraries print by themselves: a program reads the rest."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def _run(options: argparse.Namespace) -> None:
    chosen = _selection(options)
    if chosen["pipeline"] != "all":
        options.result = _run_one(chosen, quiet=options.json)
        return
    from tasks.config import load_config

    options.result = [_run_one({**chosen, "pipeline": name}, quiet=options.json) for name in load_config().pipelines]


def _run_one(chosen: dict[str, Any], *, quiet: bool) -> dict[str, str]:
    from tasks.run import run_pipeline

    made = run_pipeline(chosen)
    if not quiet:
        _print_report(made)
    return made


def _print_report(made: dict[str, str]) -> None:
    from tasks.report_files import print_report

    print_report(Path(made["page"]).parent)
    print(f"Page: {made['page']}")


def _up(options: argparse.Namespace) -> None:
    from tasks.up import up

    up(options.airflow_port, options.mlflow_port, options.host)


def _validate(options: argparse.Namespace) -> None:
    from tasks.config import config_path, load_config

    config = load_config()
    counts = {name: len(getattr(config, name)) for name in ("datasets", "profiles", "pipelines")}
    summary = ", ".join(f"{count} {name}" for name, count in counts.items())
    _show(options, {"valid": True, **counts}, f"{config_path()} is valid: {summary}")


def _generate(options: argparse.Namespace) -> None:
    from tasks.config import load_config
    from tasks.synthetic import generate, read_ceiling

    config = load_config()
    synthetic = config.dataset(options.dataset).synthetic
    if synthetic is None:
        raise UserError(f"dataset {options.dataset!r} is not synthetic: there is nothing to generate")
    rows = options.rows or config.profile(options.profile).synthetic_rows
    path = generate(synthetic.kind, rows, synthetic.seed)
    _show(options, {"path": str(path), "ceiling": read_ceiling(path)}, str(path))


def _prepare(options: argparse.Namespace) -> None:
    from tasks.datasets import prepare_datasets

    prepared = prepare_datasets(_selection(options), refit=options.refit)
    _show(
        options,
        prepared,
        "\n".join(f"{item['dataset']}: {item['path']}, described in {item['data_card']}" for item in prepared),
    )


def _describe(options: argparse.Namespace) -> None:
    from tasks.describe import describe

    found = describe(options.files, name=options.name)
    text = found.pop("text")
    _show(options, found, text)


def _plan(options: argparse.Namespace) -> None:
    from tasks.datasets import prepare_datasets
    from tasks.plan import plan

    selection = _selection(options)
    planned = plan(selection, prepare_datasets(selection))
    left = sum(len(group["items"]) for group in planned["groups"])
    _show(options, planned, f"{left} trials to train in {planned['run']}")


def _train(options: argparse.Namespace) -> None:
    from tasks.groups import in_groups
    from tasks.hardware import join_processes
    from tasks.train import train

    if options.processes > 1:
        if options.coordinator is None:
            raise UserError("several processes need --coordinator host:port to find each other")
        join_processes(options.coordinator, options.processes, options.process)
    groups = in_groups(_planned_items(options))
    trained = [one for group in groups for one in train(group) or ()]
    _show(options, trained, f"{len(trained)} trials trained")


def _audit(options: argparse.Namespace) -> None:
    from tasks.audit import audit
    from tasks.trained import find_trained

    audited = [audit(find_trained(item)) for item in _planned_items(options)]
    _show(options, audited, f"{len(audited)} trials audited, each within its budget")


def _measure(options: argparse.Namespace) -> None:
    from tasks.measure import measure

    run = measure(str(_planned_run(options)))
    _show(options, {"run": run}, run)


def _report(options: argparse.Namespace) -> None:
    from tasks.report import report

    options.result = report(str(_planned_run(options)))
    if not options.json:
        _print_report(options.result)


def _planned_run(options: argparse.Namespace) -> Path:
    return (home() / "runs" / options.pipeline / options.run).resolve()


def _planned_items(options: argparse.Namespace) -> list[dict[str, Any]]:
    from tasks.plan import read_plan

    items = read_plan(_planned_run(options))["items"]
    if options.number is None:
        return items
    if options.number > len(items):
        raise UserError(f"there is no trial {options.number}: the plan has {len(items)}")
    return [items[options.number - 1]]


def _releases(options: argparse.Namespace) -> None:
    from tasks.releases import releases

    found = releases(options.trials, options.delta)
    lines = [
        f"{item['dataset']}: publishing {len(item['trials'])} model{'s' if len(item['trials']) > 1 else ''} has "
        f"ε = {item['epsilon']:.4f} at δ = {item['delta']:.3g}{' for labels alone' * (item['protects'] == 'labels')}"
        for item in found
    ]
    _show(options, found, "\n".join(lines))


def _epsilon(options: argparse.Namespace) -> None:
    from tasks.questions import epsilon_answer

    found = epsilon_answer(_training(options), noise_multiplier=options.noise_multiplier, group_size=options.group_size)
    of = "" if options.group_size == 1 else f" for {options.group_size} examples of one user"
    lines = [f"{_epsilon_line(found)}{of}; {_batches_line(found)}"]
    if found["epsilon_lower"] is not None:
        lines.append(f"No accounting of it can be below {found['epsilon_lower']:.4f}.")
    claim = found.get("poisson_epsilon_not_valid_here")
    if claim is not None:
        lines.append(f"Not valid here: {claim:.4f}, what the same numbers would be worth for Poisson samples.")
    _show(options, found, "\n".join(lines))


def _calibrate(options: argparse.Namespace) -> None:
    from tasks.questions import calibration_answer

    found = [calibration_answer(_training(options), epsilon=epsilon) for epsilon in options.epsilon]
    lines = [f"noise multiplier {item['noise_multiplier']:.6g}: {_epsilon_line(item)}" for item in found]
    _show(options, found[0] if len(found) == 1 else found, "\n".join(lines))


def _training(options: argparse.Namespace) -> Any:
    from tasks.questions import Training

    return Training(
        examples=options.examples,
        batch_size=options.batch_size,
        sampler=options.sampler,
        steps=options.steps,
        epochs=options.epochs,
        delta=options.delta,
    )


def _epsilon_line(found: dict[str, Any]) -> str:
    if found["epsilon"] is None:
        return "no ε: there is no bound"
    other = "" if found["rdp_epsilon"] is None else f"; RDP gives {found['rdp_epsilon']:.4f}"
    return f"ε = {found['epsilon']:.4f} at δ = {found['delta']:.3g} ({found['accountant']}{other})"


def _batches_line(found: dict[str, Any]) -> str:
    probability = f"probability {found['sampling_probability']:.3g}"
    kinds = {
        "poisson": f"Poisson sampling at {probability}",
        "balls_in_bins": f"balls in bins, at {probability} for each batch",
        "shuffle": "shuffled batches, with no amplification by sampling",
    }
    return f"{found['steps']:,} steps, {kinds[found['sampler']]}, neighbours: {found['neighboring_relation']}"
