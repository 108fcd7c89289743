"""Variables of the user's frames in a traceback, as short texts without secrets."""

from __future__ import annotations

import linecache
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from types import TracebackType
from typing import Any

from tailrace.errors import OWN_FOLDER, short_repr
from tailrace.passwords import hide_passwords
from tailrace.task.contract.capsule import CodeFrame
from tailrace.task.contract.usercode import FUSED

FRAMES, NAMES, ITEMS, DEPTH = 20, 50, 20, 4
"""Limits: frames, variables of a frame, items of a collection, and how deep collections in collections are shown."""
VALUE_CHARS = 300
SOURCE_CHARS = 200_000
"""Length of a source file up to which it is kept."""
HIDDEN = "<hidden>"


class Redaction:
    """Names whose values are not shown: those that contain one of the given words, whatever their case is."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = tuple(word.lower() for word in words)

    def hides(self, name: object) -> bool:
        """True if the value of this name is not shown."""
        return isinstance(name, str) and any(word in name.lower() for word in self._words)

    def show(self, value: Any, depth: int = DEPTH) -> str:
        """A value as text, at most `VALUE_CHARS` long. Never raises."""
        try:
            text = self._text(value, depth)
        except Exception as error:  # of whatever type: it may be an object of the user that is half made
            text = f"<{type(value).__name__}, which cannot be shown: {type(error).__name__}>"
        text = hide_passwords(text).encode(errors="backslashreplace").decode()
        return text if len(text) <= VALUE_CHARS else f"{text[: VALUE_CHARS - 1]}…"

    def _text(self, value: Any, depth: int) -> str:
        kind = type(value)
        if kind.__module__.startswith("tailrace.") and not isinstance(value, tuple):
            return f"<{kind.__name__}>"  # a context or a handle: what is in it is Tailrace's
        fields = _fields_of(value)
        if fields is not None:
            if not depth:
                return f"{kind.__name__}(…)"
            shown = [f"{name}={self._field_text(name, one, depth)}" for name, one in islice(fields, ITEMS)]
            return f"{kind.__name__}({', '.join(shown)})"
        if isinstance(value, Mapping):
            if not depth:
                return "{…}"
            entries = [
                f"{self.show(name, depth - 1)}: {self._field_text(name, one, depth)}"
                for name, one in islice(value.items(), ITEMS)
            ]
            return f"{{{', '.join(entries)}{', …' if len(value) > ITEMS else ''}}}"
        if kind in (list, tuple, set, frozenset):
            if not depth:
                return "[…]"
            items = ", ".join(self.show(one, depth - 1) for one in islice(value, ITEMS))
            more = ", …" if len(value) > ITEMS else ""
            return f"({items}{more})" if kind is tuple else f"[{items}{more}]" if kind is list else f"{{{items}{more}}}"
        return short_repr(value, VALUE_CHARS)

    def _field_text(self, name: object, value: Any, depth: int) -> str:
        return HIDDEN if self.hides(name) else self.show(value, depth - 1)


def _fields_of(value: Any) -> Iterator[tuple[str, Any]] | None:
    """The fields of an object that are shown one by one, so that secret ones can be left out; None for others."""
    if isinstance(value, type) or callable(value):
        return None
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return zip(value._fields, value, strict=False)
    names = getattr(type(value), "__struct_fields__", None)
    if names is not None:
        return ((name, getattr(value, name, None)) for name in names)
    own = getattr(value, "__dict__", None)
    return (
        iter(own.items()) if isinstance(own, dict) and own and not isinstance(value, BaseException | Mapping) else None
    )


def frames_of(trace: TracebackType | None, redact: Collection[str]) -> list[CodeFrame]:
    """The frames of the user's code, the outermost one first: the innermost ones, if there are very many."""
    redaction, found = Redaction(redact), []
    for at in _own(trace):
        code, names = at.tb_frame.f_code, at.tb_frame.f_locals
        shown = [
            (name, HIDDEN if redaction.hides(name) else redaction.show(value))
            for name, value in islice(list(names.items()), NAMES)
        ]
        found.append(CodeFrame(code.co_filename, at.tb_lineno or 0, code.co_name, shown))
    return found[-FRAMES:]


def sources_of(frames: Iterable[CodeFrame], most: int = SOURCE_CHARS) -> dict[str, str]:
    """The files of these frames, with their text, as far as they can be read."""
    found: dict[str, str] = {}
    for file in dict.fromkeys(frame.file for frame in frames):
        text = "".join(linecache.getlines(file))
        if text and len(text) <= most:
            found[file] = text
    return found


def _own(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith(OWN_FOLDER) and file != FUSED:
            yield trace
        trace = trace.tb_next
