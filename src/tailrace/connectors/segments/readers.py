"""The readers of a log, and the removal of what all of them have read.

    readers/<query>/<run>/<n>-<session>   a session of the query has read through entry n; its highest number counts
    readers/new/<seconds>-<session>       a session of a new query that has read nothing yet, and when it has begun
    floor/<n>                             entries through n may be gone: a new reader begins behind them
    retained                              nothing is removed

A *session* is one source of a running query: a query that reads a stream twice has two of them. The process that chooses its
offsets does not learn which query it works for; its tasks do, and a task of its first batch registers the query and its run.
Queries keep their ids over restarts, so what a stopped query has not read is retained until somebody removes its folder. The
sessions of a run take the place of those of the run before when there are as many.

Nothing is removed under a reader. A new session registers, and looks at the floor after that. Who removes raises the floor,
and looks at the readers after that. So one of the two sees the other one.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import NamedTuple

from tailrace.connectors.segments.log import MARKS_EVERY, SEGMENTS, SegmentLog

EXPIRES_AFTER = 86_400
"""The time after which a session counts as lost that has read nothing (seconds)."""
_NEW, _RETAINED = "new", "retained"


class _Registered(NamedTuple):
    """A file of a reader."""

    query: str
    """The query; `new` for a session that has read nothing."""
    run: str
    """The run of the query; empty for a session that has read nothing."""
    number: int
    session: str

    @property
    def name(self) -> str:
        folder = f"{self.query}/{self.run}" if self.run else self.query
        return f"readers/{folder}/{self.number:012d}-{self.session}"


class Readers:
    """The readers of a log, as one session sees them."""

    def __init__(self, log: SegmentLog, session: str | None = None) -> None:
        self.session = session or uuid.uuid4().hex
        self._log, self._folder = log, log.folder
        self._query: tuple[str, str] | None = None
        """The query of this session and its run, once they are known."""
        self._new: _Registered | None = None
        """The registration of this session, while its query is not known."""
        self._removed = 0
        """The entry through which this object has removed segments."""

    @property
    def knows_query(self) -> bool:
        """True if a task of the query has registered it, and this session has seen that."""
        return self._query is not None

    def floor(self) -> int:
        """The number through which entries may be gone."""
        names = [entry.name.rpartition("/")[2] for entry in self._folder.entries("floor") if not entry.folder]
        return max((int(name) for name in names if name.isdecimal()), default=0)

    def retain(self, always: bool) -> None:
        """Has nothing removed any more, or again what all readers have read."""
        if always:
            with contextlib.suppress(FileExistsError):
                self._folder.create(_RETAINED, b"")
        else:
            self._folder.delete([_RETAINED])

    def begin(self) -> int:
        """Registers a session that has read nothing, and returns the number behind which it begins."""
        if self._new is None and self._query is None:
            self._new = _Registered(_NEW, "", int(time.time()), self.session)
            self._folder.create(self._new.name, b"")
        return self.floor()

    def register(self, query: str, run: str, number: int) -> None:
        """Registers the query of this session and its run, which has read through `number`. A task calls it. Removes the
        sessions of other runs, once this run has as many: it takes their place."""
        with contextlib.suppress(FileExistsError):
            self._folder.create(_Registered(query, run, number, self.session).name, b"")
        everything = self._registrations()
        sessions: dict[str, set[str]] = {}
        for one in everything:
            if one.query == query:
                sessions.setdefault(one.run, set()).add(one.session)
        replaced = {other for other, some in sessions.items() if len(some) <= len(sessions.get(run, ()))} - {run}
        over = [one for one in everything if one.query == query and one.run in replaced]
        lost = {one.session for one in over}
        begun = [one for one in everything if one.query == _NEW and one.session in lost]
        self._folder.delete([one.name for one in (*over, *begun)])

    def commit(self, number: int) -> None:
        """Notes that this session has read through `number`, if its query is known, and removes what all readers have read.
        Spark commits a batch when it plans the next one: before the tasks of a run have registered their query, what they
        have registered in the run before counts."""
        if self._query is None:
            found = (one for one in self._registrations() if one.session == self.session and one.query != _NEW)
            self._query = next(((one.query, one.run) for one in found), None)
        if self._query is not None:
            query, run = self._query
            self.register(query, run, number)
            self.end()
            there = self._registrations()
            passed = [one for one in there if one.query == query and one.session == self.session]
            self._folder.delete([one.name for one in passed if one.number < number])
        self._remove()

    def end(self) -> None:
        """Removes the registration of a session whose query is known, or that ends."""
        if self._new is not None:
            self._folder.delete([self._new.name])
            self._new = None

    def _registrations(self) -> list[_Registered]:
        found = []
        for entry in self._folder.walk("readers"):
            _, query, *run, file = entry.name.split("/")
            number, _, session = file.partition("-")
            if number.isdecimal():
                found.append(_Registered(query, "/".join(run), int(number), session))
        return found

    def _read_by_all(self) -> int:
        """The number through which all readers have read; 0 where one has read nothing yet."""
        positions: dict[str, int] = {}
        there = self._registrations()
        for one in there:
            if one.query != _NEW:
                positions[one.session] = max(one.number, positions.get(one.session, 0))
        expired = time.time() - EXPIRES_AFTER
        for one in there:
            if one.query == _NEW and one.session not in positions:
                if one.number > expired:
                    return 0
                self._folder.delete([one.name])
        return min(positions.values(), default=0)

    def _remove(self) -> None:
        """Removes the entries, and their segments, that all readers have read, unless all are retained."""
        if self._folder.exists(_RETAINED):
            return
        through, floor = self._read_by_all(), self.floor()
        if through > floor:
            with contextlib.suppress(FileExistsError):
                self._folder.create(f"floor/{through:012d}", b"")
            self._folder.delete([f"floor/{floor:012d}"])
        elif through < floor or through <= self._removed:
            return
        if self._read_by_all() < through:
            return  # a reader has come meanwhile, and may have seen the former floor
        numbers = self._log.numbers()
        for number in numbers:
            if self._removed < number <= through:
                with contextlib.suppress(FileNotFoundError):  # another reader removes as well
                    segments = self._log.entry(number).segments
                    self._folder.delete([f"{SEGMENTS}/{one.name}" for one in segments])
        self._removed = through
        whole = max((n for n in numbers if n % MARKS_EVERY == 0), default=0)  # publishers need its marks
        self._log.delete([number for number in numbers if number <= through and number < whole])
