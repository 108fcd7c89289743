"""Tables of Parquet files that a DataFrame reads, and that a worker can read anew without Spark.

A folder is read whole or not at all: Spark takes away the old files, writes into `_temporary`, and moves the new ones one by
one. So the listing must be the same in front of the reading and behind it, without `_temporary`, and with `_SUCCESS` if that
was there at first.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from tailrace.errors import GraphError
from tailrace.spark.data.schemas import arrow_schema

_DONE = "_SUCCESS"
Listing = list[tuple[str, int | None, int | None]]
"""Path, size (None for a folder) and time of change of what is there."""


def table_reader(df: Any, verb: str) -> ParquetTable:
    """A function that reads the files of a DataFrame anew. Raises `GraphError` for a DataFrame that is more than the columns
    of Parquet files."""
    paths = _paths_of(df)
    if paths is None:
        raise GraphError(
            f"{verb}: with refresh a worker reads the table, without Spark: a DataFrame must be spark.read.parquet(path), "
            f"or columns of it, without partitions and options; write the rows of another one to a folder, or give a "
            f"function that reads them: lookup(lambda: pq.read_table(path), refresh=...)"
        )
    return ParquetTable(paths, arrow_schema(df.schema))


def _paths_of(df: Any) -> list[str] | None:
    """The paths of the Parquet files that are all that a DataFrame reads; None if it is more than that."""
    if getattr(df, "isStreaming", False) or not hasattr(df, "_jdf"):
        return None
    plan = df._jdf.queryExecution().analyzed()
    while _kind(plan) in ("Project", "SubqueryAlias"):
        if _kind(plan) == "Project":
            items = plan.projectList()
            if any(_kind(items.apply(at)) != "AttributeReference" for at in range(items.size())):
                return None
        plan = plan.child()
    if _kind(plan) != "LogicalRelation" or _kind(plan.relation()) != "HadoopFsRelation":
        return None
    relation = plan.relation()
    options = relation.options().keySet().toSeq()
    other = [key for at in range(options.size()) if (key := options.apply(at)) != "path"]
    plain = _kind(relation.fileFormat()) == "ParquetFileFormat" and _kind(relation.location()) == "InMemoryFileIndex"
    if other or not plain or relation.partitionSchema().size():
        return None
    roots = relation.location().rootPaths()
    return [roots.apply(at).toString() for at in range(roots.size())]


def _kind(of: Any) -> str:
    return str(of.getClass().getSimpleName()).removesuffix("$")


class ParquetTable:
    """A function that reads a table from Parquet files: of each path those that are there now."""

    def __init__(self, paths: list[str], schema: pa.Schema) -> None:
        self.paths, self.schema = paths, schema
        self.marked = [any(_name(path) == _DONE for path, _, _ in listing(*place(path))) for path in paths]
        """For each path, whether `_SUCCESS` is there at first."""

    def __call__(self) -> pa.Table:
        return pa.concat_tables([self._read(path, mark) for path, mark in zip(self.paths, self.marked, strict=True)])

    def _read(self, path: str, marked: bool) -> pa.Table:
        files, root = place(path)
        before = listing(files, root)
        names = [name for name, size, _ in before if size is not None and not _is_hidden(name, root)]
        whole = not any("_temporary" in name.split("/") for name, _, _ in before)
        if not names or not whole or (marked and not any(_name(name) == _DONE for name, _, _ in before)):
            raise OSError(f"{path} is being written: it has no whole set of files")
        tables = [self._fitting(pq.read_table(name, filesystem=files, partitioning=None), name) for name in names]
        if listing(files, root) != before:
            raise OSError(f"{path} has changed while it was read")
        return pa.concat_tables(tables)

    def _fitting(self, table: pa.Table, name: str) -> pa.Table:
        missing = [column for column in self.schema.names if column not in table.column_names]
        if missing:
            raise KeyError(f"{name} has no column {missing[0]!r}; it has {', '.join(table.column_names)}")
        return table.select(self.schema.names).cast(self.schema)


def place(path: str) -> tuple[fs.FileSystem, str]:
    """The file system of a path of Hadoop, and the path in it."""
    for given, taken in (("file:/", "file:///"), ("s3a://", "s3://"), ("s3n://", "s3://")):
        if path.startswith(given) and not path.startswith(taken):
            path = taken + path.removeprefix(given)
            break
    return fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]


def listing(files: fs.FileSystem, root: str) -> Listing:
    """The files and folders at a path, in order."""
    top = files.get_file_info(root)
    found = [top] if top.type == fs.FileType.File else files.get_file_info(fs.FileSelector(root, recursive=True))
    return sorted((one.path, one.size, one.mtime_ns) for one in found)


def _is_hidden(path: str, root: str) -> bool:
    inside = path.removeprefix(root).split("/") if path != root else []
    return any(part.startswith(("_", ".")) for part in inside)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
