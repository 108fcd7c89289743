"""Defaults of the fields of classes, whatever library made the classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, is_typeddict

import msgspec


def defaults_of(kind: type, encoded: bool = False) -> dict[str, Callable[[], Any]]:
    """Name of a field that has a default -> function that makes the default. With `encoded` it is the name that msgspec
    writes."""
    if issubclass(kind, msgspec.Struct):
        return {
            one.encode_name if encoded else one.name: _either(one.default, one.default_factory, msgspec.NODEFAULT)
            for one in msgspec.structs.fields(kind)
            if not one.required
        }
    if issubclass(kind, tuple):
        given: Mapping[str, Any] = getattr(kind, "_field_defaults", {})
        return {name: partial(_same, value) for name, value in given.items()}
    if is_typeddict(kind):
        dictionary: Any = kind
        return {name: partial(_same, None) for name in dictionary.__optional_keys__}  # optional, so without a default
    if hasattr(kind, "__dataclass_fields__"):
        return {
            one.name: _either(one.default, one.default_factory, dataclasses.MISSING)
            for one in dataclasses.fields(kind)  # type: ignore[arg-type]
            if not (one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING)
        }
    return dict(_defaults_of_attrs(getattr(kind, "__attrs_attrs__", ())))


def _either(default: Any, factory: Any, missing: Any) -> Callable[[], Any]:
    made: Callable[[], Any] = factory
    return made if default is missing else partial(_same, default)


def _same(value: Any) -> Any:
    return value


def _defaults_of_attrs(fields: Iterable[Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    for one in fields:
        default = one.default
        if type(default).__name__ == "Factory":  # attrs need not be installed here
            if not default.takes_self:
                yield one.name, default.factory
        elif repr(default) != "NOTHING":
            yield one.name, partial(_same, default)


def left_out(make: Any) -> bool:
    """True if msgspec may leave out a default that `make` makes (`omit_defaults`): a value, or an empty collection."""
    return make in (list, dict, set) or (isinstance(make, partial) and make.func is _same)
