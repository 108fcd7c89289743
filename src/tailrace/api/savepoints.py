"""State that is written without a job: a new job starts from history, or goes on from a checkpoint that was changed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tailrace.api.checks import check_job_name
from tailrace.api.functions import CoProcessFunction, ProcessFunction
from tailrace.api.launch import launcher
from tailrace.errors import ConfigError
from tailrace.graph.graph import MAX_SUBTASKS
from tailrace.state.codecs import codec_for
from tailrace.state.declarations import type_name
from tailrace.state.format import TableInfo
from tailrace.state.handles import State, declared

Change = Callable[[Any, Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True)
class NewState:
    """A state that gets other entries than it had."""

    uid: str
    info: TableInfo
    type: Any
    """The declared type; for one that keeps its declaration it is not known."""
    df: Any = None
    """Its entries, as a DataFrame."""
    key: Callable[[Any], Any] | None = None
    value: Callable[[Any], Any] | None = None
    change: Change | None = None
    """Makes its entries of those that it has."""


class SavepointWriter:
    """Writes the state of operators into a new folder, from which a job starts like from a checkpoint
    (`from_checkpoint=`): state from DataFrames, and with `SavepointWriter.of(path)` also what a checkpoint has, changed.

    `max_parallelism` is the number of key groups, which must be that of the job's environment. Nothing is written, and
    no checkpoint is touched, before `write`. Raises `ConfigError` for a number that is none.
    """

    def __init__(self, *, max_parallelism: int = 128) -> None:
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= MAX_SUBTASKS:
            raise ConfigError(f"max_parallelism must be from 1 to {MAX_SUBTASKS}, not {max_parallelism!r}")
        self.max_parallelism = max_parallelism
        self.base: Any = None
        """The checkpoint that is changed."""
        self.storage_options: Mapping[str, Any] | None = None
        """Those of its filesystem."""
        self.new: dict[tuple[str, str], NewState] = {}
        """By operator and state."""
        self.names: dict[str, str] = {}
        """Of operators that are not in the checkpoint, for people."""
        self.dropped: set[str] = set()
        """Operators that are left out."""
        self.dropped_states: set[tuple[str, str]] = set()

    @classmethod
    def of(cls, path: str, *, storage_options: Mapping[str, Any] | None = None) -> SavepointWriter:
        """All that a checkpoint has, to be changed. `path` is what `from_checkpoint` takes, but for "latest". Raises
        `CheckpointNotFound` and `CheckpointCorrupt`."""
        path = getattr(path, "__fspath__", lambda: path)()
        if not isinstance(path, str) or not path:
            raise ConfigError(f"SavepointWriter.of needs the path of a checkpoint, not {path!r}")
        base = launcher().open_checkpoint(path, storage_options)
        made = cls(max_parallelism=base.manifest.max_parallelism)
        made.base, made.storage_options = base, storage_options
        return made

    def put(
        self,
        uid: str,
        function: Any,
        state: str,
        df: Any,
        *,
        key: Callable[[Any], Any] | None = None,
        value: Callable[[Any], Any] | None = None,
    ) -> SavepointWriter:
        """Gives a state of the operator `uid` these entries, in place of those that it has. `function` is the process
        function (or its class) that declares it, `state` the attribute. `df` has the columns `key` and `value`, a row for
        each key: of a `ListState` arrays, of a `MapState` maps, of an `AggregatingState` the accumulator. `key` and `value`
        make the key and the value of what is in the column. Raises `ConfigError` for what does not go together."""
        who = f"put({uid!r}, ..., {state!r})"
        self._check_free(who, uid, state)
        for name, made in (("key", key), ("value", value)):
            if made is not None and not callable(made):
                raise ConfigError(f"{who}: {name}= is a function of what the column has, not {made!r}")
        if not hasattr(df, "mapInArrow") or sorted(df.columns) != ["key", "value"]:
            found = f"the columns {', '.join(df.columns)}" if hasattr(df, "columns") else f"is a {type(df).__name__}"
            raise ConfigError(f"{who}: expected a DataFrame with the columns key and value; this has {found}")
        info, type_ = _declared(function, state, who)
        self.new[uid, state] = NewState(uid, info, type_, df, key, value)
        known = self.base is not None and any(one.uid == uid for one in self.base.manifest.operators)
        if not known:
            named = function if isinstance(function, type) else type(function)
            self.names.setdefault(uid, named.__name__)
        return self

    def transform(self, uid: str, state: str, change: Change, *, function: Any = None) -> SavepointWriter:
        """Changes a state of the checkpoint entry by entry: `change(key, value)` gives the pairs of key and value that take
        the place of an entry: none, one or several. With `function`, the process function or its class that declares the
        state now, values are written as it says; else as they were. Raises `CheckpointNotFound` for an operator or state
        that there is not, and `ConfigError`, also for windows, whose timers would stay as they are."""
        who = f"transform({uid!r}, {state!r})"
        self._check_free(who, uid, state)
        if not callable(change):
            raise ConfigError(f"{who}: expected a function of key and value, not {change!r}")
        old = self._base(who).table(uid, state)
        if old.kind == "window":  # each has timers, under its key, without which it never comes out
            raise ConfigError(
                f"{who}: windows go on as they are, or not at all: drop({uid!r}) leaves them out; change their results, or "
                f"the records that come into them"
            )
        if function is not None:
            info, type_ = _declared(function, state, who)
        elif old.encoding != "pickle":
            raise ConfigError(
                f"{who}: its values are encoded by {old.encoding}; give function=, which declares their type"
            )
        else:
            info, type_ = old, object
        self.new[uid, state] = NewState(uid, info, type_, change=change)
        return self

    def drop(self, uid: str, state: str | None = None) -> SavepointWriter:
        """Leaves out a state of an operator, or all that the checkpoint has of it: states, timers, positions, and records
        that were on their way to it. Raises `CheckpointNotFound` for what there is not."""
        base = self._base(f"drop({uid!r})")
        if state is None:
            base.operator(uid)
            if any(one == uid for one, _ in (*self.new, *self.dropped_states)):
                raise ConfigError(f"drop({uid!r}): a state of it was changed before; drop its other states one by one")
            self.dropped.add(uid)
            return self
        self._check_free(f"drop({uid!r}, {state!r})", uid, state)
        base.table(uid, state)
        self.dropped_states.add((uid, state))
        return self

    def write(self, path: str, *, name: str | None = None, storage_options: Mapping[str, Any] | None = None) -> str:
        """Writes all of it into a new folder, with Spark, and gives its path, for `from_checkpoint`. `name`
        is that of the job, for people. Raises `ConfigError` for a folder with something in it, or one that executors and
        driver do not share, and `IncompatibleState` for keys and values that the state does not take; then nothing is left
        in the folder."""
        path = getattr(path, "__fspath__", lambda: path)()
        if not isinstance(path, str) or not path:
            raise ConfigError(f"write needs the path of a new folder, not {path!r}")
        if self.base is None and not self.new:
            raise ConfigError("there is nothing to write: put the states of operators first")
        if name is not None:
            check_job_name(name)
        return launcher().write_savepoint(self, path, name, storage_options)

    def _base(self, who: str) -> Any:
        if self.base is None:
            raise ConfigError(f"{who}: there is no checkpoint to change; begin with SavepointWriter.of(path)")
        return self.base

    def _check_free(self, who: str, uid: str, state: str) -> None:
        if not isinstance(uid, str) or not uid or not isinstance(state, str) or not state:
            raise ConfigError(f"{who}: an operator is named by its uid and a state by its attribute")
        if uid in self.dropped:
            raise ConfigError(f"{who}: the operator was dropped before")
        if (uid, state) in self.new or (uid, state) in self.dropped_states:
            raise ConfigError(f"{who}: this state was changed before, and can be changed once")


def _declared(function: Any, state: str, who: str) -> tuple[TableInfo, Any]:
    """What a process function declares under this name. Raises `ConfigError`."""
    kind = function if isinstance(function, type) else type(function)
    if not issubclass(kind, ProcessFunction | CoProcessFunction):
        raise ConfigError(
            f"{who}: expected the process function that declares the state, or its class, not {function!r}"
        )
    found: dict[str, State] = {one.name: one for one in declared(object.__new__(kind)).values()}
    if state not in found:
        there = ", ".join(map(repr, found)) or "no state"
        raise ConfigError(f"{who}: {kind.__name__} declares {there}")
    one = found[state]
    codec = codec_for(one.kind, one.type, one.encoding, one.name)
    return TableInfo(one.name, one.kind, codec.name, type_name(one.type), aggregate=one.aggregated_by), one.type
