"""Temporary views of a job, for SQL: its output, its state, and the list of its checkpoints.

Spark makes the partitions of a view once, at its first query, and keeps them. So the readers of these views are live
(`outputsource`, `statesource`): the task of a query looks for the newest checkpoint, or for what is published by then.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tailrace.connectors.segments.log import STREAMS, SegmentLog
from tailrace.errors import CheckpointNotFound, ConfigError
from tailrace.passwords import hide_passwords
from tailrace.spark.data import outputsource, statesource
from tailrace.spark.data.jobfolders import folder_by_name
from tailrace.spark.data.readoptions import storage_text
from tailrace.spark.data.schemas import spark_columns, spark_schema
from tailrace.state.format import OURS
from tailrace.state.operator_state import BROADCAST
from tailrace.statedata.listings import view_of
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.types import NoColumn
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.store import folder_name

_WHO = "tr.spark.views"


@dataclass(frozen=True)
class TemporaryView:
    """A view that is to be made."""

    name: str
    shows: str
    """What it shows, for people."""
    format: str
    options: dict[str, str] = field(repr=False)
    schema: Any = None
    """The columns, a `StructType`; None for those that the format finds."""


_made: weakref.WeakKeyDictionary[Any, dict[str, tuple[str, str]]] = weakref.WeakKeyDictionary()
"""Session -> the views that were made in it, in small letters -> the folder of the job, and what they show."""


def make_views(
    spark: Any,
    job: str,
    path: str | None,
    checkpoint: int | None,
    prefix: str | None,
    storage: Mapping[str, Any] | None,
) -> dict[str, str]:
    """Makes the views of a job, or those of its state at one checkpoint, and returns their names, with what each shows.
    Raises `ConfigError` for two views of one name, and for a name that is taken."""
    folder = folder_by_name(job, _WHO) if path is None else absolute(path)
    place = f"{folder.rstrip('/')}/{folder_name(job)}"
    start = job if prefix is None else prefix
    if checkpoint is None:
        found = list(_outputs(place, start, storage))
        with contextlib.suppress(CheckpointNotFound) if found else contextlib.nullcontext():
            found += _states(StoredCheckpoint.open(place, storage), start, {"path": place, "live": "true"}, "")
    else:
        stored = StoredCheckpoint.open(place, storage, checkpoint)
        found = list(_states(stored, start, {"path": stored.url}, f"_at_{checkpoint}"))
    made = _made.setdefault(spark, {})
    _check_names(spark, place, found, made)
    outputsource.register(spark)
    statesource.register(spark)
    for one in found:
        reader = spark.read.format(one.format).options(**one.options, **storage_text(storage))
        reader = reader if one.schema is None else reader.schema(one.schema)
        reader.load().createOrReplaceTempView(one.name)
        made[one.name.lower()] = place, one.shows
    return {one.name: one.shows for one in found}


def _outputs(place: str, start: str, storage: Mapping[str, Any] | None) -> Iterator[TemporaryView]:
    """The views of the streams of a job. One without columns has none yet."""
    folder = open_folder(place, storage)
    for name in sorted(one.name for one in folder.entries(STREAMS) if one.folder):
        log = SegmentLog(open_folder(folder.url_of(name), storage))
        if log.exists() and (log.about().schema is not None or log.newest()):
            uid = log.about().uid
            options = {"path": place, "sink": uid, "live": "true"}
            yield TemporaryView(_name(start, uid), f"the output of sink {uid!r}", outputsource.FORMAT, options)


def _states(stored: StoredCheckpoint, start: str, options: dict[str, str], end: str) -> Iterator[TemporaryView]:
    """The views of the states of a checkpoint that have entries, and of the list of checkpoints."""
    if not end:
        every = {**options, "what": "checkpoints"}
        yield TemporaryView(_name(start, "checkpoints"), "the checkpoints that are kept", statesource.FORMAT, every)
    for one in stored.manifest.operators:
        shared = [table for table in one.own if table.kind == BROADCAST]
        for table in (*(table for table in one.tables if table.kind not in OURS), *shared):
            if sum(stored.weights(one.uid, {table.name}).values()):
                forms, columns = _in_columns(stored, one.uid, table.name)
                own = {**options, "uid": one.uid, "state": table.name, **forms}
                shows = f"state {table.name!r} of operator {one.uid!r}"
                yield TemporaryView(_name(start, one.uid, table.name) + end, shows, statesource.FORMAT, own, columns)


def _in_columns(stored: StoredCheckpoint, uid: str, state: str) -> tuple[dict[str, str], Any]:
    """The options and the columns of a state. Keys or values that no type of column holds, here or in Spark, are texts."""

    def columns(**forms: str) -> Any:
        return spark_schema(spark_columns(view_of(stored, "state", uid, state, **forms).schema(), _WHO))

    for forms in ({}, {"values": "text"}, {"keys": "text"}):
        with contextlib.suppress(NoColumn, ConfigError):
            return forms, columns(**forms)
    texts = {"keys": "text", "values": "text"}
    return texts, columns(**texts)


def _name(*parts: str) -> str:
    """The name of a view: SQL takes it without quotes."""
    return re.sub(r"[^A-Za-z0-9_]+", "_", "_".join(parts))


def _check_names(spark: Any, place: str, views: list[TemporaryView], made: Mapping[str, tuple[str, str]]) -> None:
    """Raises `ConfigError` for two views of one name, and for a name of something else."""
    names: dict[str, str] = {}
    for one in views:
        name = one.name.lower()
        if name in names:
            raise ConfigError(
                f"{_WHO}: {names[name]} and {one.shows} would both be {one.name}: Spark does not distinguish such names. "
                f"Make views of your own: spark.read.format({one.format!r}).options(**{one.options})"
            )
        names[name] = one.shows
        taken = made.get(name)
        if taken is not None and taken != (place, one.shows):
            there = f"{taken[1]} of the job in {hide_passwords(taken[0])}"
            raise ConfigError(f"{_WHO}: {one.name} shows {there} already: choose another prefix=")
        if taken is None and spark.catalog.tableExists(one.name):
            raise ConfigError(f"{_WHO}: there is a table or view {one.name} already: choose another prefix=")
