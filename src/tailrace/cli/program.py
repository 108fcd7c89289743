"""Loads a user's file as the program of this process: the module `__main__`, as `python FILE.py` does."""

from __future__ import annotations

import sys
import types
from typing import Any

_UNDER_WAY = "tailrace_run"
"""The `__name__` of a file of which only a function is needed: code under `if __name__ == "__main__":` does not run."""


def run_as_main(path: str) -> None:
    """Runs a file as a script. Its module stays `__main__` for as long as the process lives: jobs that it started go on,
    and results with objects of its classes are unpickled later."""
    _execute(path, _made_main(path))


def load_as_main(path: str) -> dict[str, Any]:
    """Runs a file without the code under `if __name__ == "__main__":`, and returns its names. Its classes and functions
    still belong to `__main__`, so a checkpoint means the same class however the file is run."""
    module = _made_main(path)
    names = vars(module)
    module.__name__ = _UNDER_WAY
    sys.modules[_UNDER_WAY] = module  # dataclasses look up what their annotations name
    try:
        _execute(path, module)
    finally:
        module.__name__ = "__main__"
        del sys.modules[_UNDER_WAY]
    for value in list(names.values()):
        _adopt(value)
    return names


def _made_main(path: str) -> types.ModuleType:
    module = types.ModuleType("__main__")
    module.__file__ = path
    vars(module)["__builtins__"] = __builtins__
    sys.modules["__main__"] = module
    return module


def _execute(path: str, module: types.ModuleType) -> None:
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(module))


def _adopt(value: Any) -> None:
    """Sets the module of a class, with the classes and functions defined in it, or of a function to `__main__`."""
    if not isinstance(value, type | types.FunctionType) or value.__module__ != _UNDER_WAY:
        return
    value.__module__ = "__main__"
    if isinstance(value, type):
        for inner in list(vars(value).values()):
            _adopt(inner)
