"""Checks of user functions and of what they return: one value, or several records."""

from __future__ import annotations

import dis
import functools
import inspect
from collections import UserString
from collections.abc import Callable, Iterator, Mapping
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

_ONE = (str, UserString, bytes, bytearray, memoryview, Mapping)
_WORK = (CoroutineType, AsyncGeneratorType, GeneratorType, map, filter)
_TABLES = ("DataFrame", "Series", "RecordBatch", "Table", "LazyFrame")


def misfit_function(fn: Any, *, several: bool = False) -> str | None:
    """The reason why a function can never return what is required, as the end of a sentence that begins with its name: it
    is asynchronous, or it yields where one value is required (`several` is false). None if there is no such reason."""
    work = _work_of(fn)
    if inspect.iscoroutinefunction(work) or inspect.isasyncgenfunction(work):
        return "is an async function, and nobody would await what it gives; write a plain function that waits for its result"
    if not several and inspect.isgeneratorfunction(work):
        return (
            "yields, so each call gives a generator and no value; return the value, or use flat_map or process, which send "
            "on all that a function yields"
        )
    return None


def _work_of(fn: Any) -> Any:
    """The function that a call of `fn` runs."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return type(fn).__call__ if callable(fn) and not inspect.isroutine(fn) and not inspect.isclass(fn) else fn


def run_to_its_end(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of several records that loses none. If `fn` yields and may also return a value, which Python drops, the
    result is a wrapper that raises `TypeError` for such a value; else it is `fn`."""
    work = _work_of(fn)
    if not inspect.isgeneratorfunction(work) or not _returns_a_value(work):
        return fn

    @functools.wraps(fn)
    def run_watched(*args: Any, **named: Any) -> Iterator[Any]:
        returned = yield from fn(*args, **named)
        if returned is not None:
            raise TypeError(
                f"{work.__name__} yields, and so Python drops the {type(returned).__name__} that it returned; yield that as "
                f"well (yield from, for a list), and return nothing"
            )

    return run_watched


def followed_by(fn: Callable[..., Any], then: Callable[[], object]) -> Callable[..., Any]:
    """A function that calls `fn`, and `then` when the call is over: for one that yields, when it has yielded everything."""

    def call(*args: Any) -> Any:
        result = fn(*args)
        if isinstance(result, GeneratorType):
            return to_the_end(result)
        then()
        return result

    def to_the_end(result: Iterator[Any]) -> Iterator[Any]:
        yield from result
        then()

    return call


def _returns_a_value(work: Any) -> bool:
    """True if some `return` of a function may return something else than None."""
    before: dis.Instruction | None = None
    for one in dis.get_instructions(work):
        constant = one if one.opname == "RETURN_CONST" else before
        if one.opname.startswith("RETURN_") and one.opname != "RETURN_GENERATOR":
            if constant is None or constant.argval is not None or "CONST" not in constant.opname:
                return True
        before = one
    return False


PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, tuple, list, dict, set, frozenset))
"""Types of most values, none of which can be an iterator or a coroutine."""


def not_one_value(value: Any) -> str | None:
    """The name of the class of an object that is no value: a coroutine, or an iterator, which can be read only once. None
    for any other object. A coroutine is closed, because it will not be awaited."""
    kind: Any = type(value)
    if kind in PLAIN or not _is_read_once(kind):
        return None
    if isinstance(value, CoroutineType):
        value.close()
    return str(kind.__name__)


@functools.lru_cache(1024)
def _is_read_once(kind: type) -> bool:
    return issubclass(kind, CoroutineType | AsyncGeneratorType | Iterator)


def work_not_done(value: Any) -> str | None:
    """The name of the class of an object that stands for work not done yet, if a function that is called for its effect
    returns it: a coroutine, which is closed, or a generator. None for any other object, such as a database cursor."""
    if isinstance(value, CoroutineType):
        value.close()
    return type(value).__name__ if isinstance(value, _WORK) else None


def check_kept(value: Any, giver: str, instead: str = "return the value itself") -> None:
    """Raises `TypeError` if an object that is kept, or read more than once, is no value: the first reader would use it up.
    `giver` is the name that the user knows of what gave it, and `instead` what to do, as an order."""
    wrong = not_one_value(value)
    if wrong is not None:
        raise TypeError(
            f"{giver} gave a {wrong}, and no value: whoever reads it first has used it up; {instead}, a list of all for "
            f"example"
        )


def check_put(state: str, *values: Any) -> None:
    """Raises `TypeError` if an object that user code puts into a state is no value (`not_one_value`)."""
    for value in values:
        if type(value) not in PLAIN:
            check_kept(value, f"the function that sets state {state!r}", "put the value itself there")


def set_checked(owner: object, name: str, fn: Callable[..., Any], giver: str) -> None:
    """Sets an attribute of `owner` to a function whose first value is checked (`check_kept`). After that check the attribute
    is the function itself, so that later calls cost nothing more."""

    def call_checked(*args: Any) -> Any:
        given = fn(*args)
        check_kept(given, giver)
        setattr(owner, name, fn)
        return given

    setattr(owner, name, call_checked)


def one_for_several(value: Any) -> str | None:
    """The name of the class of an iterable value that is hardly meant as several records: a text, bytes, a dictionary, a
    row or another tuple of a class of its own, or a table. None for any other value."""
    kind: Any = type(value)
    return _name_of_one(kind)


@functools.lru_cache(1024)
def _name_of_one(kind: type) -> str | None:
    named = issubclass(kind, tuple) and kind is not tuple  # a Row of PySpark has its fields in the object only
    one = named or issubclass(kind, _ONE) or kind.__name__ in _TABLES
    return str(kind.__name__) if one else None
