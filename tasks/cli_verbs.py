"""The verbs of ``python -m tasks``. A step's verb calls the function that the DAG calls.

Heavy libraries are imported inside the verbs that need them, so that ``--help`` and ``validate`` stay quick.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.cli_arguments import Answer
from tasks.runtime.errors import UserError
from tasks.runtime.home import home
from tasks.runtime.progress import counted

if TYPE_CHECKING:
    from tasks.privacy.questions import AccountingAnswer, Training
    from tasks.training.items import PlannedTrial


def run(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.config.selection import without_effect

    chosen = _selection(options)
    if chosen["pipeline"] != "all":
        return Answer(_run_one(chosen, quiet=options.json))
    config = load_config()
    every = [
        {option: value for option, value in chosen.items() if option not in without_effect(pipeline)}
        | {"pipeline": name}
        for name, pipeline in config.pipelines.items()
    ]
    _check_all(every)
    return Answer([_run_one(one, quiet=options.json) for one in every])


def _check_all(every: Sequence[Mapping[str, Any]]) -> None:
    """Checks the options of several runs before the first of them starts. Problems that they share are said once."""
    from tasks.check import check

    problems: dict[str, None] = {}
    for one in every:
        try:
            check(one)
        except UserError as error:
            problems |= dict.fromkeys(str(error).splitlines())
    if problems:
        raise UserError("\n".join(problems))


def _run_one(chosen: dict[str, Any], *, quiet: bool) -> dict[str, str]:
    from tasks.runtime.dag_run import run_pipeline

    made = run_pipeline(chosen)
    if not quiet:
        _print_report(made)
    return made


def _print_report(made: dict[str, str]) -> None:
    from tasks.reporting.terminal import print_report
    from tasks.runtime.running_servers import running_servers

    page = Path(made["page"])
    print_report(page.parent)
    print(f"Page: {page}")
    servers = running_servers()
    if servers is not None:
        print(f"Open: {servers.reports}/{page.relative_to(home() / 'reports').as_posix()}")


def up(options: Namespace) -> Answer:
    from tasks.runtime.servers import Ports, up

    up(Ports(options.reports_port, options.airflow_port, options.mlflow_port), options.host)
    return Answer(None)


def validate(options: Namespace) -> Answer:
    from tasks.config.loading import config_path, load_config

    config = load_config()
    words = {"datasets": "dataset", "profiles": "profile", "pipelines": "pipeline", "nightly": "nightly retrain"}
    counts = {name: len(getattr(config, name)) for name in words}
    summary = ", ".join(counted(count, words[name]) for name, count in counts.items())
    return Answer({"valid": True, **counts}, f"{config_path()} is valid: {summary}")


def verify(options: Namespace) -> Answer:
    from tasks.verify import verify

    found = verify()
    lines = [*found["problems"]]
    if found["without_manifest"]:
        number = counted(len(found["without_manifest"]), "folder")
        lines.append(f"{number} of earlier versions without checksums: only what they hold was checked")
    checked = ", ".join(f"{number:,} {kind}" for kind, number in found["checked"].items())
    lines.append(f"verified {checked}: {counted(len(found['problems']), 'problem')}")
    return Answer(found, "\n".join(lines), status=1 if found["problems"] else 0)


def log_pending(options: Namespace) -> Answer:
    from tasks.log_pending import log_pending

    done = log_pending()
    return Answer(done, f"{counted(len(done), 'run')} logged to MLflow")


def generate(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.logs.synthetic import generate, read_ceiling

    config = load_config()
    synthetic = config.dataset(options.dataset).synthetic
    if synthetic is None:
        raise UserError(f"dataset {options.dataset!r} is not synthetic, so there is nothing to generate")
    rows = options.rows or config.profile(options.profile).synthetic_rows
    path = generate(synthetic.kind, rows, synthetic.seed, synthetic.tails)
    return Answer({"path": str(path), "ceiling": read_ceiling(path)}, str(path))


def prepare(options: Namespace) -> Answer:
    from tasks.check import check

    chosen = _selection(options)
    check(chosen)
    from tasks.prepare import prepare_datasets

    prepared = prepare_datasets(chosen, refit=options.refit)
    lines = [f"{item['dataset']}: {item['path']}; data card: {item['data_card']}" for item in prepared]
    return Answer(prepared, "\n".join(lines))


def describe(options: Namespace) -> Answer:
    from tasks.logs.draft import draft_description

    draft = draft_description(options.files, name=options.name)
    return Answer({key: value for key, value in draft.items() if key != "text"}, draft["text"])


def plan(options: Namespace) -> Answer:
    from tasks.check import check

    selection = _selection(options)
    check(selection)
    from tasks.plan import plan
    from tasks.prepare import prepare_datasets

    planned = plan(selection, prepare_datasets(selection))
    left = sum(len(group["items"]) for group in planned["groups"])
    return Answer(planned, f"{counted(left, 'trial')} to train in {planned['run']}")


def train(options: Namespace) -> Answer:
    from tasks.train import train
    from tasks.training.groups import in_groups
    from tasks.training.hardware import join_processes

    if options.processes > 1:
        if options.coordinator is None:
            raise UserError(f"--processes {options.processes} needs --coordinator HOST:PORT, where the processes meet")
        join_processes(options.coordinator, options.processes, options.process)
    groups = in_groups(_planned_items(options))
    trained = [one for group in groups for one in train(group) or ()]
    return Answer(trained, f"{counted(len(trained), 'trial')} trained")


def next_round(options: Namespace) -> Answer:
    from tasks.next_round import next_round

    run = str(_planned_run(options))
    groups = next_round(run)
    if groups is None:
        return Answer({"run": run, "groups": []}, "nothing is left to train")
    left = sum(len(group["items"]) for group in groups)
    return Answer({"run": run, "groups": groups}, f"{counted(left, 'trial')} to train in {run}")


def audit(options: Namespace) -> Answer:
    from tasks.audit import audit_group
    from tasks.privacy.statement import audits_line
    from tasks.training.finished import FinishedTrial
    from tasks.training.logged import find_finished

    audited = audit_group([find_finished(item) for item in _planned_items(options)])
    return Answer(audited, audits_line([FinishedTrial.open(item["trial"]).audit for item in audited]))


def measure(options: Namespace) -> Answer:
    from tasks.measure import measure

    run = measure(str(_planned_run(options)))
    return Answer({"run": run}, run)


def report(options: Namespace) -> Answer:
    from tasks.report import report

    made = report(str(_planned_run(options)))
    if not options.json:
        _print_report(made)
    return Answer(made)


def _selection(options: Namespace) -> dict[str, Any]:
    names = ("pipeline", "profile", "dataset", "raw", "tasks", "epsilons", "seeds")
    return {name: getattr(options, name) for name in names if getattr(options, name) is not None}


def _planned_run(options: Namespace) -> Path:
    from tasks.config.loading import load_config

    run = (home() / "runs" / options.pipeline / options.run).resolve()
    if not run.exists():
        load_config().pipeline(options.pipeline)  # raises if there is no such pipeline
    return run


def _planned_items(options: Namespace) -> list[PlannedTrial]:
    from tasks.config.loading import load_config
    from tasks.training.items import read_plan

    load_config()  # imports the plug-ins, which may have registered a trial's model
    items = read_plan(_planned_run(options))["items"]
    if options.number is None:
        return items
    if options.number > len(items):
        raise UserError(f"there is no trial {options.number}: the plan has trials 1 to {len(items)}")
    return [items[options.number - 1]]


def releases(options: Namespace) -> Answer:
    from tasks.config.loading import load_config
    from tasks.privacy.releases import releases

    load_config()  # imports the plug-ins, which may have registered a trial's model
    found = releases(options.trials, options.delta)
    lines = [
        f"{item['dataset']}: publishing {counted(len(item['trials']), 'model')} has "
        f"ε = {item['epsilon']:.4f} at δ = {item['delta']:.3g}{' for labels only' * (item['protects'] == 'labels')}"
        for item in found
    ]
    return Answer(found, "\n".join(lines))


def epsilon(options: Namespace) -> Answer:
    from tasks.privacy.questions import epsilon_answer

    found = epsilon_answer(_training(options), noise_multiplier=options.noise_multiplier, group_size=options.group_size)
    of = "" if options.group_size == 1 else f" for {options.group_size} examples of one user"
    lines = [f"{_epsilon_line(found)}{of}; {_batches_line(found)}"]
    if found["epsilon_lower"] is not None:
        lines.append(f"Lower bound: no accountant can give less than {found['epsilon_lower']:.4f}.")
    claim = found.get("poisson_epsilon_not_valid_here")
    if claim is not None:
        lines.append(f"Not valid here: {claim:.4f}, the ε of the same run with Poisson sampling.")
    return Answer(found, "\n".join(lines))


def calibrate(options: Namespace) -> Answer:
    from tasks.privacy.questions import calibration_answer

    found = [calibration_answer(_training(options), epsilon=epsilon) for epsilon in options.epsilon]
    lines = [f"noise multiplier {item['noise_multiplier']:.6g}: {_epsilon_line(item)}" for item in found]
    return Answer(found[0] if len(found) == 1 else found, "\n".join(lines))


def _training(options: Namespace) -> Training:
    from tasks.privacy.questions import Training

    return Training(
        examples=options.examples,
        batch_size=options.batch_size,
        sampler=options.sampler,
        steps=options.steps,
        epochs=options.epochs,
        delta=options.delta,
        bands=options.bands,
    )


def _epsilon_line(found: AccountingAnswer) -> str:
    if found["epsilon"] is None:
        return "no finite ε bounds this run"
    other = "" if found["rdp_epsilon"] is None else f"; RDP gives {found['rdp_epsilon']:.4f}"
    return f"ε = {found['epsilon']:.4f} at δ = {found['delta']:.3g} ({found['accountant']}{other})"


def _batches_line(found: AccountingAnswer) -> str:
    probability = f"probability {found['sampling_probability']:.3g}"
    kinds = {
        "poisson": f"Poisson sampling at {probability}",
        "balls_in_bins": f"balls in bins at {probability} per batch",
        "shuffle": "shuffled batches, no amplification by sampling",
    }
    if found["bands"] > 1:
        kinds["poisson"] += f" per batch, noise correlated over {found['bands']} steps"
    return f"{found['steps']:,} steps, {kinds[found['sampler']]}, neighbours: {found['neighboring_relation']}"
