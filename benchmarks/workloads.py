"""Models to measure: the paper's, and a small one for trying a benchmark."""

from __future__ import annotations

from tasks.speed.workloads import RandomWorkload

# Criteo's vocabularies, with which the paper's model has 10,908,057 parameters.
_CRITEO_VOCABULARIES = (
    *(1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207),
    *(27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934),
)

# The larger ones of them, as a lower count threshold makes them: 72.6 million parameters.
_LARGE_VOCABULARIES = tuple(int(4.925 * size) if size > 1000 else size for size in _CRITEO_VOCABULARIES)

WORKLOADS = {
    "paper": RandomWorkload(_CRITEO_VOCABULARIES, 13, (598,) * 4),
    "large": RandomWorkload(_LARGE_VOCABULARIES, 13, (598,) * 4),
    "small": RandomWorkload((1000, 30), 4, (32,)),
}
