"""The log of a coordinator's events, the workers that mirror it, and the actions that wait until they have it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from tailrace.coordinator.actions import Action, Send
from tailrace.coordinator.succession.conversations import Worker
from tailrace.protocol.succession import Keep

MOST_BYTES = 2 << 20
"""Bytes of entries behind which the log begins anew with the state of the coordinator."""
MOST_ENTRY_BYTES = 16 << 20
"""Bytes of an event that goes to no mirror: they get the state of the coordinator behind it."""


class EventLog:
    """The log of one coordinator.

    Invariant Y20: nothing leaves a coordinator that has mirrors before a mirror has the events from which it follows.
    """

    def __init__(self, term: int, most: int = MOST_BYTES) -> None:
        self.term = term
        self.end = 0
        """The number of entries, ever."""
        self.out: list[Action] = []
        """Actions that may leave."""
        self.mirrors: dict[Worker, int] = {}
        """The position up to which each mirror has the log; -1 where it has nothing."""
        self._least = self._most = most
        """Bytes of entries behind which the log begins anew: at least `_least`, and as many as the base has."""
        self._bytes = 0
        """The bytes of entries since the newest base."""
        self._unsent: list[bytes] = []
        """Entries that were not sent to the mirrors."""
        self._held: deque[tuple[int, Action]] = deque()
        """Actions that may leave when the mirrors have the log up to a position."""

    def add(self, entry: bytes) -> None:
        """Adds an event."""
        self.end += 1
        self._bytes += len(entry)
        if len(entry) > MOST_ENTRY_BYTES:
            self.mirrors.clear()  # they begin anew, with a base
            self._unsent = []
        if self.mirrors:
            self._unsent.append(entry)

    def hold(self, actions: Collection[Action]) -> None:
        """Holds actions back that follow from the events so far."""
        self._held.extend((self.end, action) for action in actions)

    @property
    def overgrown(self) -> bool:
        """True where the log is to begin anew."""
        return self._bytes > self._most and bool(self.mirrors)

    @property
    def secured(self) -> int:
        """The position up to which a mirror has the log; -1 where there is none."""
        return max(self.mirrors.values(), default=-1)

    def keep(self) -> list[Send]:
        """The messages that bring the mirrors what they lack."""
        entries, self._unsent = self._unsent, []
        if not entries:
            return []
        keep = Keep(self.term, self.end - len(entries), entries)
        return [Send(slot, epoch, keep) for slot, epoch in self.mirrors]

    def begin(self, base: bytes, workers: Collection[Worker]) -> list[Send]:
        """Begins the log anew at these mirrors. To be called behind `keep`."""
        self._bytes, self._most = 0, max(self._least, len(base) if self._least else 0)
        self.mirrors |= {one: self.mirrors.get(one, -1) for one in workers}
        return [Send(slot, epoch, Keep(self.term, self.end, [], base)) for slot, epoch in workers]

    def note_kept(self, worker: Worker, position: int) -> None:
        """Takes the report of a mirror."""
        if worker in self.mirrors:
            self.mirrors[worker] = max(position, self.mirrors[worker])

    def drop(self, lost: Collection[Worker]) -> None:
        """Drops mirrors that are lost."""
        for one in lost:
            del self.mirrors[one]

    def release(self) -> None:
        """Lets the actions go whose events the mirrors have; all of them where there is no mirror."""
        secured = self.secured if self.mirrors else self.end
        while self._held and self._held[0][0] <= secured:
            self.out.append(self._held.popleft()[1])

    def go_on(self, position: int, mirrors: Collection[Worker]) -> None:
        """Goes on behind the log of a lost coordinator, which these workers have up to `position`."""
        self.end, self.mirrors = position, dict.fromkeys(mirrors, position)
