"""Log formats: the reader protocol, and the one registry that the rest of the project looks formats up in.

A format is a reader and its registration. Nothing else in the project knows formats by name. The configuration lists
the names while Airflow parses the DAGs, so this module imports readers, and with them pyarrow, only to open a file.
"""

from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from tasks.logs.expansion import is_suspicious

if TYPE_CHECKING:
    from tasks.config.dataset import Dataset
    from tasks.logs.files import RawFile
    from tasks.logs.rows import Block, Rows


class LogReader(Protocol):
    """An opened raw file. It is pickled when a cluster reads the blocks, so it holds paths and not file handles."""

    @property
    def file(self) -> RawFile: ...

    @property
    def dataset(self) -> Dataset: ...

    @property
    def schema(self) -> tuple[str | tuple[str, str], ...]:
        """The columns, or columns with their types. They must be the same in all files of a log."""

    @property
    def time_unit(self) -> str:
        """The unit of the times that ``read`` returns: s, ms, us or ns."""

    @property
    def header_lines(self) -> int:
        """Lines before the first row. They count in line numbers."""

    def blocks(self, block_bytes: int) -> list[Block]:
        """Cuts the file into blocks of about ``block_bytes`` in memory, in the order of the file."""

    def read(self, block: Block) -> Rows:
        """Reads the ``used_columns`` of the dataset, in that order and with the types that ``tasks.logs.rows`` names.

        Rows that cannot be read are returned in ``Rows.bad``.
        """


@dataclass(frozen=True)
class LogFormat:
    """How logs of one format are checked and opened.

    Attributes:
        name: The value of ``format`` in a dataset's description.
        open: Opens a raw file. The path is that of its bytes: the file's own, or of a decompressed copy. Raises a
            ``UserError`` if the file is not of this format or lacks a column that the dataset uses.
        check: Raises a ``ValueError`` if the description has keys that do not go with the format (``delimiter``,
            ``header``, ``columns``, ``time_format``) or lacks one that the format needs.
        row_word: What messages call a row: "line" if an editor shows its number, else "row".
        is_decompressed: Whether gzip and zstd files are decompressed before they are opened. Otherwise they are
            refused.
        most_rows: Returns the largest number of rows that a file can have, quickly, without reading more of it than
            a given number of rows; None if that is not known. It may return more for a file that has more.
    """

    name: str
    open: Callable[[RawFile, Path, Dataset], LogReader]
    check: Callable[[Dataset], None]
    row_word: Literal["line", "row"] = "line"
    is_decompressed: bool = True
    most_rows: Callable[[RawFile, int], int | None] = lambda file, enough: None


LOG_FORMATS: dict[str, LogFormat] = {}


def register_format(log_format: LogFormat) -> None:
    """Makes a format available under its name. Raises a ``ValueError`` if the name is taken."""
    if log_format.name in LOG_FORMATS:
        raise ValueError(f"a log format called {log_format.name!r} is registered already")
    LOG_FORMATS[log_format.name] = log_format


def _open_text(file: RawFile, content: Path, dataset: Dataset, *, delimiter: str, quotes: bool) -> LogReader:
    from tasks.logs.text import TextReader
    from tasks.logs.text_lines import Dialect

    return TextReader.open(file, content, dataset, Dialect(dataset.delimiter or delimiter, quotes))


def _open_parquet(file: RawFile, content: Path, dataset: Dataset) -> LogReader:
    from tasks.logs.parquet import ParquetReader

    return ParquetReader.open(file, dataset)


def _most_lines(file: RawFile, enough: int) -> int | None:
    if file.compression not in (None, "gzip"):
        return None
    lines = 0
    try:
        with gzip.open(file.path) if file.compression else file.path.open("rb") as opened:
            while lines < enough and (piece := opened.read(1 << 20)):
                lines += piece.count(b"\n")
                if is_suspicious(file.size, opened.tell()):
                    return None
    except (OSError, EOFError):
        return None  # reading the log says what is wrong with the file
    return lines + 1  # the last line may lack its end


def _most_parquet_rows(file: RawFile, enough: int) -> int | None:
    import pyarrow as pa
    import pyarrow.parquet

    try:
        return pyarrow.parquet.read_metadata(file.path).num_rows
    except (pa.ArrowException, OSError):
        return None  # reading the log says what is wrong with the file


def _check_text(dataset: Dataset) -> None:
    if dataset.header and dataset.columns is not None:
        raise ValueError("with `header: true` the first line names the columns: leave out `columns`")
    if not dataset.header and dataset.columns is None:
        raise ValueError(
            f"a {dataset.format} without a header needs `columns`, its columns in order; "
            "if its first line names them, set `header: true`"
        )
    if dataset.delimiter is not None and dataset.delimiter in '"\r\n':
        raise ValueError(f"the delimiter cannot be {dataset.delimiter!r}")


def _check_parquet(dataset: Dataset) -> None:
    for name in ("delimiter", "columns"):
        if getattr(dataset, name) is not None:
            raise ValueError(f"`{name}` is for text; a Parquet file has its own columns and types")
    if dataset.header:
        raise ValueError("`header` is for text; a Parquet file has its own columns")
    if dataset.time_format == "iso8601":
        raise ValueError("`time_format: iso8601` is for text; a Parquet file stores times in a type of their own")


register_format(
    LogFormat("tsv", functools.partial(_open_text, delimiter="\t", quotes=False), _check_text, most_rows=_most_lines)
)
register_format(
    LogFormat("csv", functools.partial(_open_text, delimiter=",", quotes=True), _check_text, most_rows=_most_lines)
)
register_format(
    LogFormat(
        "parquet",
        _open_parquet,
        _check_parquet,
        row_word="row",
        is_decompressed=False,
        most_rows=_most_parquet_rows,
    )
)
