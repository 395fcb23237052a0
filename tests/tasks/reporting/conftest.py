"""The prepared log that tests of data cards share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tasks.data.prepared import Prepared
from tests.support.timed_log import prepared_from, raw_table


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prepared]:
    folder = tmp_path_factory.mktemp("timed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", str(folder / "home"))
        yield prepared_from(folder, raw_table())
