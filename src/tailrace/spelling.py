"""Errors for names that do not exist and options that a function does not have: they name what is meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import FunctionType
from typing import Any, TypeVar

from tailrace.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def instead_of(name: str, instead: Mapping[str, str], known: Iterable[str]) -> str:
    """A hint for a name that does not exist; empty if there is none."""
    found = instead.get(name)
    if found is None and not name.startswith("_"):
        like = closest(name, known)
        found = None if like is None else f"did you mean {like}?"
    return found or ""


def closest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` is a misspelling of; None if it is like none of them."""
    from difflib import get_close_matches  # a misspelt name is rare

    plain = {_plain(one): one for one in known if not one.startswith("_")}
    plain_name = _plain(name)
    begins = [one for one in plain if len(one) >= 4 and plain_name.startswith(one)]
    close = get_close_matches(plain_name, plain, 1, 0.75) or begins
    return plain[close[0]] if close else None


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def missing(owner: str, name: str, instead: Mapping[str, str], known: Iterable[str]) -> AttributeError:
    """The error for a name that an object or a module does not have."""
    found = instead_of(name, instead, known)
    return AttributeError(f"{owner} has no {name!r}{found and f': {found}'}", name=name)


class UnknownOption(ConfigError, TypeError):
    """The error for an argument whose name the function or class does not have."""


def with_hints(cls: C) -> C:
    """A class whose constructor names the right option where one is misspelt. Correct calls are passed on as they are."""
    return _wrap(cls, lambda name: name == "__init__")


def with_hints_of_methods(cls: C) -> C:
    """A class whose constructor and public methods do so."""
    return _wrap(cls, lambda name: name == "__init__" or not name.startswith("_"))


def _wrap(cls: C, chosen: Callable[[str], bool]) -> C:
    for name, function in list(vars(cls).items()):
        if isinstance(function, FunctionType) and chosen(name):
            setattr(cls, name, _hinting(function))
    return cls


def suggest_arguments(function: F) -> F:
    """A public function, wrapped: the error for a misspelt argument names the right one."""
    found: F = _hinting(function)  # type: ignore[arg-type]
    return found


def _hinting(function: FunctionType) -> Any:
    if inspect.unwrap(function).__code__.co_flags & inspect.CO_VARKEYWORDS:
        return function  # it checks its options itself

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            parameters = inspect.signature(function).parameters
            unknown = [name for name in options if name not in parameters]
            trace = error.__traceback__
            if not unknown or trace is None or trace.tb_next is not None:
                raise  # an error inside of the function, not of the call
        known = [name for name in parameters if name != "self"]
        called = function.__name__ if function.__name__ != "__init__" else type(args[0]).__name__
        what = f"{called}: unknown option {', '.join(sorted(unknown))}; the options are {', '.join(known)}"
        raise UnknownOption(what + did_you_mean(unknown, known))

    return call


def did_you_mean(unknown: Iterable[str], known: Iterable[str]) -> str:
    """The end of an error for unknown options: the known ones that are meant, if any."""
    known = list(known)
    return "".join(f"; did you mean {like}?" for one in sorted(unknown) if (like := closest(one, known)))


def own_options(owner: type, verb: str) -> list[str]:
    """The options of a verb beside the ones that all verbs have."""
    method = getattr(owner, verb, None)
    if not isinstance(method, FunctionType):
        return []
    parameters = inspect.signature(method).parameters.values()
    return [one.name for one in parameters if one.default is not inspect.Parameter.empty]
