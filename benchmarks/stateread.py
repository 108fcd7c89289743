"""How fast state is read as columns: by one process without Spark, and as a DataFrame, by the kind of its values."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tailrace.state.format import TableInfo
from tailrace.state.manifest import StateFile
from tailrace.statedata.columns import StateColumns
from tailrace.statedata.newcheckpoint import CheckpointPlan, complete, new_folder
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.writing import NewTable, OperatorJob, entry_batch, write_parts

KINDS: dict[str, tuple[TableInfo, Any, Callable[[int], Any]]] = {
    "int": (TableInfo("state", "value", "pickle", "int"), int, lambda i: i),
    "text": (TableInfo("state", "value", "pickle", "str"), str, lambda i: f"a text of some length, {i}"),
    "tuple": (TableInfo("state", "value", "pickle", "object"), object, lambda i: (i, i / 2, f"text {i}")),
    "list": (TableInfo("state", "list", "pickle", "int"), int, lambda i: [i, i + 1, i + 2]),
    "map": (TableInfo("state", "map", "pickle", "str, int"), (str, int), lambda i: {"one": i, "two": i}),
    "msgspec list": (TableInfo("state", "list", "msgspec", "int"), int, lambda i: [i, i + 1, i + 2]),
}


@dataclass(frozen=True)
class StateReadSpec:
    kind: str = "int"
    entries: int = 1_000_000
    spark: int = 1  # 0: without
    parallelism: int = 2

    @classmethod
    def of(cls, options: dict[str, str], **more: Any) -> StateReadSpec:
        kind = {"kind": options["kind"]} if "kind" in options else {}
        rest = {name: int(value) for name, value in options.items() if name != "kind"}
        return replace(cls(**more), **kind, **rest)


def run(spec: StateReadSpec) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        path = make(spec, f"{folder}/state")
        writing = time.perf_counter() - begun
        stored = StoredCheckpoint.open(path)
        begun = time.process_time()
        entries = sum(batch.num_rows for batch in _read(stored))
        reading = time.process_time() - begun
        assert entries == spec.entries
        return {
            "bytes": stored.manifest.size,
            "written_per_second": round(spec.entries / writing),
            "read_per_core_second": round(spec.entries / reading),
            **(_with_spark(spec, path) if spec.spark else {}),
        }


def _read(stored: StoredCheckpoint) -> Any:
    columns = StateColumns(stored, "operator", "state")
    schema = columns.schema()
    for part in columns.parts():
        yield from columns.batches(part, schema)


def make(spec: StateReadSpec, folder: str) -> str:
    """A checkpoint with so many entries."""
    info, type_, value = KINDS[spec.kind]
    job = OperatorJob(folder, None, "job", 128, "operator", "operator", (NewTable(info, type_),))
    store = new_folder(folder, "job")
    batch = entry_batch(job, 0, [(i, value(i)) for i in range(spec.entries)]).sort_by("group")
    reports = [row for one in write_parts([batch], job, 0) for row in one.to_pylist()]
    files = [StateFile(row["slot"], row["name"], row["size"]) for row in reports]
    return complete(store, CheckpointPlan("job", 128, [job]), files, 0, "run")


def _with_spark(spec: StateReadSpec, path: str) -> dict[str, Any]:
    from tailrace.spark import register
    from tailrace.spark.cluster.session import active_or_local

    spark = active_or_local(spec.parallelism)
    register(spark)
    df = spark.read.format("tailrace-state").options(uid="operator", state="state", partitions=16).load(path)
    best = 0.0
    for _ in range(3):
        begun = time.perf_counter()
        df.selectExpr("max(key)", "count(value)").collect()
        best = max(best, spec.entries / (time.perf_counter() - begun))
    return {"dataframe_per_second": round(best)}
