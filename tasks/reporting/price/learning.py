"""Whether the training was finished: validation loss still falling at the end, or risen from its minimum.

Learning rates decay to zero along a cosine, so that losses level off by themselves. A model was still learning if the
last part of the training (from the last evaluation but one to the end) gained more than half of what the part before
gained, and more than ``STEP`` of the loss. It was better before if the last loss is above the smallest by more than
``FLAT`` of it. Both are means over the seeds of the chosen setting. Neither is a doubt if the search tried more, or
fewer, epochs and they were worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean

from tasks.reporting.price.doubts import Doubt
from tasks.reporting.price.tuning import FLAT, Tried, longer_was_tried, shorter_was_tried
from tasks.reporting.results import Result
from tasks.runtime.progress import counted

# Share of the loss that the last part of a training must gain to be a doubt: half a percentage point of relative loss.
STEP = 0.005
# With fewer evaluations there is no part before the last one.
_FEWEST = 3

# The validation losses of a trial at its evaluations, by the trial's key.
Curves = Mapping[str, Sequence[float]]


def learning_doubts(result: Result, tried: Tried, curves: Curves) -> Iterator[Doubt]:
    """Yields whether the chosen models of a cell were still learning, or were better before the end."""
    found = [curves[one.trial.key] for one in result.chosen if one.trial.key in curves and one.test_loss is not None]
    length = min(map(len, found), default=0)
    if not found or result.arm.recipe == "paper_recipe":
        return
    curve = [fmean(losses[at] for losses in (one[-length:] for one in found)) for at in range(length)]
    epsilons = () if result.epsilon is None else (result.epsilon,)
    if length < _FEWEST:
        what = f"validation loss was computed {counted(length, 'time')}, too few to see whether it had levelled off"
        yield Doubt("few_evaluations", result.task, result.arm, epsilons, what)
        return
    last, before = curve[-2] - curve[-1], curve[-3] - curve[-2]
    scale = abs(curve[-1])
    if last > STEP * scale and last > before / 2 and not longer_was_tried(result, tried):
        what = "validation loss was still falling when training ended"
        yield Doubt("still_improving", result.task, result.arm, epsilons, what)
    risen = curve[-1] - min(curve)
    if risen > FLAT * scale and not shorter_was_tried(result, tried):
        what = "validation loss had risen from its minimum when training ended"
        yield Doubt("overfitted", result.task, result.arm, epsilons, what)
