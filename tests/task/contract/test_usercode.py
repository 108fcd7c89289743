"""Exceptions of odd classes: whatever user code raises, the worker reports it, and nothing else."""

from __future__ import annotations

import collections
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.protocol import message_codec
from tailrace.protocol.deployment import Failed, FailureKind
from tailrace.task.contract.usercode import user_error
from tailrace.task.worker.attribution import fault_of

BASES: tuple[type[BaseException], ...] = (
    Exception, ValueError, KeyError, OSError, AttributeError, NameError, ImportError, SyntaxError, StopIteration,
    RuntimeError, UnicodeError, TimeoutError, MemoryError, RecursionError, SystemExit, KeyboardInterrupt, GeneratorExit,
    BaseException,
)  # fmt: skip


def refuse(*args: Any) -> Any:
    raise RuntimeError("nothing to see here")


ODDITIES: dict[str, Any] = {
    "__str__": refuse,
    "__repr__": refuse,
    "__reduce__": refuse,
    "__reduce_ex__": refuse,
    "__eq__": refuse,
    "__hash__": None,
    "__bool__": refuse,
    "__len__": refuse,
    "__iter__": refuse,
    "__getattr__": refuse,
    "__init__": lambda self, needed, *more: None,
    "__module__": None,
    "__qualname__": "half \ud800 of a pair",
    "__notes__": property(refuse),
    "__slots__": (),
    "args": property(refuse),
    "name": property(refuse),
    "obj": property(refuse),
    "text": property(refuse),
    "filename": property(refuse),
    "lineno": property(refuse),
    "msg": property(refuse),
}
ARGUMENTS: list[Any] = [(), (1,), ("half \ud800 of a pair",), (None, {}), (b"\xff", [1]), ("x" * 2_000,), (object(),)]
NOTES: list[Any] = [None, 3, ["a note"], [7, None], "abc", [b"\xff"], collections.UserList(["a"])]
"""Values that a class may have for `__notes__`."""


class Unnamed(type):
    """The class of a class that cannot be printed."""

    __str__ = __repr__ = refuse


@st.composite
def errors(draw: st.DrawFn, depth: int = 2) -> BaseException:
    """An exception that was raised, and perhaps its cause and its context."""
    base = draw(st.sampled_from(BASES))
    body = {name: ODDITIES[name] for name in draw(st.sets(st.sampled_from(sorted(ODDITIES)), max_size=4))}
    kind: Any = (Unnamed if draw(st.booleans()) else type)("Odd", (base,), body)
    made: BaseException = kind.__new__(kind, *draw(st.sampled_from(ARGUMENTS)))
    notes = draw(st.sampled_from(NOTES))
    if notes is not None and "__notes__" not in body:
        made.__notes__ = notes
    if depth and draw(st.booleans()):
        made.__cause__ = draw(errors(depth - 1))
    if depth and draw(st.booleans()):
        made.__context__ = draw(errors(depth - 1)) if draw(st.booleans()) else made.__cause__
    if made.__cause__ is not None and draw(st.booleans()):
        made.__cause__.__cause__ = made  # each is the other's
    if depth and issubclass(base, Exception) and draw(st.integers(0, 4)) == 0:
        made = BaseExceptionGroup("many", [made, draw(errors(depth - 1))])
    return made


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


@given(errors(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_an_exception_of_any_class_travels_as_the_users(error: BaseException, located: bool) -> None:
    found = raised(error)
    if located:
        found = user_error(found, "guilty", 3, error)
    result = message_codec.decode_from_worker(message_codec.encode(fault_of(found, 3, "guilty")))
    assert isinstance(result, Failed) and any(name in result.message for name in ("Odd", "of a pair", "many"))
    assert "in raised" in result.message, "where it was raised"
    if located or not isinstance(error, Exception):
        assert (result.kind, result.operator, result.subtask) == (FailureKind.USER, "guilty", 3)
        assert "inside tailrace" not in result.message
