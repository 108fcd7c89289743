"""State outside of jobs. Savepoints that are written without a job: a new job starts from history, or goes on from a changed
checkpoint. And the state of an operator as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tailrace.api.checks.arguments import check_job_name
from tailrace.api.functions import DECLARE_STATE
from tailrace.api.launch import launcher
from tailrace.errors import ConfigError
from tailrace.graph.graph import MAX_SUBTASKS
from tailrace.spelling import with_hints_of_methods
from tailrace.state.codecs import codec_for
from tailrace.state.declarations import type_name
from tailrace.state.format import TableInfo
from tailrace.state.handles import State, states_of
from tailrace.state.operator_state import BROADCAST, declared_operator_states, other_kind
from tailrace.state.ttl import plain_encoding

if TYPE_CHECKING:
    from os import PathLike

Change = Callable[[Any, Any], Iterable[tuple[Any, Any]]]


@dataclass(frozen=True)
class NewState:
    """A state with new entries: from a DataFrame, or changed from the checkpoint's."""

    uid: str
    info: TableInfo
    type: Any
    """The declared type; `object` for a state that keeps its declaration, whose type is not known."""
    df: Any = None
    """The entries as a DataFrame; None if `change` makes them."""
    key: Callable[[Any], Any] | None = None
    value: Callable[[Any], Any] | None = None
    change: Change | None = None
    """The user's function that makes new entries of each entry of the checkpoint; None if they come from `df`."""


@with_hints_of_methods
class SavepointWriter:
    """A writer of the state of operators into a new folder, from which a job starts as from a checkpoint
    (`from_checkpoint=`). The state comes from DataFrames, and with `SavepointWriter.of(path)` also from a checkpoint.

    `max_parallelism` is the number of key groups, and must be equal to the one of the job's environment. Nothing is written
    before `write`, and no checkpoint is changed. Raises `ConfigError` for a wrong `max_parallelism`.
    """

    def __init__(self, *, max_parallelism: int = 128) -> None:
        if not isinstance(max_parallelism, int) or not 1 <= max_parallelism <= MAX_SUBTASKS:
            raise ConfigError(f"max_parallelism must be from 1 to {MAX_SUBTASKS}, not {max_parallelism!r}")
        self.max_parallelism = max_parallelism
        self.base: Any = None
        """The checkpoint that the savepoint is made from; None if there is none."""
        self.storage_options: Mapping[str, Any] | None = None
        """Options of the checkpoint's filesystem (fsspec)."""
        self.new: dict[tuple[str, str], NewState] = {}
        """(uid, name of a state) -> its new entries."""
        self.names: dict[str, str] = {}
        """Uid of an operator that is not in the checkpoint -> its name for users."""
        self.dropped: set[str] = set()
        """Uids of operators that are left out."""
        self.dropped_states: set[tuple[str, str]] = set()

    @classmethod
    def of(
        cls, path: str, *, max_parallelism: int | None = None, storage_options: Mapping[str, Any] | None = None
    ) -> SavepointWriter:
        """A writer that begins with all that a checkpoint has. `path` is what `from_checkpoint` takes, except "latest".
        `max_parallelism` is a multiple of the checkpoint's, among which keys are dealt out anew. `storage_options` go to the
        filesystem (fsspec). Raises `CheckpointNotFound` or `CheckpointCorrupt` for a checkpoint that cannot be read, and
        `ConfigError` for what is no path, and no multiple."""
        base = launcher().open_checkpoint(_path_of(path, "SavepointWriter.of"), storage_options)
        there = base.manifest.max_parallelism
        made = cls(max_parallelism=there if max_parallelism is None else max_parallelism)
        if made.max_parallelism % there:
            raise ConfigError(
                f"max_parallelism={max_parallelism}: {base.url} has {there}, and each of its key groups is split into as "
                f"many as any other: take a multiple of {there}, up to {MAX_SUBTASKS}"
            )
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
        """Replaces the entries of a state of the operator `uid`. `function` is the process function (or its class) that
        declares the state, `state` the attribute. `df` has the columns `key` and `value`, and a row for each key. The value
        of a `ListState` is an array, of a `MapState` a map, of an `AggregatingState` the accumulator. The rows of a
        `BroadcastState` are its entries. The functions `key` and `value` make the key and the value from what the columns
        hold. Returns the writer. Raises `ConfigError` for arguments that do not go together, and for a state that was
        changed before."""
        who = f"put({uid!r}, ..., {state!r})"
        self._check_free(who, uid, state)
        for name, made in (("key", key), ("value", value)):
            if made is not None and not callable(made):
                raise ConfigError(f"{who}: {name}= is a function of what the column has, not {made!r}")
        if not hasattr(df, "mapInArrow") or sorted(df.columns) != ["key", "value"]:
            found = f"the columns {', '.join(df.columns)}" if hasattr(df, "columns") else f"is a {type(df).__name__}"
            raise ConfigError(f"{who}: expected a DataFrame with the columns key and value; this has {found}")
        info, type_ = _declaration(function, state, who)
        known = self.base is not None and any(one.uid == uid for one in self.base.manifest.operators)
        if known and info.kind == BROADCAST:
            self.base.check_copies(uid)
        self.new[uid, state] = NewState(uid, info, type_, df, key, value)
        if not known:
            named = function if isinstance(function, type) else type(function)
            self.names.setdefault(uid, named.__name__)
        return self

    def transform(self, uid: str, state: str, change: Change, *, function: Any = None) -> SavepointWriter:
        """Changes a state of the checkpoint entry by entry. `change(key, value)` returns the pairs of key and value that
        replace an entry: none, one or several. With `function`, the process function (or its class) that declares the state
        now, values are written as it declares them; else as they were. Returns the writer. Raises `CheckpointNotFound` for
        an operator or state that the checkpoint does not have. Raises `ConfigError` for wrong arguments, for a state that
        was changed before, and for windows, whose timers would stay as they are. Broadcast state is changed in the program
        that writes, like other state in Spark's tasks."""
        who = f"transform({uid!r}, {state!r})"
        self._check_free(who, uid, state)
        if not callable(change):
            raise ConfigError(f"{who}: expected a function of key and value, not {change!r}")
        base = self._base(who)
        old = base.table(uid, state)
        if old.kind in ("window", "session"):  # each window has timers under its key, and never fires without them
            raise ConfigError(
                f"{who}: windows go on as they are, or not at all: drop({uid!r}) leaves them out; change their results, or "
                f"the records that come into them"
            )
        if old.kind == BROADCAST:
            base.check_copies(uid)
        if function is not None:
            info, type_ = _declaration(function, state, who)
            if (info.kind == BROADCAST) != (old.kind == BROADCAST):
                raise ConfigError(f"{who}: {other_kind(state, old.kind, info.kind)}")
        elif plain_encoding(old.encoding) != "pickle":
            raise ConfigError(
                f"{who}: its values are encoded by {plain_encoding(old.encoding)}; give function=, which declares their type"
            )
        else:  # values with a time to live are written without times: they count as written at the start
            info, type_ = msgspec.structs.replace(old, encoding="pickle", stamps=""), object
        self.new[uid, state] = NewState(uid, info, type_, change=change)
        return self

    def drop(self, uid: str, state: str | None = None) -> SavepointWriter:
        """Leaves out a state of an operator, or all that the checkpoint has of it: states, timers, positions, and records
        that were on their way to it. Returns the writer. Raises `CheckpointNotFound` for an operator or state that the
        checkpoint does not have, and `ConfigError` for a state that was changed before."""
        base = self._base(f"drop({uid!r})")
        if state is None:
            base.operator(uid)
            if any(one == uid for one, _ in (*self.new, *self.dropped_states)):
                raise ConfigError(f"drop({uid!r}): a state of it was changed before; drop its other states one by one")
            self.dropped.add(uid)
            return self
        self._check_free(f"drop({uid!r}, {state!r})", uid, state)
        if base.table(uid, state).kind == BROADCAST:
            base.check_copies(uid)
        self.dropped_states.add((uid, state))
        return self

    def write(self, path: str, *, name: str | None = None, storage_options: Mapping[str, Any] | None = None) -> str:
        """Writes the savepoint into a new folder, with Spark. Returns its path, for `from_checkpoint`. `name` is the name of
        the job, for users; `storage_options` go to the filesystem (fsspec). Raises `ConfigError` for a folder that is not
        empty, or that executors and driver do not share, and `IncompatibleState` for keys and values that the state does not
        take. Nothing is left in the folder then."""
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


def _declaration(function: Any, state: str, who: str) -> tuple[TableInfo, Any]:
    """The table and the type of a state that a process function declares, keyed or broadcast. Raises `ConfigError` if there
    is none."""
    kind = function if isinstance(function, type) else type(function)
    if not issubclass(kind, DECLARE_STATE):
        raise ConfigError(
            f"{who}: expected the process function that declares the state, or its class, not {function!r}"
        )
    made: Any = object.__new__(kind)
    found: dict[str, State] = {one.name: one for one in states_of(made).values()}
    shared = {one.name: one for one in declared_operator_states(made).values() if one.kind == BROADCAST}
    if state in shared:
        return shared[state].bind().table_info(), shared[state].type
    if state not in found:
        there = ", ".join(map(repr, (*found, *shared))) or "no state"
        raise ConfigError(f"{who}: {kind.__name__} declares {there}")
    one = found[state]
    codec = codec_for(one.kind, one.type, one.encoding, one.name)
    return TableInfo(one.name, one.kind, codec.name, type_name(one.type), aggregate=one.aggregated_by), one.type


def read_state(
    path: str | PathLike[str],
    uid: str,
    states: Sequence[str] | None = None,
    *,
    checkpoint: int | None = None,
    keys: Literal["columns", "text", "pickle"] = "columns",
    values: Literal["columns", "text", "pickle"] = "columns",
    spark: Any = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Any:
    """A DataFrame of the state of an operator in a checkpoint: `key`, for windows `namespace` (the start of the window), and
    a column for each state, which has its name. There is a row for each key that one of the states has; states that lack it
    have null.

    - `path`: a checkpoint, a savepoint, or a folder, as `from_checkpoint` takes it, except "latest". Of a folder the
      newest checkpoint is read, and each query of the DataFrame reads that one.
    - `uid`: the uid of the operator.
    - `states`: the names of its states; None for all that it declares with a key.
    - `checkpoint`: the number of an older checkpoint in that folder.
    - `keys`, `values`: "columns" of their own types, "text" (what `repr` returns), or "pickle".
    - `spark`: a session; None for the active one, or a local one that is made now.
    - `storage_options`: options for the filesystem (fsspec).

    Raises `CheckpointNotFound`, with a list of what there is, `ConfigError` for states that do not go together, and
    `IncompatibleState` where no type of column holds keys or values, or classes of the program are not found."""
    if isinstance(states, str):
        raise ConfigError(f"tr.read_state: states is a list of names, such as [{states!r}]")
    if checkpoint is not None and (not isinstance(checkpoint, int) or isinstance(checkpoint, bool)):
        raise ConfigError(f"tr.read_state: checkpoint is the number of a checkpoint, not {checkpoint!r}")
    forms = {"keys": keys, "values": values}
    place = _path_of(path, "tr.read_state")
    return launcher().state_dataframe(spark, place, uid, states, checkpoint, forms, storage_options)


def _path_of(path: Any, who: str) -> str:
    """A path as a text."""
    path = getattr(path, "__fspath__", lambda: path)()
    if not isinstance(path, str) or not path:
        raise ConfigError(f"{who} needs the path of a checkpoint, not {path!r}")
    return path
