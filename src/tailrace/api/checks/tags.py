"""The tags to which a function emits, as far as its code shows them."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any


def tags_of(fn: Any) -> set[str]:
    """The tags to which a function or the methods of a function object emit; empty if some are not constants."""
    found: set[str] = set()
    for code in _bodies(fn):
        instructions = list(dis.get_instructions(code))
        for at, one in enumerate(instructions):
            if one.argval != "emit" or one.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                continue
            following = [i for i in instructions[at + 1 : at + 4] if i.opname not in ("PUSH_NULL", "CACHE", "PRECALL")]
            if not following or following[0].opname != "LOAD_CONST" or not isinstance(following[0].argval, str):
                return set()
            found.add(following[0].argval)
    return found


def _bodies(fn: Any) -> Iterator[CodeType]:
    functions = [fn] if isinstance(fn, FunctionType | MethodType) else []
    if not functions:
        functions = [
            value for owner in type(fn).__mro__ for value in vars(owner).values() if isinstance(value, FunctionType)
        ]
    waiting = [function.__code__ for function in functions]
    while waiting:
        code = waiting.pop()
        yield code
        waiting += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
