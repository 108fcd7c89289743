"""The counts of what is between the workers of a loop nest, added up as reports come (`protocol.termination`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.protocol.termination import Quiet


class QuietCounts:
    """The counts of one nest in one attempt. The coordinator needs them behind each report of a worker, so nothing is added
    up anew: of a thousand workers there are a million numbers.

    Invariant N7: the counts fit exactly when every slot has reported that it has followed all commands, and each slot has
    worked off as many records and markers as the other slots have sent to it, by the newest report of each.
    """

    def __init__(self, slots: int) -> None:
        self.newest: dict[int, Any] = {}
        """The newest report of each slot, as an array: the number of records and markers that it has sent to each other
        slot, and at its own index the number that it has worked off, as a negative number."""
        self.behind = set(range(slots))
        """The slots that have not reported that they have followed all commands."""
        self._commands = 0
        """The number of commands that were sent and that every slot has to follow."""
        self._under_way: Any = np.zeros(slots, np.int64)
        """The number that other slots have sent to each slot, minus the number that it has worked off."""

    def note_commands(self, commands: int) -> None:
        """Notes that `commands` commands were sent by now: every slot has yet to follow the newest."""
        self._commands = commands
        self.behind = set(range(len(self._under_way)))

    def report(self, slot: int, quiet: Quiet) -> None:
        """Takes the report of a worker that has come to rest."""
        word = np.zeros_like(self._under_way)
        sent = quiet.sent[: len(word)]
        word[: len(sent)] = sent
        word[slot] = -quiet.received
        self._under_way = self._under_way + word - self.newest.get(slot, 0)
        self.newest[slot] = word
        if quiet.actions == self._commands:
            self.behind.discard(slot)
        else:
            self.behind.add(slot)

    @property
    def fit(self) -> bool:
        """True if all workers are at rest, and nothing is between them."""
        return not self.behind and not self._under_way.any()
