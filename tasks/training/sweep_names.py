"""What varies within a sweep, and short names of its trials that begin with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from tasks.config.dataset import TASK_TITLES
from tasks.config.pipeline import RecipeName
from tasks.training.trial import RESPONSES, Trial

# Settings that follow from others, so that their values do not tell two trials apart.
_CONSEQUENCES = frozenset({"noise_multiplier", "target_delta", "data_fingerprint", "dataset", "sampled_like"})
# The words of a name come in this order; settings that are not here come before the seed.
_ORDER = ("task", "mechanism", "epsilon", "l2_clip_norm", "optimizer", "learning_rate", "batch_size", "epochs")
# A value in a name. Other settings are written as their name and value.
_WORDS = {
    "epsilon": "ε {}",
    "l2_clip_norm": "C {}",
    "optimizer": "{}",
    "learning_rate": "rate {}",
    "batch_size": "batch {}",
    "microbatch_size": "m {}",
    "clipping": "{} clipping",
    "clip_quantile": "quantile {}",
    "sampler": "{}",
    "model": "{}",
    "averaging": "{} average",
}
_MECHANISMS = {
    "dp_sgd": "DP-SGD",
    "label_dp": "LabelDP",
    "non_private": "non-private",
    "clipped_only": "clipped, no noise",
}


def varying_settings(trials: Iterable[Trial]) -> list[str]:
    """Returns the settings that tell the trials of a sweep apart, in the order of names.

    A setting varies if trials of one task and mechanism have different values of it: a baseline with an optimiser of
    its own does not make the optimiser vary.
    """
    trials = list(trials)
    values = defaultdict[tuple[str, str, str], set[str]](set)
    for trial in trials:
        for name, value in trial.flat_settings().items():
            values[trial.task, trial.mechanism, name].add(str(value))
    varying = {name for (_, _, name), found in values.items() if len(found) > 1} - _CONSEQUENCES
    varying |= {"task"} if len({trial.task for trial in trials}) > 1 else set()
    private = {trial.mechanism for trial in trials} - {"non_private"}
    varying |= {"mechanism"} if len(private) > 1 else set()
    return sorted(varying, key=lambda name: (name == "seed", _place(name), name))


def short_name(trial: Trial, varies: Sequence[str], recipes: Sequence[RecipeName] = ()) -> str:
    """Returns the trial's name within a sweep: what varies there, and the budget; a trial of the paper's recipe alone
    is named so.

    The settings of a non-private trial are in its name only if they vary.
    """
    settings = trial.flat_settings()
    names = [name for name in varies if name not in ("mechanism", "epsilon")]
    head = [TASK_TITLES[trial.task]] if "task" in names else []
    if trial.epsilon is None:
        head.append(_MECHANISMS[trial.mechanism])
    else:
        head += [_MECHANISMS[trial.mechanism]] if "mechanism" in varies else []
        head.append(_WORDS["epsilon"].format(f"{trial.epsilon:g}"))
        head += ["paper's recipe"] if list(recipes) == ["paper_recipe"] else []
    rest = [_words(name, settings[name]) for name in names if name != "task" and name in settings]
    return " · ".join([*head, *rest])


def _place(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _words(name: str, value: Any) -> str:
    if name == "epochs":
        return f"{value:g} epochs"
    if name == "response":
        return RESPONSES[value]
    if isinstance(value, bool):
        return f"{name} {'yes' if value else 'no'}"
    text = f"{value:g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
    return _WORDS.get(name, f"{name.replace('_', ' ')} {{}}").format(text.replace("_", " "))
