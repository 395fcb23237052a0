"""Any log file is prepared, refused with a sentence that names it, or has bad rows put aside."""

from __future__ import annotations

import gzip
import io
import tempfile
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pyarrow.parquet as pq
import pytest

from tasks.config.dataset import Dataset
from tasks.data.preparation import prepare
from tasks.data.prepared import open_prepared
from tasks.runtime.errors import UserError
from tests.fuzzing import fuzz
from tests.support.raw_logs import HUGE, NAMES, PARQUET, TEXTS, TINY, good_lines, good_table

FORMS = [*TEXTS, "parquet"]


def _good(form: str) -> bytes:
    if form == "parquet":
        packed = io.BytesIO()
        pq.write_table(good_table(), packed)
        return packed.getvalue()
    header = [(b"," if form.startswith("csv") else b"\t").join(name.encode() for name in NAMES)]
    return b"".join(line + b"\n" for line in [*(header if "header" in form else []), *good_lines(form)])


GOOD = {form: _good(form) for form in FORMS}
# What breaks parsers: separators, quotes, line ends, numbers at limits, text that is no UTF-8, magic numbers.
PIECES = [
    *(b"", b"\n", b"\r\n", b"\r", b"\t", b",", b'"', b'""', b"\0", b"\xff", b"\xef\xbb\xbf", b"\xc3", b"-", b" "),
    *(b"nan", b"-inf", b"1e308", b"1e-400", b"9" * 40, b"-1", b"0x10", b"1_0", b"2023-02-30", b"0001-01-01T00:00:00"),
    *(b"9999-12-31T23:59:59", b"99999999999999999999", b"-9223372036854775809", b"16777217", b"\xe2\x80\xa8"),
    *(b"<script>", b"{}", b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PAR1", b"a" * 5000, b"\xf0\x9f\x92\xa9", b"\xed\xa0\x80"),
]
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["insert", "replace", "delete", "repeat", "cut", "flip", "head"]),
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=12)),
        st.integers(0, 200),
    ),
    max_size=6,
)


def edited(content: bytes, edits: list[tuple[float, str, bytes, int]]) -> bytes:
    """Returns a file after some edits, each at a place from 0 to 1."""
    for where, what, piece, size in edits:
        at = int(where * len(content))
        before, after = content[:at], content[at:]
        if what == "insert":
            content = before + piece + after
        elif what == "replace":
            content = before + piece + after[len(piece) :]
        elif what == "delete":
            content = before + after[size:]
        elif what == "repeat":
            content = before + after[:size] * 3 + after[size:]
        elif what == "cut":
            content = before
        elif what == "flip" and after:
            content = before + bytes([after[0] ^ (1 << size % 8)]) + after[1:]
        elif what == "head":
            content = piece + content
    return content


def check_log(
    *, form: str, edits: list[tuple[float, str, bytes, int]], packed: bool, small: bool, min_count: int
) -> None:
    """Asserts that an edited log is prepared or refused, and says so in words."""
    description = Dataset.model_validate(PARQUET if form == "parquet" else TEXTS[form])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("DP_ADS_HOME", f"{folder}/home")
        raw = Path(folder) / "raw"
        content = edited(GOOD[form], edits)
        raw.write_bytes(gzip.compress(content, 1) if packed else content)
        try:
            made = prepare("logs", description, raw, min_count=min_count, block_bytes=TINY if small else HUGE)
        except UserError:
            return
        prepared = open_prepared(made)
        assert sum(split["rows"] for split in prepared.splits.values()) == prepared.statistics["rows"]


STRATEGIES = {
    "form": st.sampled_from(FORMS),
    "edits": EDITS,
    "packed": st.booleans(),
    "small": st.booleans(),
    "min_count": st.integers(1, 3),
}


@hypothesis.given(**STRATEGIES)
@hypothesis.settings(max_examples=12, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_log_is_prepared_or_refused(form, edits, packed, small, min_count) -> None:
    check_log(form=form, edits=edits, packed=packed, small=small, min_count=min_count)


@pytest.mark.fuzz
def test_logs_for_minutes() -> None:
    fuzz(check_log, **STRATEGIES)
