"""Models to measure: the paper's, and a small one for trying a benchmark."""

from __future__ import annotations

from tasks.speed.workloads import RandomWorkload

# Criteo's vocabularies, with which the paper's model has 10,908,057 parameters.
_CRITEO_VOCABULARIES = (
    *(1472, 577, 82741, 18940, 305, 23, 1172, 633, 3, 9090, 5918, 64300, 3207),
    *(27, 1550, 44262, 10, 5485, 2161, 3, 56473, 17, 15, 27360, 104, 12934),
)

WORKLOADS = {
    "paper": RandomWorkload(_CRITEO_VOCABULARIES, 13, (598,) * 4),
    "small": RandomWorkload((1000, 30), 4, (32,)),
}
