"""A data frame as Parquet files in a store, of which each rank reads its part.

Spark's tasks write with pyarrow and fsspec, and ranks read in the same way, so Hadoop need not
support the store. A rank's part is a range of the rows of all files, in order.
"""

from __future__ import annotations

import functools
import posixpath
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from horoscale.spark.store import Store, StoreError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_ROW_GROUP = 1 << 16  # rows that must be read to access one of them


class DataError(ValueError):
    """A column is unusable. The message is for the user."""


@dataclass(frozen=True)
class DataFiles:
    """The files of a written data set, and the number of rows of each."""

    store: Store
    files: tuple[str, ...]
    rows: tuple[int, ...]

    @property
    def total(self) -> int:
        """The number of rows in all files."""
        return sum(self.rows)


def write(frame: DataFrame, columns: Sequence[str], store: Store, path: str) -> DataFiles:
    """Write columns of a data frame to a folder of the store, a file for each partition.

    Raises DataError if a column is missing.
    """
    chosen = _plain(frame, columns)
    written = chosen.mapInArrow(
        functools.partial(_write_part, store, path), "file string, rows long"
    ).collect()
    parts = sorted((row["file"], row["rows"]) for row in written)
    return DataFiles(store, tuple(file for file, _ in parts), tuple(rows for _, rows in parts))


def part(rank: int, size: int, total: int) -> range:
    """Return the rows of a rank; if they do not divide evenly, the first ranks have one more."""
    each, more = divmod(total, size)
    begin = rank * each + min(rank, more)
    return range(begin, begin + each + (rank < more))


def read(data: DataFiles, rows: range, columns: Sequence[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read these rows: an array of shape (rows, ...) for each column.

    Raises:
        DataError: a column's values have different shapes.
        StoreError: this machine does not see a file of the store.
    """
    import pyarrow as pa

    tables: list[pa.Table] = []
    begin = 0
    for file, count in zip(data.files, data.rows, strict=True):
        wanted = range(max(rows.start, begin) - begin, min(rows.stop, begin + count) - begin)
        if len(wanted) > 0:
            tables += _read_rows(data.store, file, wanted, columns)
        begin += count
    if not tables:
        raise DataError(f"there are no rows {rows.start} to {rows.stop} in data of {begin} rows")
    table = pa.concat_tables(tables)
    return {name: to_array(name, table.column(name)) for name in columns}


def to_array(name: str, column: Any) -> np.ndarray[Any, Any]:
    """Convert an Arrow column of numbers, or of lists of equal length, to an array of its rows.

    Raises DataError.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if isinstance(column, pa.ChunkedArray):  # without chunks
        column = pa.array([], column.type)
    if column.null_count:
        raise DataError(f"column {name!r} has rows without a value")
    shape = [len(column)]
    while pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        values = column.flatten()
        width, rest = divmod(len(values), len(column)) if len(column) else (0, 0)
        if rest or (len(column) and not _all_have(column, width)):
            raise DataError(f"the lists of column {name!r} are not of one length")
        shape.append(width)
        column = values
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        if not pa.types.is_boolean(column.type):
            raise DataError(
                f"column {name!r} has values of type {column.type}: numbers, arrays of numbers and "
                "vectors can be trained with"
            )
        column = column.cast(pa.uint8())
    return np.array(column.to_numpy(zero_copy_only=False)).reshape(shape)


def _all_have(lists: pa.Array, width: int) -> bool:
    import pyarrow.compute as pc

    return bool(pc.all(pc.equal(pc.list_value_length(lists), width)).as_py())


def _read_rows(
    store: Store, file: str, wanted: range, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Read the row groups of a file that contain wanted rows, cut to these."""
    import pyarrow.parquet as pq

    try:
        opened = store.filesystem.open(file, "rb")
    except FileNotFoundError:
        raise StoreError(f"{file} is not there: {store._advice()}") from None
    with opened, pq.ParquetFile(opened) as parquet:
        begin = 0
        for group in range(parquet.num_row_groups):
            count = parquet.metadata.row_group(group).num_rows
            first = max(wanted.start, begin) - begin
            last = min(wanted.stop, begin + count) - begin
            if first < last:
                table = parquet.read_row_group(group, columns=list(columns))
                yield table.slice(first, last - first)
            begin += count


def _write_part(
    store: Store, path: str, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write a partition, in a task of Spark, and return its file."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark import TaskContext

    context = TaskContext.get()
    number = context.partitionId() if context is not None else 0
    # A unique name: a repeated task must not overwrite its earlier file.
    file = posixpath.join(path, f"part-{number:06d}-{uuid.uuid4().hex[:8]}.parquet")
    store.filesystem.makedirs(path, exist_ok=True)
    rows, writer, opened = 0, None, None
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            if writer is None:
                opened = store.filesystem.open(file, "wb")
                writer = pq.ParquetWriter(opened, batch.schema)
            writer.write_table(pa.Table.from_batches([batch]), row_group_size=_ROW_GROUP)
            rows += batch.num_rows
    finally:
        if writer is not None:
            writer.close()
        if opened is not None:
            opened.close()
    if rows:
        yield pa.RecordBatch.from_pydict({"file": [file], "rows": [rows]})


def _plain(frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Return columns, vectors converted to arrays. Raises DataError if one is missing."""
    check_columns(frame, columns)
    return frame.select(*(plain_column(frame, name).alias(name) for name in columns))


def check_columns(frame: DataFrame, columns: Sequence[str]) -> None:
    """Raise DataError if a data frame lacks one of these columns."""
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise DataError(
            f"the data frame has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(frame.columns)}"
        )


def plain_column(frame: DataFrame, name: str) -> Any:
    """Return a column; vectors of pyspark.ml are converted to arrays."""
    from pyspark.ml.functions import vector_to_array
    from pyspark.ml.linalg import VectorUDT
    from pyspark.sql import functions

    column = functions.col(f"`{name}`")
    if isinstance(frame.schema[name].dataType, VectorUDT):
        return vector_to_array(column, "float32")
    return column
