"""What checkpoints hold, as a data source of Spark: `spark.read.format("tailrace-state")`.

Spark makes the source anew in a process of its own to ask for the columns, in another one for the partitions, and reads each
partition in a task. So each opens the checkpoint for itself, and all that travels are the options and ranges of key groups.
Where the path is that of a folder in which a job takes checkpoints, each would find another one to be the newest: it is
chosen where the partitions are made, and every task reads that. Where it is removed meanwhile, the query fails.

State holds objects by the names of their classes. Those of the program itself go along when the source is registered, and
with them the places where the program finds its modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tailrace.errors import ConfigError
from tailrace.spark.cluster.application import application
from tailrace.spark.data.schemas import arrow_schema, spark_columns, spark_schema
from tailrace.spark.shipping import program
from tailrace.statedata.listings import View, view_of
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.filesystem import scheme_of

FORMAT = "tailrace-state"
_OPTIONS = ("path", "what", "uid", "state", "keys", "values", "partitions", "storageOptions")


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reading, checked. They travel to the tasks."""

    path: str
    what: str
    uid: str | None
    state: str | None
    keys: str
    values: str | None
    partitions: int | None
    storage: Mapping[str, Any] | None

    @classmethod
    def of(cls, options: Mapping[str, str], folder: str) -> ReadOptions:
        """From options; a relative path starts at `folder`. Raises `ConfigError` for an option that there is not, or a value
        that is none."""
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in _OPTIONS}
        for name in given:
            if name not in known:
                raise ConfigError(f"{FORMAT} has no option {name!r}; it has {', '.join(_OPTIONS)}")
        if "path" not in given:
            raise ConfigError(f'{FORMAT} needs the path of a checkpoint: .option("path", "...") or .load("...")')
        partitions = given.get("partitions")
        if partitions is not None and (not partitions.isdecimal() or not int(partitions)):
            raise ConfigError(f'option "partitions" is a number above zero, not {partitions!r}')
        return cls(
            _from(folder, given["path"]),
            given.get("what", "state"),
            given.get("uid"),
            given.get("state"),
            given.get("keys", "columns"),
            given.get("values"),
            None if partitions is None else int(partitions),
            _storage(given.get("storageoptions")),
        )

    def view(self) -> View:
        """What is to be read. Raises what `view_of` raises, and `CheckpointNotFound`."""
        stored = StoredCheckpoint.open(self.path, self.storage)
        return view_of(stored, self.what, self.uid, self.state, self.keys, self.values)


def _from(folder: str, path: str) -> str:
    plain = scheme_of(path) == "file" and not path.lower().startswith("file:")
    return os.path.join(folder, os.path.expanduser(path)) if plain else path


def _storage(text: str | None) -> Mapping[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f'option "storageOptions" is a JSON object for the filesystem, not {text!r}')
    return found


class StatePartition(InputPartition):
    """Key groups, or files, [first, last) of one checkpoint."""

    def __init__(self, checkpoint: str, first: int, last: int) -> None:
        super().__init__((checkpoint, first, last))


class StateReader(DataSourceReader):
    """Reads what is wanted in these columns, a `StructType`."""

    def __init__(self, wanted: ReadOptions, schema: Any, carried: bytes) -> None:
        self.wanted = wanted
        self.columns = arrow_schema(schema)
        self.carried = carried

    def partitions(self) -> list[InputPartition]:
        """About as many bytes each. One that is empty where there is nothing: Spark would else make one without bounds."""
        view = self.wanted.view()
        return [StatePartition(view.stored.url, *part) for part in view.parts(self.wanted.partitions) or [(0, 0)]]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The rows of a partition, as record batches."""
        checkpoint, first, last = partition.value
        with as_in_the_program(self.carried):
            if first < last:
                yield from replace(self.wanted, path=checkpoint).view().batches((first, last), self.columns)


class StateSource(DataSource):
    """`spark.read.format("tailrace-state")`."""

    carried = b""
    """The program that registers it: see `carry`."""
    folder = ""
    """Where it does: Spark's processes have other working folders."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return FORMAT

    def schema(self) -> Any:
        """The columns, where the user gives none."""
        wanted = ReadOptions.of(self.options, self.folder)
        with as_in_the_program(self.carried):
            return spark_schema(spark_columns(wanted.view().schema(), FORMAT))

    def reader(self, schema: Any) -> DataSourceReader:
        """A reader for these columns."""
        return StateReader(ReadOptions.of(self.options, self.folder), schema, self.carried)


def register(spark: Any) -> None:
    """Makes `spark.read.format("tailrace-state")` known to a session. Done again, classes that the program has defined since
    go along as well."""
    application(spark).choose_interpreter()
    # A class of `__main__` travels by value, and so with what it carries; one of a module would travel as its name.
    carrying = {"carried": carry(), "folder": os.getcwd(), "__module__": program.MAIN}
    spark.dataSource.register(type(StateSource.__name__, (StateSource,), carrying))


def carry() -> bytes:
    """The classes of the program, and where it finds its modules. A class that cannot travel stays: state of it cannot be
    read, which is told where somebody tries to."""
    classes = []
    for value in list(vars(sys.modules[program.MAIN]).values()):
        if isinstance(value, type) and value.__module__ == program.MAIN:
            with contextlib.suppress(Exception):  # whatever a method refers to
                program.dump(value)
                classes.append(value)
    places = [os.path.abspath(place) for place in sys.path if not place or os.path.exists(place)]
    return pickle.dumps((places, program.dump(classes)), 5)


@contextlib.contextmanager
def as_in_the_program(carried: bytes) -> Iterator[None]:
    """Within, modules and classes are found as in the program. Spark uses the process for other tasks afterwards."""
    places, body = pickle.loads(carried)
    main, path = sys.modules[program.MAIN], list(sys.path)
    sys.path += [place for place in places if place not in sys.path and os.path.exists(place)]
    try:
        program.load(body)
        yield
    finally:
        sys.modules[program.MAIN], sys.path[:] = main, path
