"""Declarations of state in functions, and the handles that functions use.

A declaration (`best = ValueState(float, default=None)`) stands on the class. When a subtask opens the function, it binds
every declaration, inherited ones too, on the *instance*: the attribute then is a handle that accesses the value of the
current key. Outside a keyed call a handle raises `StateAccessError`: the place of the key then holds a `NoKey`, which
cannot be hashed, so the fast path needs no check of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from inspect import isclass
from typing import Any, NoReturn, Protocol, cast

import msgspec

from tailrace.elements.callables import PLAIN, check_put, misfit_function, set_checked
from tailrace.errors import GraphError, StateAccessError, short_repr
from tailrace.spelling import with_hints
from tailrace.state.backend import Backend
from tailrace.state.codecs import codec_for, immutable
from tailrace.state.tables import StateTable
from tailrace.state.ttl import Ttl, check_ttl
from tailrace.state.views import ListView, MapView

_MISSING: Any = object()


class NoKey:
    """A stand-in for the current key while there is none. Hashing it raises `StateAccessError`."""

    __slots__ = ("operator",)

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def __hash__(self) -> int:
        raise StateAccessError(
            f"operator {self.operator!r}: keyed state was used where there is no key (in open, in close or outside a "
            f"call); use it in a method that is called for a key, such as process or on_timer"
        )


class Unbound:
    """A stand-in, in a declaration, for the objects through which a handle accesses the state. It is an object that raises,
    and not a `__getattr__` of the handle: with `__getattr__`, Python takes half as long again to read or write a value."""

    __slots__ = ("_state",)

    def __init__(self, state: State) -> None:
        self._state = state

    def __getattr__(self, name: str) -> NoReturn:
        raise StateAccessError(
            f"state {self._state.name or '(without a name)'!r} is only declared, not bound: declare it on the "
            f"class of the function (not in __init__); it can be used once a job (or tr.testing) has opened the "
            f"function"
        )


class KeyHolder(Protocol):
    """An object that holds the current key: the context of a keyed operator."""

    current_key: Any


_BINDING = ("_add", "_holder", "_lifetime", "_merge", "_result", "_table", "_top")


class State:
    """The base class of all keyed states: a declaration until it is bound."""

    kind = "state"
    # With slots a misspelt attribute (`self.total.valeu = 3`) is an error, and not a new attribute that no code reads.
    __slots__ = ("_holder", "_lifetime", "_table", "_top", "encoding", "name", "ttl", "type")

    _holder: KeyHolder
    _table: StateTable
    _top: dict[Any, Any]
    """The top layer of the table; another dictionary after each freeze."""
    _lifetime: Any
    """The lifetimes of its entries (`state.ttl_lifetimes.Lifetime`), if it has a time to live."""

    def __init__(self, type: Any = object, *, ttl: Ttl | None = None, encoding: str | None = None) -> None:
        self.ttl = check_ttl(ttl, self.kind)
        codec_for(self.kind, type, encoding, self.kind)
        self.type = type
        self.encoding = encoding
        """The encoding of values, "pickle" or "msgspec"; None: msgspec for a `msgspec.Struct`, else pickle."""
        self.name = ""
        self._unbind()

    def _unbind(self) -> None:
        self._holder = self._table = self._top = cast(Any, Unbound(self))

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @property
    def aggregated_by(self) -> str:
        """The aggregate whose accumulators the state holds, a builtin one or "custom"; empty if it holds none."""
        return ""

    def bind(self, backend: Backend, holder: KeyHolder) -> State:
        """A handle of this declaration on the backend of one subtask."""
        handle = copy.copy(self)
        handle._holder = holder
        table = backend.table(self.name, kind=self.kind, type=self.type, encoding=self.encoding, ttl=self.ttl)
        handle._table = table
        if self.aggregated_by:
            table.info = msgspec.structs.replace(table.info, aggregate=self.aggregated_by)
        handle._top = table.top
        table.users.append(handle)
        return handle

    def clear(self) -> None:
        """Removes the value of the current key."""
        key = self._holder.current_key
        if key in self._table:  # the `pop` of an empty dictionary would not hash the key
            self._table.pop(key)

    def _find(self, default: Any) -> Any:
        key = self._holder.current_key
        found = self._top.get(key, _MISSING)
        return found if found is not _MISSING else self._table.find(key, default)

    def exists(self) -> bool:
        """True if the current key has a value."""
        return self._holder.current_key in self._table

    def __getstate__(self) -> dict[str, Any]:
        """The declaration alone: the binding of a handle stays in its subtask."""
        slots = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ()) if name not in _BINDING]
        return {name: getattr(self, name) for name in slots}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._unbind()


@with_hints
class ValueState(State):
    """One value per key. `default` is the value of a key without one; a mutable default is copied per key."""

    kind = "value"
    __slots__ = ("_plain_default", "default")

    def __init__(
        self, type: Any = object, *, default: Any = None, ttl: Ttl | None = None, encoding: str | None = None
    ) -> None:
        super().__init__(type, ttl=ttl, encoding=encoding)
        self.default = default
        self._plain_default = immutable(default)

    @property
    def value(self) -> Any:
        """The value of the current key, or the default."""
        found = self._top.get(self._holder.current_key, _MISSING)
        return found if found is not _MISSING else self._below()

    @value.setter
    def value(self, new: Any) -> None:
        if type(new) not in PLAIN:
            check_put(self.name, new)
        self._top[self._holder.current_key] = new

    def __iadd__(self, more: Any) -> NoReturn:
        raise StateAccessError(f"state {self.name!r}: a state is no number itself: write self.{self.name}.value += …")

    def get(self) -> Any:
        """The value of the current key, like `.value`."""
        return self.value

    def update(self, new: Any) -> None:
        """Sets the value of the current key, like an assignment to `.value`."""
        self.value = new

    def _below(self) -> Any:
        """The value of the current key in a layer below `top`, or the default."""
        if self._table.layered:
            found = self._table.find(self._holder.current_key, _MISSING)
            if found is not _MISSING:
                return found
        if self._plain_default:
            return self.default
        # The copy of a mutable default is stored at its first reading, so that a change in place is not lost.
        made = copy.deepcopy(self.default)
        self._top[self._holder.current_key] = made
        return made


@with_hints
class ListState(State):
    """A list per key. Used like a list: `append`, `extend`, iteration, `len`, indexing, `in`."""

    kind = "list"
    __slots__ = ()

    def _list(self) -> list[Any]:
        key = self._holder.current_key
        found: list[Any] | None = self._top.get(key)
        if found is None:
            found = self._table.find(key)
        return [] if found is None else found

    def get(self) -> list[Any]:
        """A copy of the list of the current key, which the caller may hand on; empty if there is none. It refuses changes,
        which would be lost: use `append`, `extend` and `update` to change the state, or make a list of it. Its items are
        the items of the state itself."""
        return ListView(self._list())

    @property
    def value(self) -> list[Any]:
        """A copy of the list of the current key, like `get()`."""
        return self.get()

    @value.setter
    def value(self, new: Iterable[Any]) -> None:
        self.update(new)

    def append(self, item: Any) -> None:
        """Appends one item."""
        if type(item) not in PLAIN:
            check_put(self.name, item)
        found = self._list()  # in the top layer: a list from below is moved up
        if found:
            found.append(item)
        else:
            self._top[self._holder.current_key] = [item]

    add = append

    def extend(self, items: Iterable[Any]) -> None:
        """Appends several items."""
        more = list(items)
        check_put(self.name, *more)
        self._store([*self._list(), *more])

    def update(self, new: Iterable[Any]) -> None:
        """Replaces the list; an empty list clears it."""
        items = list(new)
        check_put(self.name, *items)
        self._store(items)

    def _store(self, items: list[Any]) -> None:
        if items:
            self._top[self._holder.current_key] = items
        else:
            self.clear()

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._list()))

    def __len__(self) -> int:
        return len(self._list())

    def __contains__(self, item: object) -> bool:
        return item in self._list()

    def __getitem__(self, index: Any) -> Any:
        return self._list()[index]

    def __setitem__(self, index: Any, item: Any) -> None:
        items = self._list()
        if isinstance(index, slice):
            item = list(item)
            check_put(self.name, *item)
        else:
            check_put(self.name, item)
        items[index] = item
        self._store(items)

    def __delitem__(self, index: Any) -> None:
        items = self._list()
        del items[index]
        self._store(items)


@with_hints
class MapState(State):
    """A mapping per key: `MapState(str, int)`. Used like a dict."""

    kind = "map"
    __slots__ = ()

    def __init__(
        self, key_type: Any = object, value_type: Any = object, *, ttl: Ttl | None = None, encoding: str | None = None
    ) -> None:
        super().__init__((key_type, value_type), ttl=ttl, encoding=encoding)

    def _map(self) -> dict[Any, Any]:
        found: dict[Any, Any] | None = self._find(None)
        return {} if found is None else found

    def get(self, key: Any = _MISSING, default: Any = None) -> Any:
        """The value of the entry `key`, or `default`; without arguments a copy of the whole mapping, like `.value`."""
        return MapView(self._map()) if key is _MISSING else self._map().get(key, default)

    @property
    def value(self) -> dict[Any, Any]:
        """A copy of the whole mapping. It refuses changes, which would be lost: change the state itself, or make a
        dictionary of it. Its values are the values of the state itself."""
        return MapView(self._map())

    @value.setter
    def value(self, new: Mapping[Any, Any]) -> None:
        entries = dict(new)
        check_put(self.name, *entries.values())
        self._store(entries)

    def update(self, new: Mapping[Any, Any]) -> None:
        """Adds or replaces these entries."""
        more = dict(new)
        check_put(self.name, *more.values())
        self._store({**self._map(), **more})

    def put(self, key: Any, value: Any) -> None:
        """Sets one entry."""
        if type(value) not in PLAIN:
            check_put(self.name, value)
        entries = self._map()
        entries[key] = value
        self._store(entries)

    def remove(self, key: Any) -> None:
        """Removes one entry, if it is there."""
        entries = self._map()
        if key in entries:
            del entries[key]
            self._store(entries)

    def _store(self, entries: dict[Any, Any]) -> None:
        if entries:
            self._top[self._holder.current_key] = entries
        else:
            self.clear()

    def contains(self, key: Any) -> bool:
        """True if there is an entry `key`."""
        return key in self._map()

    def keys(self) -> list[Any]:
        """The keys of the entries."""
        return list(self._map())

    def values(self) -> list[Any]:
        """The values of the entries."""
        return list(self._map().values())

    def items(self) -> list[tuple[Any, Any]]:
        """The entries."""
        return list(self._map().items())

    def __getitem__(self, key: Any) -> Any:
        return self._map()[key]

    __setitem__ = put

    def __delitem__(self, key: Any) -> None:
        entries = self._map()
        del entries[key]
        self._store(entries)

    __contains__ = contains

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self._map())


def _check_function(fn: Any, kind: str, name: str) -> None:
    """Raises `GraphError` for a function that can never return a value."""
    if (wrong := misfit_function(fn)) is not None:
        raise GraphError(f"{kind}: {name} {wrong}")


@with_hints
class ReducingState(State):
    """One value per key into which every added value is merged by `reduce(a, b)`."""

    kind = "reducing"
    __slots__ = ("_merge", "reduce")

    _merge: Callable[[Any, Any], Any]

    def __init__(
        self,
        type: Any = object,
        reduce: Callable[[Any, Any], Any] | None = None,
        *,
        ttl: Ttl | None = None,
        encoding: str | None = None,
    ) -> None:
        super().__init__(type, ttl=ttl, encoding=encoding)
        if reduce is None or not callable(reduce):
            raise GraphError("ReducingState needs a function: ReducingState(float, reduce=max)")
        _check_function(reduce, "ReducingState", getattr(reduce, "__name__", "reduce"))
        self.reduce = reduce

    def bind(self, backend: Backend, holder: KeyHolder) -> State:
        """A handle of this declaration on the backend of one subtask. Checks the first value of the function."""
        handle = super().bind(backend, holder)
        set_checked(handle, "_merge", self.reduce, f"state {self.name!r}: reduce")
        return handle

    def add(self, item: Any) -> None:
        """Merges one value in."""
        found = self._find(_MISSING)
        if found is _MISSING:
            self.update(item)
        else:
            self._top[self._holder.current_key] = self._merge(found, item)

    def get(self) -> Any:
        """The merged value, or None."""
        return self._find(None)

    @property
    def value(self) -> Any:
        """The merged value, like `get()`."""
        return self.get()

    @value.setter
    def value(self, new: Any) -> None:
        self.update(new)

    def update(self, new: Any) -> None:
        """Replaces the merged value."""
        if type(new) not in PLAIN:
            check_put(self.name, new)
        self._top[self._holder.current_key] = new


@with_hints
class AggregatingState(State):
    """An accumulator per key: `AggregatingState(object, aggregate=tr.Mean())`. Values go in, the result comes out."""

    kind = "aggregating"
    __slots__ = ("_add", "_result", "aggregate")

    _add: Callable[..., Any]
    _result: Callable[..., Any]

    def __init__(
        self, type: Any = object, aggregate: Any = None, *, ttl: Ttl | None = None, encoding: str | None = None
    ) -> None:
        super().__init__(type, ttl=ttl, encoding=encoding)
        if isclass(aggregate) or not hasattr(aggregate, "create_accumulator"):
            raise GraphError(
                "AggregatingState needs an aggregate function: AggregatingState(object, aggregate=tr.Mean())"
            )
        for name in ("create_accumulator", "add", "get_result"):
            _check_function(getattr(aggregate, name), "AggregatingState", f"{aggregate.__class__.__name__}.{name}")
        self.aggregate = aggregate

    def bind(self, backend: Backend, holder: KeyHolder) -> State:
        """A handle of this declaration on the backend of one subtask. Checks the first accumulator and result."""
        handle = super().bind(backend, holder)
        set_checked(handle, "_add", self.aggregate.add, f"state {self.name!r}: add")
        set_checked(handle, "_result", self.aggregate.get_result, f"state {self.name!r}: get_result")
        return handle

    @property
    def aggregated_by(self) -> str:
        """The aggregate whose accumulators the state holds, a builtin one or "custom"."""
        builtin = type(self.aggregate).__module__ == "tailrace.api.aggregates"
        return str(self.aggregate.described) if builtin else "custom"

    def add(self, item: Any) -> None:
        """Adds one value to the accumulator."""
        found = self._find(_MISSING)
        accumulator = self.aggregate.create_accumulator() if found is _MISSING else found
        self._top[self._holder.current_key] = self._add(item, accumulator)

    def get(self) -> Any:
        """The result over the added values, or None if there are none."""
        found = self._find(_MISSING)
        return None if found is _MISSING else self._result(found)

    @property
    def value(self) -> Any:
        """The result, like `get()`."""
        return self.get()

    @value.setter
    def value(self, new: Any) -> None:
        self.update(new)

    def update(self, new: Any) -> None:
        """Replaces the *accumulator* (what `create_accumulator` and `add` return), not the result."""
        if type(new) not in PLAIN:
            check_put(self.name, new)
        self._top[self._holder.current_key] = new


class Delegate:
    """Base of functions that call another one, `fn`, which declares their states and has the handles."""

    fn: Any


def _declarer(function: object) -> object:
    return function.fn if isinstance(function, Delegate) else function


class Declaring:
    """Base of functions of this library that declare states by their arguments, beside those of their class."""

    def declared_states(self) -> dict[str, State]:
        """Attribute name -> state, made anew at each call."""
        raise NotImplementedError


def states_of(function: object) -> dict[str, State]:
    """Attribute name -> state that a function declares: its class does, inherited ones too, or its arguments do."""
    found: dict[str, State] = {}
    for owner in reversed(type(_declarer(function)).__mro__):
        for name, value in vars(owner).items():
            if isinstance(value, State):
                found[name] = value
            elif name in found:
                del found[name]  # a subclass hides the declaration with another attribute
    if isinstance(function, Declaring):
        for name, state in function.declared_states().items():
            state.name = name
            found[name] = state
    return found


Bound = dict[str, State]
"""Attribute name -> handle of a function."""


def bind_all(function: object, backend: Backend, holder: KeyHolder) -> Bound:
    """Binds every declared state of a function on the instance."""
    bound = {name: declaration.bind(backend, holder) for name, declaration in states_of(function).items()}
    for name, handle in bound.items():
        setattr(_declarer(function), name, handle)
    return bound


def check_bound(function: object, bound: Mapping[str, object]) -> None:
    """Raises `StateAccessError` if user code has replaced a handle: `self.total = 5` would make an attribute that all keys
    share. Called once per batch, because a check at each assignment would slow down every access to a handle."""
    for name, handle in bound.items():
        found = getattr(_declarer(function), name, None)
        if found is not handle:
            raise StateAccessError(
                f"state {name!r} was replaced by {short_repr(found, 80)} (self.{name} = ...), which belongs to no key and "
                f"is in no checkpoint; to set the value of the current key, write {_assignment(handle, name)}"
            )


def _assignment(handle: object, name: str) -> str:
    return f"self.{name}[key] = ..." if isinstance(handle, MapState) else f"self.{name}.value = ..."
