"""State of an operator that belongs to no key: one value per subtask."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from typing import Any, NoReturn, Protocol

import msgspec

from tailrace.elements.callables import check_put
from tailrace.elements.valueclasses import ChangedClass, Shapes
from tailrace.errors import ConfigError, IncompatibleState, StateAccessError, UserCodeError, error_text, short_repr
from tailrace.spelling import with_hints
from tailrace.state.backend import MetaPart
from tailrace.state.codecs import Codec, codec_for, decoder, immutable
from tailrace.state.declarations import other_class, other_type, takes, type_name
from tailrace.state.format import TableInfo
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.state.sharing import Place, UsedEntry
from tailrace.state.tables import MISSING

OPERATOR, BROADCAST = "operator", "broadcast"
"""The kinds of a `TableInfo` of an operator state and of a broadcast state."""


class Subtask(Protocol):
    """The subtask that an operator runs in: its context."""

    name: str
    uid: str
    subtask: int
    parallelism: int


@with_hints
class OperatorState:
    """One value per subtask, for process functions, functions of batches and writers of sinks: `seen = tr.OperatorState(int,
    default=0)` on the class. It needs no key, and may be used from `open` to `finish`.

    After a restore at another parallelism a list is dealt out anew: the lists of all old subtasks are joined, and each
    new subtask gets an even share. If only some of the old subtasks had finished, their lists are left out, because
    `finish` was called with them, and would be called again. Any other value can be restored at the same parallelism
    only.
    """

    kind = OPERATOR
    codec_kind = "value"
    """The kind of state whose values its codec encodes."""
    copied = False
    """True if every subtask has an equal copy, of which a checkpoint holds one."""
    each = False
    """True if each subtask saves its copy all the same."""

    def __init__(self, type: Any = object, default: Any = None, *, encoding: str | None = None) -> None:
        self.type = type
        self.default = default
        self.encoding = encoding
        self.name = ""
        self._codec: Codec = codec_for(self.codec_kind, type, encoding, "operator state")

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def bind(self) -> OperatorState:
        """A handle of this declaration in one subtask."""
        handle = copy.copy(self)
        handle._codec = codec_for(self.codec_kind, self.type, self.encoding, self.name)
        handle._value = MISSING
        return handle

    _value: Any

    @property
    def value(self) -> Any:
        """The value, or the default. A mutable default is copied, and the copy is stored at its first reading."""
        if self._value is not MISSING:
            return self._value
        if immutable(self.default):
            return self.default
        self._value = copy.deepcopy(self.default)
        return self._value

    @value.setter
    def value(self, new: Any) -> None:
        self.update(new)

    def get(self) -> Any:
        """The value, like `.value`."""
        return self.value

    def update(self, new: Any) -> None:
        """Sets the value, like an assignment to `.value`."""
        self.exists()
        check_put(self.name, new)
        self._value = new

    def clear(self) -> None:
        """Removes the value."""
        self.exists()
        self._value = MISSING

    def exists(self) -> bool:
        """True if there is a value."""
        return self._value is not MISSING

    @property
    def listed(self) -> bool:
        """True if the value is a list, which can be dealt out anew."""
        return isinstance(self._value, list)

    def __getattr__(self, name: str) -> NoReturn:
        if name == "_value":
            raise StateAccessError(
                f"operator state {self.__dict__.get('name') or '(without a name)'!r} is only declared, not bound: declare "
                f"it on the class (not in __init__); it can be used once a job (or tr.testing) has opened the "
                f"function"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        # The codec cannot be pickled; it is made again from the declaration.
        return {name: value for name, value in self.__dict__.items() if name != "_codec"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._codec = codec_for(self.codec_kind, self.type, self.encoding, self.name)

    def table_info(self) -> TableInfo:
        """A description of the value, for readers that do not decode it."""
        codec = self._codec
        return TableInfo(self.name, self.kind, codec.name, type_name(self.type), codec.notes.listed, listed=self.listed)

    def encode(self) -> bytes:
        """The bytes of the value. Errors of the encoder are passed on."""
        return self._codec.encode(self._value)


def declared_operator_states(function: object) -> dict[str, OperatorState]:
    """Attribute name -> operator state that the class of a function declares, inherited ones too."""
    found: dict[str, OperatorState] = {}
    for owner in reversed(type(function).__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, OperatorState):
                found[name] = value
            else:
                found.pop(name, None)  # a subclass hides the declaration with another attribute
    return found


class _Saved(msgspec.Struct, array_like=True):
    encoding: str
    type: str
    listed: bool
    """True if the value is a list, which can be dealt out anew."""
    data: bytes
    classes: Shapes = ()
    """The classes of the value, as they were at that time."""
    kind: str = OPERATOR


_encoder = msgspec.msgpack.Encoder()
NO_VALUES = _encoder.encode({})
"""The part of an operator that declares states and has no value of any."""
_decoder = msgspec.msgpack.Decoder(dict[str, _Saved])


class OperatorStates:
    """The operator states of one function (or sink writer) in one subtask: bound to it, saved and restored."""

    def __init__(self, function: object, where: Subtask, allow_dropped: bool = False, exact: bool = False) -> None:
        """`exact`: another worker may have to go on from a checkpoint. Then this one also goes on with the values that the
        bytes give (B8)."""
        self._where = where
        self._exact = exact
        self._allow_dropped = allow_dropped
        self._states: dict[str, OperatorState] = {}
        for name, declaration in declared_operator_states(function).items():
            handle = self._states[name] = declaration.bind()
            try:
                setattr(function, name, handle)
            except AttributeError as error:
                raise ConfigError(
                    f"operator {where.name!r}: state {name!r} cannot be bound: its class allows no attributes ({error})"
                ) from error

    @property
    def handles(self) -> list[OperatorState]:
        """The handle of each state."""
        return list(self._states.values())

    def entries(self) -> Iterator[UsedEntry]:
        """The value of each state, for `Sharing`."""
        for name, state in self._states.items():
            yield UsedEntry(Place(name, None), partial(getattr, state, "_value"), partial(setattr, state, "_value"))

    def snapshot(self) -> bytes | None:
        """The encoded values of all states that have one; None if there are none."""
        found = {}
        for name, state in self._states.items():
            if state.exists() and (self._exact or self._saves(state)):
                found[name] = self._save(name, state)
        kept = {name: one for name, one in found.items() if self._saves(self._states[name])}
        return _encoder.encode(kept) if kept else None

    def _saves(self, state: OperatorState) -> bool:
        """True if the part of this subtask in a checkpoint holds a state: of equal copies the first subtask saves its
        own."""
        return not state.copied or state.each or self._where.subtask == 0

    def _save(self, name: str, state: OperatorState) -> _Saved:
        try:
            data = state.encode()
        except Exception as error:
            what = f"the value of operator state {name!r} cannot be saved ({error_text(error)})"
            raise UserCodeError(
                f"{what}; it is {short_repr(state.value)}", operator=self._where.name, subtask=self._where.subtask
            ) from error
        if self._exact and not comes_back(state._value):
            state._value = state._codec.decode(data)
        codec = state._codec
        return _Saved(codec.name, type_name(state.type), state.listed, data, codec.notes.listed, state.kind)

    def tables(self) -> list[TableInfo]:
        """A description of each value that `snapshot` encodes, and of each copy."""
        return [one.table_info() for one in self._states.values() if one.copied or one.exists()]

    def restore(self, parts: list[MetaPart], over: bool = False) -> None:
        """Takes this subtask's share of the values that the old subtasks saved. `over`: the operator has finished, so that
        its state is not used unless a later start feeds it anew."""
        where = self._where
        saved = [(part, self._saved_states(part.data)) for part in sorted(parts, key=lambda p: p.subtask) if part.data]
        self._restore_copies([states for _, states in saved])
        if all(part.parallelism == where.parallelism for part, _ in saved):
            for part, states in saved:
                if part.subtask == where.subtask:
                    for name, one in states.items():
                        self._declaration(name)._value = self._read(name, one)
            return
        some = not all(part.finished for part in parts)
        going = [states for part, states in saved if not (some and part.finished)]
        for name in dict.fromkeys(name for states in going for name in states):
            old = [states[name] for states in going if name in states]
            if all(one.listed for one in old):
                read = [self._read(name, one) for one in old]
                items = [item for one in read if one is not MISSING for item in one]
                first = len(items) * where.subtask // where.parallelism
                last = len(items) * (where.subtask + 1) // where.parallelism
                self._declaration(name)._value = items[first:last]
            elif not over:
                message = not_dealt_out(name, old[0].type, saved[0][0].parallelism, where.parallelism)
                raise IncompatibleState(f"operator {where.name!r} (uid {where.uid!r}): {message}")

    def _restore_copies(self, saved: list[dict[str, _Saved]]) -> None:
        """Takes the copies out of what the old subtasks saved, and gives each state that has one the whole of it."""
        for states in saved:
            for name in [name for name, one in states.items() if self._declaration(name).copied]:
                self._declaration(name)._value = self._read(name, states.pop(name))

    def _saved_states(self, data: bytes) -> dict[str, _Saved]:
        states = _decoder.decode(data)
        return {name: one for name, one in states.items() if name in self._states or not self._allow_dropped}

    def _declaration(self, name: str) -> OperatorState:
        found = self._states.get(name)
        if found is None:
            where = self._where
            raise IncompatibleState(
                f"operator {where.name!r} (uid {where.uid!r}): the checkpoint holds operator state {name!r}, which is not "
                f"declared any more; declare it again, or start with allow_dropped_state to leave it behind"
            )
        return found

    def _read(self, name: str, one: _Saved) -> Any:
        state, where = self._declaration(name), self._where
        who = f"operator {where.name!r} (uid {where.uid!r})"
        if one.kind != state.kind:
            if self._allow_dropped:
                return MISSING
            raise IncompatibleState(f"{who}: {other_kind(name, one.kind, state.kind)}")
        if not takes(one.type, one.encoding, one.classes, state.type):
            if self._allow_dropped:
                return MISSING
            raise IncompatibleState(f"{who}: {other_type(name, one.type, type_name(state.type), where.uid)}")
        try:
            return decoder(one.encoding, state.codec_kind, state.type, name, one.classes)(one.data)
        except ChangedClass as error:
            if self._allow_dropped:
                return MISSING
            raise IncompatibleState(f"{who}: {other_class(name, error, where.uid)}") from error
        except Exception as error:
            raise IncompatibleState(
                f"{who}: operator state {name!r} in the checkpoint ({one.type}, "
                f"{one.encoding}) cannot be read as {type_name(state.type)}: {error_text(error)}; declare the "
                f"type that it had, or give the new state another name"
            ) from error


def saved_copies(data: bytes) -> dict[str, tuple[TableInfo, bytes]]:
    """Name -> the description, as of a `MapState`, and the bytes of each broadcast state in what an operator saved."""
    saved = _decoder.decode(data)
    return {
        name: (TableInfo(name, "map", one.encoding, one.type, one.classes), one.data)
        for name, one in saved.items()
        if one.kind == BROADCAST
    }


def saved_copy(table: TableInfo, codec: Codec, entries: dict[Any, Any]) -> tuple[TableInfo, bytes]:
    """The description of a broadcast state with these entries, and its part in what an operator saves. Errors of the encoder
    are passed on."""
    data = codec.encode(entries)
    saved = _Saved(codec.name, table.type, True, data, codec.notes.listed, BROADCAST)
    made = TableInfo(table.name, BROADCAST, codec.name, table.type, saved.classes, not entries, listed=True)
    return made, _encoder.encode(saved)


def with_copies(data: bytes | None, new: Mapping[str, bytes], gone: Collection[str]) -> bytes | None:
    """What an operator saved, without the broadcast states `gone`, and with new ones (`saved_copy`) by their names."""
    saved = {} if data is None else _decoder.decode(data)
    left = {name: one for name, one in saved.items() if name not in gone}
    left |= {name: msgspec.msgpack.decode(one, type=_Saved) for name, one in new.items()}
    return _encoder.encode(left) if left else None


def other_kind(name: str, old: str, new: str) -> str:
    """A sentence for the user: a state that belongs to no key is of another kind now."""
    return f"state {name!r} was of kind {old!r}, and is declared as {new!r} now; give the new state another name"


def not_dealt_out(name: str, declared: str, old: int, new: int) -> str:
    """A sentence for the user: an operator state cannot be restored at another parallelism."""
    return (
        f"operator state {name!r} ({declared}) was saved at parallelism {old} and cannot be dealt out to {new} subtasks, "
        f"because it is not a list; keep parallelism={old}, or hold a list in it"
    )
