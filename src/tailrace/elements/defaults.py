"""Defaults of the fields of classes, whatever library made these."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, is_typeddict

import msgspec


def defaults_of(kind: type, encoded: bool = False) -> dict[str, Callable[[], Any]]:
    """What makes the default of a field, by its name or the name that msgspec encodes it by."""
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
        return {name: partial(_same, None) for name in dictionary.__optional_keys__}  # that it may be without
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
    """Whether msgspec may leave out such a default (`omit_defaults`): a value, or an empty collection."""
    return make in (list, dict, set) or (isinstance(make, partial) and make.func is _same)
