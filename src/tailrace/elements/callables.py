"""What a call of user code gives: one value, or several records."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from typing import Any

_ONE = (str, bytes, bytearray, memoryview, Mapping)
_TABLES = ("DataFrame", "Series", "RecordBatch", "Table", "LazyFrame")


def misfit_function(fn: Any, *, several: bool = False) -> str | None:
    """Why a function can never give what is wanted of it, as the end of a sentence that begins with its name: it is
    asynchronous, or, where one value is wanted (`several` is false), it yields. None where it can."""
    work = fn
    while isinstance(work, functools.partial):
        work = work.func
    if callable(work) and not inspect.isroutine(work) and not inspect.isclass(work):
        work = type(work).__call__
    if inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        return "is an async function, and nobody would await what it gives; write a plain function that waits for its result"
    if not several and inspect.isgeneratorfunction(work):
        return (
            "yields, so each call gives a generator and no value; return the value, or use flat_map or process, which send "
            "on all that a function yields"
        )
    return None


def one_for_several(value: Any) -> str | None:
    """What a value is that can be gone through and yet is hardly meant as several records: a text, bytes, a dictionary, a
    row or another named tuple, or a table. None for any other."""
    kind: Any = type(value)
    return _name_of_one(kind)


@functools.lru_cache(1024)
def _name_of_one(kind: type) -> str | None:
    named = issubclass(kind, tuple) and hasattr(kind, "_fields")
    one = named or issubclass(kind, _ONE) or kind.__name__ in _TABLES
    return str(kind.__name__) if one else None
