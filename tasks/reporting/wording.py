"""Settings and their values in the words of tables, legends and captions."""

from __future__ import annotations

from typing import Any

from dp_core.models.spec import ModelSpec
from tasks.config.pipeline import MechanismName, RecipeName
from tasks.reporting.axes import number_text
from tasks.runtime.progress import counted
from tasks.training.trial import RESPONSES

MECHANISM_TITLES: dict[MechanismName, str] = {
    "non_private": "non-private",
    "dp_sgd": "DP-SGD",
    "label_dp": "LabelDP",
    "clipped_only": "clipped, no noise",
}
RECIPE_TITLES: dict[RecipeName, str] = {"ours": "ours", "paper_recipe": "paper's recipe"}
_SETTING_TITLES = {
    "epsilon": "ε budget",
    "target_delta": "δ",
    "optimizer": "optimiser",
    "l2_clip_norm": "clip norm C",
    "microbatch_size": "microbatch size m",
    "debias": "debiasing",
    "warmup": "warm-up",
    "recalibration_epsilon": "recalibration ε",
    "initial_bias_epsilon": "ε of the initial bias",
}
# A setting's title in a sentence, where it is not the header with an article.
_NOUNS = {"debias": "debiasing", "epochs": "the number of epochs", "bands": "the number of bands"}
# A value in a phrase that stands without the setting's title.
_PHRASES = {
    "l2_clip_norm": "C = {}",
    "microbatch_size": "m = {}",
    "batch_size": "batch {}",
    "clipping": "{} clipping",
    "clip_quantile": "quantile {}",
    "momentum": "momentum {}",
    "sensitivity": "sensitivity {}",
    "largest_count": "largest count {}",
    "averaging": "{} averaging",
    "averaging_share": "averaging share {}",
    "warmup": "warm-up {}",
    "weight_decay": "weight decay {}",
    "bands": "bands {}",
    "table_updates": "{} table updates",
    "recalibration": "recalibration {}",
    "recalibration_epsilon": "recalibration ε {}",
    "learning_rate_per": "rate per {}",
}


def setting_title(name: str) -> str:
    """Returns a setting's name as a table header.

    >>> setting_title("learning_rate"), setting_title("l2_clip_norm")
    ('learning rate', 'clip norm C')
    """
    return _SETTING_TITLES.get(name, name.replace("_", " "))


def setting_noun(name: str) -> str:
    """Returns a setting's name as the subject of a sentence.

    >>> setting_noun("learning_rate"), setting_noun("debias")
    ('the learning rate', 'debiasing')
    """
    return _NOUNS.get(name, f"the {setting_title(name)}")


def value_text(name: str, value: Any) -> str:
    """Returns a setting's value as a table cell.

    >>> value_text("batch_size", 8192), value_text("debias", True), value_text("sampler", "balls_in_bins")
    ('8,192', 'yes', 'balls in bins')
    >>> value_text("target_delta", 1 / 120_000), value_text("learning_rate", 0.0002)
    ('8.33333·10⁻⁶', '0.0002')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return number_text(float(f"{value:g}")) if 0 < abs(value) < 1e-4 else f"{value:g}"
    if isinstance(value, int):
        return f"{value:,}"
    if name == "accountant":
        return "PLD" if value == "tightest" else str(value)
    if name == "response":
        return RESPONSES[value]
    if name in ("sampler", "learning_rate_per"):
        return str(value).replace("_", " ")
    if isinstance(value, ModelSpec):
        # Two models may differ in their layers alone.
        layers = "-".join(map(str, value.hidden_layers or ()))
        return f"{value.label}, layers {layers}" if layers else value.label
    return str(value)


def phrase(name: str, value: Any) -> str:
    """Returns a value that a reader recognises without the setting's title.

    >>> phrase("batch_size", 8192), phrase("l2_clip_norm", 1.0), phrase("optimizer", "sgd")
    ('batch 8,192', 'C = 1', 'sgd')
    >>> phrase("epochs", 1.0), phrase("epochs", 32.0), phrase("debias", False)
    ('1 epoch', '32 epochs', 'not debiased')
    """
    if name == "debias":
        return "debiased" if value else "not debiased"
    if name == "epochs":
        return counted(float(value), "epoch")
    return _PHRASES.get(name, "{}").format(value_text(name, value))
