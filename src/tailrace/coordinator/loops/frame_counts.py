"""What the workers of a loop nest say of frames between them, added up as they say it (`protocol.termination`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailrace.protocol.termination import Quiet


class FrameCounts:
    """The counts of one nest in one attempt. They are asked for behind each word of a worker, so nothing is added up anew:
    of a thousand workers there are a million numbers.

    Invariant N7: they fit exactly when every slot has said that it has followed all commands, and for each slot the others
    have, by the newest word of each, sent as many frames as it has worked off.
    """

    def __init__(self, slots: int) -> None:
        self.newest: dict[int, Any] = {}
        """The newest word of each slot, as an array: what it has sent to each of the others, and in its own place, negative,
        what it has worked off."""
        self.behind = set(range(slots))
        """The slots that have not said that they have followed all commands."""
        self._commands = 0
        """How many commands were sent that are to be followed."""
        self._under_way: Any = np.zeros(slots, np.int64)
        """What the others have sent to each slot, less what that has worked off."""

    def commanded(self, commands: int) -> None:
        """So many commands were sent by now: the newest is yet to be followed by everybody."""
        self._commands = commands
        self.behind = set(range(len(self._under_way)))

    def said(self, slot: int, quiet: Quiet) -> None:
        """A worker has come to rest."""
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
        """Whether all are at rest, and nothing is between them."""
        return not self.behind and not self._under_way.any()
