"""Input channel of a subtask: what arrived and was not read, and what a task reads of it at once."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from tailrace.elements.batches import Batch
from tailrace.elements.frame_codec import ChannelId, ChannelName, Element, Frame
from tailrace.elements.markers import EndOfInput, Marker
from tailrace.elements.timestamps import MIN_TIME
from tailrace.protocol.credit import Consumer
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.contract.cut_state import CutState


@dataclass(eq=False, slots=True)
class InputCutState(CutState):
    """State of an input channel at a cut that no checkpoint holds, beside its position."""

    marks: int = 0
    """Number of markers that were read and that give the task work (`COUNTED`)."""
    watermark: int = MIN_TIME
    idle: bool = False
    ended: bool = False


class InputChannel(InputCutState):
    """One channel into the task.

    Invariant G1: records are read in the order of their sequence numbers without a gap: `expected` is the sequence number
    of the next record that may arrive.
    """

    __slots__ = (
        "blocked", "charge", "counted", "expected", "flow", "id", "number", "port", "queue", "reading",
        "returning", "taken",
    )  # fmt: skip

    def __init__(self, ident: ChannelId, port: int, window: int, closed: bool = False) -> None:
        super().__init__()
        self.id = ident
        self.number = -1
        """Number of the channel in its gate: channels in the order of the plan, and behind these the restored channels,
        in the order in which they were restored."""
        self.port = port
        self.flow = Consumer(window, closed)
        self.queue: deque[tuple[Element | Parked, int]] = deque()
        self.expected = 0
        self.counted = False
        """True if the channel is among those whose watermarks are compared (`task.channels.min_watermark`)."""
        self.blocked = False
        """True if the channel waits for other channels to reach a cut that it has reached."""
        self.reading: Batch | None = None
        """Batch at the head while only a part of it was taken; `taken` records of it were."""
        self.taken = 0
        self.charge = 0
        self.returning: Returning | None = None
        """Old channel whose records, held by a checkpoint, this one brings back; None for a channel of today."""

    @property
    def position(self) -> int:
        """Number of the first record that is unread."""
        reading = 0 if self.reading is None else len(self.reading) - self.taken
        return self.expected - reading - sum(count_of(element) for element, _ in self.queue)

    @property
    def drained(self) -> bool:
        """True if nothing is unread."""
        return not self.queue and self.reading is None

    @property
    def ready(self) -> bool:
        """True if something is unread, and is in memory."""
        if self.reading is not None or not self.queue:
            return self.reading is not None
        element = self.queue[0][0]
        return not isinstance(element, Parked) or element.element is not None

    @property
    def ending(self) -> bool:
        """True if the end of the channel has arrived, and is still to be read."""
        return bool(self.queue) and isinstance(self.queue[-1][0], EndOfInput)

    def next_to_load(self) -> list[Parked]:
        """The next records to load, whatever is in memory, if they are not being loaded: the task is to read on, and
        cannot."""
        parked = (element for element, _ in self.queue if isinstance(element, Parked) and element.element is None)
        found = next(parked, None)
        if found is None or found.requested:
            return []
        found.requested = True
        return [found]

    def to_load(self, most: int) -> list[Parked]:
        """Records to load next: about `most` bytes, once what is in memory is less than half of that."""
        here, needed = 0, list[Parked]()
        for element, _ in self.queue:
            if not isinstance(element, Parked) or element.element is not None:
                here += element.size if isinstance(element, Frame | Parked) else 0
                if needed or 2 * here >= most:
                    break
            elif element.requested or most <= 0:
                break
            else:
                element.requested = True
                needed.append(element)
                most -= element.size
        return needed


@dataclass(frozen=True, slots=True)
class Returning:
    """Old channel whose records, in flight at the cut, a restored channel brings back."""

    name: ChannelName
    """Name of the old channel, with the subtask that reads it now."""
    operator: int = 0
    """Position, in its chain, of the operator that receives the records: 0 for the root."""
    timely: bool = True
    """True if the channel brings event time as well. Else event time stands still while there are such channels."""


@dataclass(slots=True)
class Taken:
    """Next input of the task: some records, or a marker, of one channel."""

    channel: InputChannel
    batch: Batch | None = None
    marker: Marker | None = None
    grant: int | None = None
    """New grant of the channel, if it is worth sending."""


def count_of(element: Element | Parked) -> int:
    """Number of records that an element holds."""
    if isinstance(element, Frame | Parked):
        return element.count
    return 0 if isinstance(element, Marker) else len(element)
