"""The heads of the ledger that nights have kept, which show that it was cut, deleted or exchanged since.

Every night that was charged keeps the head of the ledger in its record. A ledger whose file was deleted together with
its anchor, restored from an old copy, or exchanged for an empty one is a good chain that has forgotten what was spent.
Its rows then contradict a head that a night has seen.
"""

from __future__ import annotations

from tasks.ledger.book import Ledger
from tasks.ledger.chain import Head
from tasks.nights.record import nights_folder, read_nights
from tasks.runtime.errors import UserError


def kept_heads() -> dict[str, Head]:
    """Returns the head that each night of this home has seen, by the name of the night."""
    root = nights_folder("")
    names = sorted(folder.name for folder in root.iterdir() if folder.is_dir()) if root.is_dir() else []
    return {
        f"night {night['day']} of {name}": Head.parse(night["ledger_head"])
        for name in names
        for night in read_nights(name)
        if "ledger_head" in night
    }


def check_kept_heads(ledger: Ledger) -> None:
    """Raises ``UserError`` if the ledger has forgotten what a night of this home was charged."""
    problems = ledger.verify(known=kept_heads()).problems
    if problems:
        raise UserError(
            f"the ledger {ledger.name} is not the one that earlier nights were charged to: {problems[0]}. What they "
            "spent would not count, so nothing is reserved. Restore it from a copy, or give its address in "
            "DP_ADS_LEDGER; `python -m tasks ledger verify` lists what is wrong"
        )
