"""The contents of checkpoints, as a data source of Spark: `spark.read.format("tailrace-state")`.

Spark makes the source anew in one process to request the columns, in another one for the partitions, and reads each
partition in a task. So each of them opens the checkpoint for itself, and only the options and ranges of key groups travel.
Where the path names a folder in which a job takes checkpoints, each process would find another checkpoint to be the
newest. So the process that makes the partitions chooses it, and every task reads that one. Where the checkpoint is removed
meanwhile, the query fails. Spark makes the partitions of a view once, at its first query. So a view that is to be *live* has
one partition, and the task of that looks for the newest checkpoint: one for each query.

State holds objects by the names of their classes. The classes of the program itself travel with the source when it is
registered, with the places where the program finds its modules.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tailrace.errors import ConfigError
from tailrace.spark.cluster.application import application
from tailrace.spark.cluster.defaults import DEFAULTS
from tailrace.spark.cluster.session import active_or_local
from tailrace.spark.data.jobfolders import checkpoint_folder
from tailrace.spark.data.readoptions import (
    number_of,
    positive_number,
    storage_options,
    storage_text,
    truth,
    with_known_names,
)
from tailrace.spark.data.schemas import arrow_schema, spark_columns, spark_schema
from tailrace.spark.shipping import program
from tailrace.statedata.keyed_states import KeyedStates
from tailrace.statedata.listings import View, view_of
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.opening import absolute
from tailrace.storage.store import folder_name

FORMAT = "tailrace-state"
_OPTIONS = (
    "path", "job", "checkpoint", "what", "uid", "state", "states", "keys", "values", "partitions", "live", "storageOptions",
)  # fmt: skip


@dataclass(frozen=True)
class ReadOptions:
    """The options of a read, checked. They travel to the tasks."""

    path: str
    checkpoint: int | None
    """The number of the checkpoint; None for the newest one, or for the one that the path names."""
    live: bool
    """True for a view whose queries each find the newest checkpoint."""
    what: str
    uid: str | None
    state: str | None
    states: tuple[str, ...] | None
    """Several states of an operator, which are read together."""
    keys: str
    values: str | None
    partitions: int | None
    storage: Mapping[str, Any] | None

    @classmethod
    def of(cls, options: Mapping[str, str], folder: str) -> ReadOptions:
        """The options, from a mapping. A relative path starts at `folder`. Raises `ConfigError` for an unknown option, or
        an invalid value."""
        given = with_known_names(options, _OPTIONS, FORMAT)
        path, number = checkpoint_folder(given, folder, FORMAT), number_of(given, "checkpoint")
        if given.get("job"):
            path = f"{path.rstrip('/')}/{folder_name(given['job'])}"
        live = truth(given, "live")
        if live and (number is not None or "partitions" in given):
            raise ConfigError('option "live" goes without "checkpoint" and "partitions": one task reads the newest one')
        return cls(
            path,
            number,
            live,
            given.get("what", "state"),
            given.get("uid"),
            given.get("state"),
            _names(given.get("states")),
            given.get("keys", "columns"),
            given.get("values"),
            positive_number(given, "partitions"),
            storage_options(given.get("storageOptions")),
        )

    def view(self) -> View:
        """The view that these options describe. Raises what `view_of` raises, and `CheckpointNotFound`."""
        stored = StoredCheckpoint.open(self.path, self.storage, self.checkpoint)
        return view_of(stored, self.what, self.uid, self.state, self.keys, self.values, self.states)


def _names(text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them; None where none are given."""
    return None if text is None else tuple(name.strip() for name in text.split(","))


class StatePartition(InputPartition):
    """Key groups, or files, [first, last) of one checkpoint. Without a checkpoint, all of the one that is the newest when
    the partition is read."""

    def __init__(self, checkpoint: str, first: int, last: int) -> None:
        super().__init__((checkpoint, first, last))


class StateReader(DataSourceReader):
    """Reads the view that the options describe into these columns, a `StructType`."""

    def __init__(self, options: ReadOptions, schema: Any, carried: bytes) -> None:
        self.read_options = options
        self.columns = arrow_schema(schema)
        self.carried = carried

    def partitions(self) -> list[InputPartition]:
        """Partitions of about as many bytes each. Where there is nothing to read, one empty partition: without any, Spark
        would make one without bounds."""
        if self.read_options.live:
            return [StatePartition("", 0, 0)]
        view = self.read_options.view()
        return [StatePartition(view.stored.url, *part) for part in view.parts(self.read_options.partitions) or [(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition, as record batches."""
        checkpoint, first, last = partition.value
        with as_in_the_program(self.carried):
            if not checkpoint:
                view = self.read_options.view()
                for part in view.parts():
                    yield from view.batches(part, self.columns)
            elif first < last:
                one = replace(self.read_options, path=checkpoint, checkpoint=None)
                yield from one.view().batches((first, last), self.columns)


class StateSource(DataSource):
    """`spark.read.format("tailrace-state")`."""

    carried = b""
    """Definitions of the program that registers the source: see `carry`."""
    folder = ""
    """Working folder of that program: Spark's processes have other working folders."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> Any:
        """The columns, where the user gives none."""
        options = ReadOptions.of(self.options, self.folder)
        with as_in_the_program(self.carried):
            return spark_schema(spark_columns(options.view().schema(), FORMAT))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader for these columns."""
        return StateReader(ReadOptions.of(self.options, self.folder), schema, self.carried)


def register(spark: Any) -> None:
    """Registers `spark.read.format("tailrace-state")` in a session. Another call also sends classes that the program has
    defined since."""
    application(spark).choose_interpreter()
    # A class of `__main__` travels by value, and so with what it carries; one of a module would travel as its name.
    carrying = {"carried": carry(), "folder": os.getcwd(), "__module__": program.MAIN}
    spark.dataSource.register(type(StateSource.__name__, (StateSource,), carrying))


def state_dataframe(
    spark: Any,
    path: str,
    uid: str,
    states: Sequence[str] | None,
    checkpoint: int | None,
    forms: Mapping[str, str],
    storage: Mapping[str, Any] | None,
) -> Any:
    """A DataFrame of the state of an operator, in one checkpoint: `tr.read_state`. `forms` has the forms of keys and values.
    Without a session it takes the active one, or makes a local one."""
    stored = StoredCheckpoint.open(absolute(path), storage, checkpoint)
    view = KeyedStates(stored, uid, states, **forms)
    columns = spark_schema(spark_columns(view.schema(), "tr.read_state"))
    spark = spark or active_or_local(DEFAULTS.most_workers() + 1, DEFAULTS.spark_master(), DEFAULTS.conf)
    register(spark)
    chosen = {"path": stored.url, "uid": uid, "states": ",".join(view.names), **forms, **storage_text(storage)}
    return spark.read.format(FORMAT).options(**chosen).schema(columns).load()


def carry() -> bytes:
    """The classes of the program, and the places where it finds its modules, pickled. A class that cannot travel is left
    out: state with it cannot be read, and a query that tries to reports so."""
    classes = []
    for value in list(vars(sys.modules[program.MAIN]).values()):
        if isinstance(value, type) and value.__module__ == program.MAIN:
            with contextlib.suppress(Exception):  # a method may refer to anything
                program.dump(value)
                classes.append(value)
    places = [os.path.abspath(place) for place in sys.path if not place or os.path.exists(place)]
    return pickle.dumps((places, program.dump(classes)), 5)


@contextlib.contextmanager
def as_in_the_program(carried: bytes) -> Iterator[None]:
    """A context in which modules and classes are found as in the program. Spark uses the process for other tasks
    afterwards."""
    places, body = pickle.loads(carried)
    main, path = sys.modules[program.MAIN], list(sys.path)
    sys.path += [place for place in places if place not in sys.path and os.path.exists(place)]
    try:
        program.load(body)
        yield
    finally:
        sys.modules[program.MAIN], sys.path[:] = main, path
