"""The code of a script as its file has it today, in the place of the code that came with a job.

The file is not run: a script at its top level starts its job. Only imports, functions and classes of it are.
"""

from __future__ import annotations

import ast
import sys
from contextlib import suppress
from pathlib import Path
from types import FunctionType
from typing import Any

_SHARED = ("__dict__", "__weakref__", "__module__")


def take_current_code() -> None:
    """Gives the functions and classes of `__main__` that came with a job the code that the files of their script have."""
    program = vars(sys.modules["__main__"])
    old = {name: one for name, one in program.items() if isinstance(one, FunctionType | type)}
    files = {file for one in old.values() for file in [_file_of(one)] if file and Path(file).is_file()}
    for file in sorted(files):
        names: dict[str, Any] = {"__name__": "__main__", "__file__": file}
        for other in old.values():
            names.update(getattr(other, "__globals__", {}))
        names.update(program)
        made = _definitions(file, names)
        for name, one in old.items():
            new = made.get(name)
            if new is not one and type(new) is type(one) and _file_of(one) == file:
                _take(one, new)
        made.update(old)  # new code, too, refers to the objects that came with the job


def _definitions(file: str, names: dict[str, Any]) -> dict[str, Any]:
    """The functions and classes of a file, made in a namespace of their own that begins with these names."""
    made = dict(names)
    for statement in ast.parse(Path(file).read_text(encoding="utf-8"), file).body:
        code = compile(ast.Module([statement], []), file, "exec")
        if isinstance(statement, ast.Import | ast.ImportFrom):
            with suppress(ImportError):  # the function may do without it; else it names what it lacks
                exec(code, made)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            exec(code, made)
    return made


def _take(old: Any, new: Any) -> None:
    """Gives an object the code of another one. It stays the object that others refer to."""
    if isinstance(old, FunctionType):
        if len(old.__code__.co_freevars) == len(new.__code__.co_freevars):
            old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
            for name, value in new.__globals__.items():
                old.__globals__.setdefault(name, value)
        return
    for name, value in vars(new).items():
        if name not in _SHARED:
            if isinstance(value, FunctionType):
                for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
                    if variable == "__class__":  # what `super()` goes by
                        cell.cell_contents = old
            with suppress(AttributeError, TypeError):  # what a class keeps to itself
                setattr(old, name, value)


def _file_of(one: Any) -> str:
    if isinstance(one, FunctionType):
        return one.__code__.co_filename
    return next((inner.__code__.co_filename for inner in vars(one).values() if isinstance(inner, FunctionType)), "")
