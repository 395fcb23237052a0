"""The terms that pages explain where they first use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

_WORD = r"(?<![\w.])(?:{})(?![\w(])"
# Each term with the pattern that finds it and its explanation, in the order in which a page explains them.
_TERMS: Mapping[str, tuple[str, str]] = {
    "pCTR": (
        _WORD.format("pCTR"),
        "predicted click-through rate: the model predicts whether an ad that was shown is clicked",
    ),
    "pCVR": (
        _WORD.format("pCVR"),
        "predicted conversion rate: the model predicts whether a click leads to a conversion",
    ),
    "pConvs": (_WORD.format("pConvs"), "predicted conversions: the model predicts how many conversions follow a click"),
    "ε": (
        "ε",
        "the privacy budget: a smaller ε is more private, because the trained model depends less on any one training "
        "example",
    ),
    "δ": (
        "δ",
        "the second number of (ε, δ)-differential privacy: for one DP-SGD training 1/N, with N training examples",
    ),
    "L": (
        r"L\(",
        "the test loss: 1 − AUC for pCTR and pCVR, the Poisson log loss for pConvs. L(ε) is that of the model trained "
        "with the budget ε, L(∞) that of the model trained without privacy",
    ),
    "AUC": (
        _WORD.format("AUC"),
        "area under the ROC curve: the probability that the model ranks a positive example above a negative one. 0.5 "
        "is chance, 1 is perfect",
    ),
    "log loss": (r"(?<!Poisson )log loss", "the mean of −log p, where p is the predicted probability of the label"),
    "NE": (
        _WORD.format("NE"),
        "normalised entropy: the log loss over that of predicting the split's mean label for every row; 1 is no better "
        "than that, 0 is perfect. For pConvs, the Poisson deviance over that of the mean",
    ),
    "LLH": (_WORD.format("LLH"), "1 − NE: the share of that constant's loss which the model saves"),
    "Poisson log loss": (
        "Poisson log loss|Poisson loss",
        "exp(f) − y·f for the model's output f and the count y; lower is better, and it can be below zero",
    ),
    "DP-SGD": (
        "DP-SGD",
        "stochastic gradient descent with differential privacy: each example's gradient is clipped, and noise is added "
        "to their sum",
    ),
    "LabelDP": (
        "LabelDP",
        "differential privacy of the labels alone: the labels are randomised, the features are not protected",
    ),
    "C": (
        r"(?<![\w.])C(?=\s*=|[ ,;.)\n]|$)(?!\d)",
        "the clip norm: the largest norm that one example's gradient may have",
    ),
    "m": (
        r"(?<![\w.])m(?=\s*=\s*\d| alone| above)",
        "the microbatch size: the number of examples whose mean gradient is clipped",
    ),
    "σ": ("σ", "the noise multiplier: the noise on the sum of clipped gradients has the standard deviation σ·C"),
    "vmap": (_WORD.format("vmap"), "clipping that first computes and keeps the gradient of every single example"),
    "ghost": (
        _WORD.format("[Gg]host"),
        "ghost clipping: computes the norm of each example's gradient without keeping the gradient",
    ),
    "PLD": (_WORD.format("PLD"), "privacy loss distribution: an accounting of ε that is nearly exact"),
    "RDP": (_WORD.format("RDP"), "Rényi differential privacy: an older accounting of ε with a larger bound"),
}


def terms_in(texts: Iterable[str]) -> dict[str, str]:
    """Returns the explanations of the terms that occur in texts, and of those that these explanations use.

    >>> list(terms_in(["pCTR at ε = 1", "C = 3"])), list(terms_in(["σ = 2"]))
    (['pCTR', 'ε', 'C'], ['C', 'σ'])
    """
    whole, found = "\n".join(texts), set[str]()
    while new := {term for term, (pattern, _) in _TERMS.items() if re.search(pattern, whole)} - found:
        found |= new
        whole = "\n".join(_TERMS[term][1] for term in new)
    return {term: explanation for term, (_, explanation) in _TERMS.items() if term in found}
