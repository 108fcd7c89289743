"""Copies of a list or a map in state, as a whole. They refuse changes, since these would be lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from tailrace.errors import StateAccessError

T = TypeVar("T", bound=type)


def _refusing(*methods: str) -> Callable[[T], T]:
    """A decorator of a class that makes these methods raise `StateAccessError`."""

    def refuse(name: str) -> Callable[..., NoReturn]:
        def refusing(self: Any, *args: Any, **named: Any) -> NoReturn:
            state, instead, plain = self.SAYS
            raise StateAccessError(
                f"what value and get() of a tr.{state} give is a copy, and a change of it (here by {name}) would be lost; "
                f"change the state itself: {instead}; or take a {plain} of your own: {plain}(self.name.value)"
            )

        refusing.__name__ = name
        return refusing

    def make(kind: T) -> T:
        for name in methods:
            setattr(kind, name, refuse(name))
        return kind

    return make


@_refusing(
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "__setitem__", "__delitem__", "__iadd__",
    "__imul__",
)  # fmt: skip
class ListView(list[Any]):
    """The items of a `ListState`. A pickled or copied view is a plain list."""

    __slots__ = ()
    SAYS = "ListState", "self.name.append(item), self.name[i] = item, self.name.update(items)", "list"

    def copy(self) -> list[Any]:
        """A plain list of the items."""
        return list(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return list, (list(self),)


@_refusing("__setitem__", "__delitem__", "pop", "popitem", "clear", "update", "setdefault", "__ior__")
class MapView(dict[Any, Any]):
    """The entries of a `MapState`. A pickled or copied view is a plain dictionary."""

    __slots__ = ()
    SAYS = "MapState", "self.name[key] = value, del self.name[key], self.name.update(entries)", "dict"

    def copy(self) -> dict[Any, Any]:
        """A plain dictionary of the entries."""
        return dict(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(self),)
