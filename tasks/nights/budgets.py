"""Whether data has a budget in the ledger, so that its models may only be released by nights, which charge them."""

from __future__ import annotations

from collections.abc import Iterable

from tasks.config.loading import Config
from tasks.data.prepared import Prepared
from tasks.days.deliveries import registered_datasets
from tasks.days.shared_files import budget_of_files
from tasks.ledger.book import Ledger
from tasks.runtime.errors import UserError
from tasks.runtime.home import home, read_json


def charged_budget(config: Config, dataset: str, files: Iterable[str] = ()) -> str | None:
    """Returns the budget that a release from a dataset would have to be charged to; None if there is none.

    There is one if an entry of ``nightly`` spends it now, if the ledger has been charged for it before, and if one of
    the files is among the days of another dataset with one.
    """
    own = config.budget_name(dataset)
    charged = {release.dataset for entry in Ledger.open().entries() for release in entry.reserved}
    charged |= {config.budget_name(entry.dataset) for entry in config.nightly.values()}
    other = budget_of_files(config, dataset, files)
    return next((budget for budget in (own, other) if budget in charged), None)


def raw_files(prepared: Prepared) -> list[str]:
    """Returns the paths of the raw files that prepared data was made of.

    Raises ``UserError`` if that cannot be told, because a parsed file is gone, and there are days to compare with.
    """
    parts = home() / "data" / prepared.dataset / "parts"
    found = []
    for key in read_json(prepared.path / "schema.json").get("parts", []):
        try:
            found.append(str(read_json(parts / key / "part.json")["source"]))
        except (OSError, UserError):
            if registered_datasets():
                raise UserError(
                    f"{parts / key} is gone, so that nothing tells which files {prepared.path} was made of, and "
                    f"whether they have a budget in the ledger: prepare {prepared.dataset} again"
                ) from None
    return found
