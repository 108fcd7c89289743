"""Reading of an iterator of the user's in a thread of its own: it may wait, and the loop of a worker must not."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from tailrace.spark.datasources.records import RowConverter, WrongRecord

AHEAD_ROWS = 32_768
"""Rows that wait to be read at which the thread goes on no further."""
AHEAD_BATCHES = 8
"""Record batches that wait to be read at which it goes on no further."""
PORTION = 512
"""Rows that the thread takes before it looks whether it is to wait or to end."""
WAIT = 0.002
"""Seconds that a read waits for its thread: a replay repeats reads at once, and gives up where they stay empty."""


class ReadAhead:
    """The records of one partition. `make()` returns the iterator; `where` names the partition, for errors. `read` begins
    behind the first `skip` rows. `wake` is called, in the thread, when there are records after there were none."""

    def __init__(
        self,
        make: Callable[[], Any],
        records: RowConverter,
        skip: int,
        where: str,
        wake: Callable[[], object] | None = None,
    ) -> None:
        self.rows = skip
        """Number of rows of the partition up to the end of the last read."""
        self._make, self._records, self._where, self._wake = make, records, where, wake
        self._items: deque[Any] = deque()
        self._left: pa.RecordBatch | None = None
        """The rest of the record batch at hand."""
        self._over = False
        self._error: BaseException | None = None
        self._closed = False
        self._more = threading.Event()
        """Set when there are items, or there will be no more."""
        self._room = threading.Event()
        self._skip = skip
        self._thread = threading.Thread(target=self._run, name="tailrace-data-source", daemon=True)
        self._thread.start()

    def read(self, limit: int, wait: float = WAIT) -> Any:
        """At most `limit` records, an empty list if there are none yet, None at the end. Raises what the user's code has
        raised, behind the records in front of it."""
        if self._left is None and not self._items:
            self._more.clear()
            if not self._items and not self._over:  # the thread may have set it in between
                self._more.wait(wait)
        over = self._over  # before the items: it is set behind them
        taken = self._take(limit)
        if taken is not None:
            self.rows += len(taken)
            self._room.set()
            return taken
        if self._error is not None:
            raise self._error
        return None if over else []

    def _take(self, limit: int) -> Any:
        items = self._items
        while self._left is None and items and isinstance(items[0], pa.RecordBatch):
            found = items.popleft()
            self._left = found if found.num_rows else None
        if self._left is not None:
            part, rest = self._left.slice(0, limit), self._left.slice(limit)
            self._left = rest if rest.num_rows else None
            return self._with_place(lambda: self._records.of_batch(part))
        rows: list[Any] = [items.popleft() for _ in range(min(limit, len(items)))]
        at = next((at for at, row in enumerate(rows) if isinstance(row, pa.RecordBatch)), None)
        if at is not None:
            items.extendleft(reversed(rows[at:]))
            del rows[at:]
        return self._with_place(lambda: self._records.of_rows(rows)) if rows else None

    def _with_place(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except Exception as error:
            raise self._note(error) from None

    def _note(self, error: BaseException) -> BaseException:
        error.add_note(f"while reading {self._where}")
        return error

    # In the thread.

    def _run(self) -> None:
        try:
            found = self._iterator()
            self._pass_by(found)
            self._fill(found)
        except BaseException as error:
            self._error = self._note(error)
        self._over = True
        self._tell()

    def _iterator(self) -> Iterator[Any]:
        made = self._make()
        if not hasattr(made, "__iter__") or isinstance(made, str | bytes | dict | pa.RecordBatch):
            raise WrongRecord(
                f"read() returned {type(made).__name__}; it must return an iterator of rows or record batches"
            )
        return iter(made)

    def _pass_by(self, found: Iterator[Any]) -> None:
        """Passes by the rows that were read before."""
        left = self._skip
        while left and not self._closed:
            item = next(found, _END)
            if item is _END:
                raise RuntimeError(
                    f"it gave {self._skip - left:,} rows, and {self._skip:,} rows of it were processed: a data source "
                    f"must give the same rows, in the same order, each time it reads a partition"
                )
            if not isinstance(item, pa.RecordBatch):
                left -= 1
            elif item.num_rows <= left:
                left -= item.num_rows
            else:
                self._items.append(item.slice(left))
                left = 0
                self._tell()

    def _fill(self, found: Iterator[Any]) -> None:
        items = self._items
        while not self._closed:
            before = len(items)
            # One by one at first: the records of a slow iterator are read while it waits for the next.
            first = next(islice(found, 1), _END)
            if first is _END:
                return
            items.append(first)
            most = AHEAD_BATCHES if isinstance(first, pa.RecordBatch) else AHEAD_ROWS
            if not before:
                self._tell()
            if most == AHEAD_ROWS:
                items.extend(islice(found, PORTION))
            while len(items) >= most and not self._closed:
                self._room.clear()
                if len(items) >= most:
                    self._room.wait(0.5)

    def _tell(self) -> None:
        self._more.set()
        if self._wake is not None:
            self._wake()

    def close(self) -> None:
        """Ends the thread, as soon as the user's code comes back."""
        self._closed = True
        self._room.set()


_END = object()
