"""Writes state with Spark: entries from DataFrames and from checkpoints go to the task that writes their key group."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tailrace import errors
from tailrace.api.restore.savepoints import NewState, SavepointWriter
from tailrace.errors import ConfigError, TailraceError
from tailrace.spark.cluster.application import application
from tailrace.spark.data.schemas import arrow_schema
from tailrace.spark.data.statesource import as_in_the_program, carry
from tailrace.spark.data.types import check_types
from tailrace.spark.shipping.delivery import bringing
from tailrace.spark.shipping.spark_tasks import with_tailrace
from tailrace.state.format import TableInfo
from tailrace.state.manifest import StateFile
from tailrace.state.operator_state import BROADCAST
from tailrace.statedata.columns import GROUPS_AT_ONCE, split_groups
from tailrace.statedata.newcheckpoint import CheckpointPlan, check_alone, complete, give_up, new_folder
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.writing import (
    Conversion,
    KeptTables,
    NewTable,
    OperatorJob,
    changed_entries,
    changed_pairs,
    marker_rows,
    new_copy,
    unsettled_struct,
    write_parts,
)
from tailrace.storage.opening import absolute

_ENTRIES = "part int, group int, table int, entry binary"
_TOLD = "slot int, name string, size long, entries long"


def write_savepoint(
    writer: SavepointWriter, path: str, name: str | None, options: Mapping[str, Any] | None, spark: Any
) -> str:
    """Writes the state that a `SavepointWriter` has gathered. Returns the path of the folder."""
    for one in writer.new.values():
        _check_columns(one)
    base: StoredCheckpoint | None = writer.base
    if base is not None:
        check_alone(base, writer.dropped)
    job = name or (base.manifest.job if base is not None else "tailrace")
    application(spark).choose_interpreter()
    run_id = str(uuid.uuid4())
    store = new_folder(absolute(path), job, options, base)
    try:
        jobs = _jobs(writer, store.url, options, job, application(spark).total_slots() or 8)
        plan = CheckpointPlan(job, writer.max_parallelism, jobs, base, writer.dropped)
        written: list[StateFile] = []
        for operator in jobs:
            states = _new_of(writer, operator.uid, copied=False)
            written += _write_states(spark, operator, states, writer)
        return complete(store, plan, written, int(time.time() * 1_000_000), run_id)
    except BaseException:
        give_up(store)
        raise


def _check_columns(one: NewState) -> None:
    """Raises `ConfigError` for columns whose Python type is unknown."""
    if one.df is None:
        return
    who = f"put({one.uid!r}, ..., {one.info.name!r})"
    check_types(one.df.schema, who)
    schema = arrow_schema(one.df.schema)
    for column, made in (("key", one.key), ("value", one.value)):
        if made is None and unsettled_struct(schema.field(column).type):
            raise ConfigError(
                f"{who}: column {column!r} is {schema.field(column).type}, and the state holds objects of some class: say "
                f"how they are made, {column}=lambda row: ..., of the dict of a row"
            )


def _jobs(
    writer: SavepointWriter, folder: str, options: Mapping[str, Any] | None, job: str, slots: int
) -> list[OperatorJob]:
    """One job for each operator that is changed: the state that is written for it."""
    base: StoredCheckpoint | None = writer.base
    found: list[OperatorJob] = []
    slot = 0 if base is None else 1
    for uid in dict.fromkeys(uid for uid, _ in (*writer.new, *sorted(writer.dropped_states))):
        tables = tuple(NewTable(one.info, one.type) for one in _new_of(writer, uid, copied=False))
        kept, name, weight, left_out, fresh = None, writer.names.get(uid, uid), 0, set[str](), True
        if base is not None and uid not in writer.names:
            gone = {state for one, state in (*writer.new, *writer.dropped_states) if one == uid}
            record = base.operator(uid)
            left_out = {one.name for one in record.own if one.kind == BROADCAST} & gone
            fresh = not base.metas(uid)
            name = record.name
            kept = KeptTables(
                base.url, writer.storage_options, tuple(one for one in record.tables if one.name not in gone)
            )
            weight = sum(base.weights(uid, {one.name for one in record.tables}).values())
        parts = min(writer.max_parallelism, max(slots, weight // GROUPS_AT_ONCE + 1))
        made = OperatorJob(folder, options, job, writer.max_parallelism, uid, name, tables, kept, parts, slot)
        copies = {one.info.name: _copy(made, one, writer) for one in _new_of(writer, uid, copied=True)}
        found.append(replace(made, copies=copies, gone=left_out, fresh=fresh))
        slot += parts
    return found


def _new_of(writer: SavepointWriter, uid: str, copied: bool) -> list[NewState]:
    """The new states of an operator: keyed ones, or broadcast states, of which each subtask has a copy."""
    return [one for one in writer.new.values() if one.uid == uid and (one.info.kind == BROADCAST) == copied]


def _copy(job: OperatorJob, one: NewState, writer: SavepointWriter) -> tuple[TableInfo, bytes]:
    """A broadcast state with its new entries. The driver makes it, as each subtask holds all of it in memory."""
    table = NewTable(one.info, one.type)
    alone = replace(job, tables=(table,))
    if one.df is None:
        base, change = writer.base, one.change
        assert change is not None
        source = KeptTables(base.url, writer.storage_options, (base.table(one.uid, one.info.name),))
        parts: Iterator[Any] = changed_pairs(alone, 0, source, (0, 1), change)
    else:
        batches = one.df.select("key", "value").toArrow().to_batches()
        parts = map(Conversion(alone, 0, one.key, one.value).pairs, batches)
    return new_copy(table, one.uid, (pair for part in parts for pair in part))


def _write_states(spark: Any, job: OperatorJob, states: list[NewState], writer: SavepointWriter) -> list[StateFile]:
    """Runs one Spark job for an operator: entries go to the task of their part, in order, and the task writes its files.
    Returns these files."""
    carried = carry()

    def run(parcel: Any) -> Any:
        rows = spark.createDataFrame(marker_rows(job.parts), _ENTRIES)
        for place, one in enumerate(states):
            if one.df is not None:
                work = _converting(Conversion(job, place, one.key, one.value), carried)
                entries = one.df.select("key", "value").mapInArrow(with_tailrace(work, parcel), _ENTRIES)
            else:
                entries = _change(spark, job, place, one, writer, carried, parcel)
            rows = rows.unionAll(entries)
        together = rows.repartition(job.parts, "part").sortWithinPartitions("part", "group", "table")
        return together.mapInArrow(with_tailrace(_writing(job, carried), parcel), _TOLD).collect()

    try:
        with application(spark).with_description(f"tailrace: writing the state of {job.uid}"):
            reports = bringing(spark, "SavepointWriter", run)
    except Exception as failure:
        ours = _ours(failure, job.uid)
        if ours is not None:
            raise ours from None
        raise
    return [StateFile(row["slot"], row["name"], row["size"]) for row in reports]


def _converting(conversion: Conversion, carried: bytes) -> Callable[[Any], Any]:
    def convert(batches: Any) -> Iterator[Any]:
        with as_in_the_program(carried):
            for batch in batches:
                if batch.num_rows:
                    yield conversion.batch(batch)

    return convert


def _change(
    spark: Any, job: OperatorJob, place: int, one: NewState, writer: SavepointWriter, carried: bytes, parcel: Any
) -> Any:
    base: StoredCheckpoint = writer.base
    old = base.table(one.uid, one.info.name)
    source = KeptTables(base.url, writer.storage_options, (old,))
    ranges = split_groups(base.weights(one.uid, {old.name}), job.parts)
    change = one.change
    assert change is not None

    def work(batches: Any) -> Iterator[Any]:
        with as_in_the_program(carried):
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from changed_entries(job, place, source, ranges[number], change)

    count = len(ranges)
    return spark.range(0, count, 1, max(count, 1)).mapInArrow(with_tailrace(work, parcel), _ENTRIES)


def _writing(job: OperatorJob, carried: bytes) -> Callable[[Any], Any]:
    def write(batches: Any) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        with as_in_the_program(carried):
            yield from write_parts(batches, job, context.taskAttemptId())

    return write


def _ours(failure: Exception, uid: str) -> TailraceError | None:
    """The error that Tailrace's part of a Spark task has raised, found in the text of its failure."""
    raised = re.findall(r"^tailrace(?:\.\w+)*\.(\w+): (.*)$", str(failure), flags=re.M)
    for name, message in raised:
        kind = getattr(errors, name, None)
        if kind is errors.UserCodeError:
            message = re.sub(r"^operator .*?, subtask \d+: ", "", message)
            return errors.UserCodeError(message, operator=uid, subtask=0, permanent=True)
        if isinstance(kind, type) and issubclass(kind, TailraceError):
            return kind(message)
    return None
