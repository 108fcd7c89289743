"""The rebinding of functions: another object takes a function's place, wherever Python code has bound it."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import BuiltinMethodType, CellType, FunctionType
from typing import Any


@contextlib.contextmanager
def _all_in_sight() -> Iterator[None]:
    """Context in which the collector finds what is there, also what was frozen."""
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        yield
    finally:
        if frozen:
            gc.freeze()


def methods_of_c(owners: Sequence[type], names: Iterable[str]) -> list[tuple[Any, Any]]:
    """Methods of these names that are written in C and that a module has bound (`now = datetime.now`), each with the
    method that its class has by now."""
    classes, methods = {id(one) for one in owners}, set(names)
    with _all_in_sight():
        bound = [one for one in gc.get_referrers(*owners) if isinstance(one, BuiltinMethodType)]
    return [
        (one, getattr(one.__self__, one.__name__))
        for one in bound
        if id(one.__self__) in classes and one.__name__ in methods
    ]


def rebind(pairs: Sequence[tuple[Any, Any]], spared: Iterable[Any] = ()) -> None:
    """Puts the second object of each pair in the place of the first one: in modules, classes, objects, lists, closures,
    defaults of functions and `functools.partial`. Objects in `spared` keep what they refer to, and so do tuples, sets, and
    objects with slots."""
    new = {id(one): other for one, other in pairs}
    old = [one for one, _ in pairs]
    kept = {id(one) for one in (new, old, pairs, *pairs, *spared)}
    with _all_in_sight():
        _rebind(old, new, kept)


def _rebind(old: Sequence[Any], new: dict[int, Any], kept: set[int]) -> None:
    defaults: list[tuple[Any, ...]] = []
    names_of: list[dict[Any, Any]] = []
    for holder in gc.get_referrers(*old):
        if id(holder) in kept:
            continue
        if isinstance(holder, dict):
            names_of.append(holder)
            _swap(holder, new)
        elif isinstance(holder, list):
            holder[:] = [new.get(id(one), one) for one in holder]
        elif isinstance(holder, CellType):
            holder.cell_contents = new[id(holder.cell_contents)]
        elif isinstance(holder, functools.partial):
            state = holder.__reduce__()[2]
            holder.__setstate__((new.get(id(holder.func), holder.func), *state[1:]))  # type: ignore[index,attr-defined]
        elif isinstance(holder, tuple):
            defaults.append(holder)
        elif isinstance(names := getattr(holder, "__dict__", None), dict):
            _swap(names, new)
    _swap_defaults(defaults, new)
    for owner in gc.get_referrers(*names_of) if names_of else ():
        if isinstance(owner, type):
            _note_change(owner)


def _swap(names: dict[Any, Any], new: dict[int, Any]) -> None:
    for name, value in list(names.items()):
        if id(value) in new:
            names[name] = new[id(value)]


def _swap_defaults(defaults: Sequence[tuple[Any, ...]], new: dict[int, Any]) -> None:
    """Swaps the defaults of functions that have these tuples as their defaults."""
    for function in gc.get_referrers(*defaults) if defaults else ():
        if isinstance(function, FunctionType) and function.__defaults__ is not None:
            function.__defaults__ = tuple(new.get(id(one), one) for one in function.__defaults__)


def set_in_class(owner: type, name: str, before: Any, after: Any) -> None:
    """Sets an attribute of a class, also of one that C has made, if it is still what it was before. Where Python does not
    show the names of such a class, it stays as it is."""
    names: Any = next((one for one in gc.get_referents(owner.__dict__) if isinstance(one, dict)), None)
    if names is not None and names.get(name) is before:
        names[name] = after
        _note_change(owner)


def _note_change(owner: type) -> None:
    """Has Python look up the attributes of a class and of its subclasses anew."""
    modified: Callable[[Any], Any] = ctypes.pythonapi.PyType_Modified
    modified(ctypes.py_object(owner))
