"""One input channel of a subtask: what arrived and was not read, and what a task reads of it at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tailrace.elements.batches import Batch
from tailrace.elements.digests import Digest, content
from tailrace.elements.frames import ChannelId, ChannelName, Element, Frame
from tailrace.elements.markers import Barrier, EndOfInput, Marker
from tailrace.elements.timestamps import MIN_TIME
from tailrace.protocol.flow import Consumer
from tailrace.task.channels.lazy_records import Parked


class InputChannel:
    """One channel into the task.

    Invariant G1: records are read in the order of their sequence numbers without a gap: `expected` is the sequence
    number of the next record that may arrive.
    """

    __slots__ = (
        "blocked", "charge", "counted", "digests", "ended", "expected", "flow", "id", "idle", "number", "port", "queue",
        "reading", "returning", "taken", "watermark", "worked_off",
    )  # fmt: skip

    def __init__(self, ident: ChannelId, port: int, window: int, closed: bool = False) -> None:
        self.id = ident
        self.number = -1
        """Which one it is of its gate's: in the order of the plan, and behind those what brings back records that were in
        flight, in the order in which it was restored."""
        self.port = port
        self.flow = Consumer(window, closed)
        self.queue: deque[tuple[Element | Parked, int]] = deque()
        self.expected = 0
        self.watermark = MIN_TIME
        self.idle = False
        self.ended = False
        self.counted = False
        """Whether it is among those whose watermarks are compared (`task.channels.min_watermark`)."""
        self.blocked = False
        """Whether it waits for other channels to reach a cut that it has reached."""
        self.reading: Batch | None = None
        """The batch at the head while only a part of it was taken; `taken` records of it were."""
        self.taken = 0
        self.charge = 0
        self.worked_off = 0
        """Frames that were read to their end, and markers that are counted among them."""
        self.digests: dict[int, Digest] = {0: Digest()}
        """What has come since the barrier of a checkpoint (0: ever), barriers aside. Kept where it may be
        asked for, because the sender may be replaced."""
        self.returning: Returning | None = None
        """Where it is none of today's channels, but what a checkpoint held of an old one: of which."""

    @property
    def position(self) -> int:
        """The number of the first record that is unread."""
        reading = 0 if self.reading is None else len(self.reading) - self.taken
        return self.expected - reading - sum(count_of(element) for element, _ in self.queue)

    @property
    def drained(self) -> bool:
        """Whether nothing is unread."""
        return not self.queue and self.reading is None

    @property
    def ready(self) -> bool:
        """Whether something is unread, and is here."""
        if self.reading is not None or not self.queue:
            return self.reading is not None
        element = self.queue[0][0]
        return not isinstance(element, Parked) or element.element is not None

    @property
    def ending(self) -> bool:
        """Whether its end has arrived, and is still to be read."""
        return bool(self.queue) and isinstance(self.queue[-1][0], EndOfInput)

    def count(self, element: Element) -> None:
        """Something has come."""
        if isinstance(element, Barrier):
            self.digests[element.checkpoint] = Digest()
        else:
            held = content(element) if isinstance(element, Frame) else None
            for digest in self.digests.values():
                digest.add(element, held=held)

    def came_since(self, checkpoint: int) -> Digest:
        """What has come since the barrier of a checkpoint (0: ever), barriers aside."""
        return self.digests.get(checkpoint) or Digest()

    def next_to_load(self) -> list[Parked]:
        """The next that is parked, whatever is here: somebody is to read on, and cannot."""
        parked = (element for element, _ in self.queue if isinstance(element, Parked) and element.element is None)
        found = next(parked, None)
        if found is None or found.asked:
            return []
        found.asked = True
        return [found]

    def to_load(self, most: int) -> list[Parked]:
        """What is to be read next of what is parked: about `most` bytes, once what is here is less than half of that."""
        here, wanted = 0, list[Parked]()
        for element, _ in self.queue:
            if not isinstance(element, Parked) or element.element is not None:
                here += element.size if isinstance(element, Frame | Parked) else 0
                if wanted or 2 * here >= most:
                    break
            elif element.asked or most <= 0:
                break
            else:
                element.asked = True
                wanted.append(element)
                most -= element.size
        return wanted


@dataclass(frozen=True, slots=True)
class Returning:
    """Whose records a channel brings back that were in flight at the cut."""

    name: ChannelName
    """What the channel was called, with the subtask that reads it now."""
    operator: int = 0
    """The position, in its chain, of the operator that receives them: 0 for the root."""
    timely: bool = True
    """Whether it brings event time as well. Else that stands still while there are such channels."""


@dataclass(slots=True)
class Taken:
    """What the task reads next: some records, or a marker, of one channel."""

    channel: InputChannel
    batch: Batch | None = None
    marker: Marker | None = None
    grant: int | None = None
    """The channel's new grant, when it is worth saying."""


def count_of(element: Element | Parked) -> int:
    """How many records an element holds."""
    if isinstance(element, Frame | Parked):
        return element.count
    return 0 if isinstance(element, Marker) else len(element)
