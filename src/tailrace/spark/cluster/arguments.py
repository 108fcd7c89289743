"""Conversion of plain Python values on their way to the JVM."""

from __future__ import annotations

from typing import Any

_AS_THEY_ARE = frozenset({str, bool, int, float, bytes, bytearray, type(None)})


class _Plain:
    """A converter that PySpark tries first. PySpark checks each value that it hands to the JVM for being one of numpy, and
    imports pandas to find out: two seconds of the start of a session. This converter does with plain values what PySpark
    does with them in the end."""

    def can_convert(self, value: Any) -> bool:
        return type(value) in _AS_THEY_ARE or type(value) in (dict, list)  # a number of numpy may be a float, too

    def convert(self, value: Any, client: Any) -> Any:
        from py4j.java_collections import ListConverter, MapConverter

        if type(value) is dict:
            return MapConverter().convert(value, client)
        return ListConverter().convert(value, client) if type(value) is list else value


_FIRST = _Plain()


def take_plain_values() -> None:
    """Registers `_Plain`, so that plain values go to the JVM of this process without further checks."""
    from py4j import protocol
    from pyspark.sql import types  # noqa: F401 - with its converters, which come after this one

    if _FIRST not in protocol.INPUT_CONVERTER:
        protocol.register_input_converter(_FIRST, prepend=True)
