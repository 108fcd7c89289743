"""Records as they were before a call of user code, for the next call and for the side output."""

from __future__ import annotations

import pickle
from typing import Any

from tailrace.state.codecs import immutable


class Spare:
    """A record that user code may change in place, as it was before the call. A record that cannot be pickled has no copy:
    what a failed call has changed in it stays."""

    __slots__ = ("_copy", "_record")

    def __init__(self, record: Any) -> None:
        self._record = record
        self._copy: bytes | None = None
        if not immutable(record):
            try:
                self._copy = pickle.dumps(record, 5)
            except Exception:  # of whatever type: `__reduce__` is the user's
                return

    @property
    def is_copy(self) -> bool:
        """True if each record that it gives is a copy."""
        return self._copy is not None

    def take(self) -> Any:
        """The record as it was. Each call gives another copy."""
        return self._record if self._copy is None else pickle.loads(self._copy)
