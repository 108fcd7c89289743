"""The messages by which another coordinator goes on in the place of a lost one, while the workers run.

coordinator                        mirror (a worker)
   Keep(entries)               ->                        before anything leaves the coordinator that follows from these
                               <-  LogKept(position)

worker                             successor
   Rejoin(received, log)       ->                        on a new link, where the old one has broken
                               <-  GoOn(received)        the log is read: send what comes behind that
                               <-  ...                   what the worker has not received

The coordinator is a function of its events. It logs them, and two workers keep the log. Both ends of a control link count
the messages on it, except these and `Progress`. So a successor that handles the logged events again knows which messages
each worker lacks, and the worker knows which of its own are not in the log.
"""

from __future__ import annotations

from tailrace.protocol.message import Message

MOST_UNSECURED = 10_000
"""Messages that a worker keeps for a successor, at most. Without the older ones no successor can go on with the worker."""
SECURED_EACH = 32
"""Messages of a worker that the mirrors have, behind which the coordinator sends `Secured`."""


class Keep(Message, frozen=True):
    """A command to a mirror: keep these entries of the coordinator's log."""

    term: int
    """The number of coordinators of the run that were lost before."""
    position: int
    """The number of entries before these."""
    entries: list[bytes] = []
    base: bytes = b""
    """The state of the coordinator behind these `position` entries: nothing before it is needed any more. Empty where
    the mirror keeps what it has."""


class LogKept(Message, frozen=True):
    """A report of a mirror: it has all entries before this position."""

    position: int


class Secured(Message, frozen=True):
    """A message to a worker: the mirrors have the first `count` of its messages; it may forget them. It answers with
    `Received`."""

    count: int


class Received(Message, frozen=True):
    """A report of a worker: it has received the first `count` messages of the coordinator, which may forget them."""

    count: int


class Rejoin(Message, frozen=True):
    """The first message of a worker to the successor of a lost coordinator."""

    slot: int
    epoch: int
    received: int
    """The number of messages that the worker has received since its `Welcome`."""
    sent: int
    """The number of messages that it has sent since then."""
    first: int
    """The number of the first message that it can send again; they count from zero."""
    kept: Keep | None = None
    """The log that it has kept, where it is a mirror."""
    place: int = -1
    """The place that its process was started for."""
    launch: int = 0
    """The number of this start of the place."""
    pid: int = 0


class GoOn(Message, frozen=True):
    """A command to a worker: go on with this coordinator, and send the messages behind the first `received` ones again."""

    received: int
