"""The inputs of one subtask: channels with what arrived and was not read, in turn, and the watermark over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tailrace.elements.batches import Batch, concat, joinable
from tailrace.elements.frames import ChannelId, ChannelName, Element, Frame
from tailrace.elements.markers import COUNTED, Barrier, EndOfInput, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import InternalError, ProtocolViolation, UserCodeError
from tailrace.protocol.flow import Consumer
from tailrace.task.parked import Parked

AT_ONCE = 256 << 10
"""Where there is no channel of today that would say how much one may hold."""
JOINED = 1024
"""Batches of fewer records that wait on one channel are read together, up to so many records."""


class InputChannel:
    """One channel into the task.

    Invariant G1: records are read in the order of their sequence numbers without a gap: `expected` is the sequence
    number of the next record that may arrive.
    """

    __slots__ = (
        "blocked", "charge", "ended", "expected", "flow", "id", "idle", "port", "queue", "reading", "returning", "taken",
        "watermark", "worked_off",
    )  # fmt: skip

    def __init__(self, ident: ChannelId, port: int, window: int, closed: bool = False) -> None:
        self.id = ident
        self.port = port
        self.flow = Consumer(window, closed)
        self.queue: deque[tuple[Element | Parked, int]] = deque()
        self.expected = 0
        self.watermark = MIN_TIME
        self.idle = False
        self.ended = False
        self.blocked = False
        """Whether it waits for other channels to reach a cut that it has reached."""
        self.reading: Batch | None = None
        """The batch at the head while only a part of it was taken; `taken` records of it were."""
        self.taken = 0
        self.charge = 0
        self.worked_off = 0
        """Frames that were read to their end, and markers that are counted among them."""
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


class Gate:
    """All channels of one subtask.

    Invariant G2: `_turn` holds exactly the channels with something unread that are not blocked, each once: of those in
    front, while there are some.
    Invariant G3: nothing is read of today's channels while something is unread that was in flight at the restored cut; nor
    of what was in flight to a job that went on from an earlier cut, before all of what that one had found in flight.
    """

    def __init__(self, channels: list[InputChannel]) -> None:
        self.channels = {channel.id: channel for channel in channels}
        self.watermark = MIN_TIME
        """The minimum over channels that are neither idle nor ended; never decreases."""
        self.idle_at_end = False
        """Whether the task counts as idle though all its channels have ended: the head of a loop lives on then, and is told
        what others that bring event time into the loop do."""
        self.woken = False
        """Whether all channels were idle, and one is not any more. The task sets it back when it has passed that on."""
        self._turn: deque[InputChannel] = deque()
        self.front: deque[list[InputChannel]] = deque()
        """What was in flight at the restored cut, in the order in which it is read: one list after the other."""
        self.at_once = max((channel.flow.window for channel in channels), default=AT_ONCE)
        """So many bytes of each channel of that are in memory, and the others in their files."""

    @property
    def has_input(self) -> bool:
        return bool(self._turn)

    @property
    def ended(self) -> bool:
        return not self.front and all(channel.ended for channel in self.channels.values())

    @property
    def _current(self) -> Iterable[InputChannel]:
        """The channels whose turn it is: their event time counts."""
        return self.front[0] if self.front else self.channels.values()

    @property
    def all_idle(self) -> bool:
        """Whether every channel that has not ended is idle; where all have ended, whether the task is."""
        live = [channel for channel in self._current if not channel.ended]
        return all(channel.idle for channel in live) if live else self.idle_at_end

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        """Stores what came on a channel: a `Frame`, a batch or a marker. Raises `ProtocolViolation` for a channel that
        is not ours, a gap, or more than was granted."""
        channel = self.channels.get(ident)
        if channel is None:
            raise ProtocolViolation(f"channel {ident} does not lead to this subtask")
        if channel.ended or (channel.queue and isinstance(channel.queue[-1][0], EndOfInput)):
            raise ProtocolViolation(f"channel {ident}: something came after its end")
        if seq != channel.expected:
            raise ProtocolViolation(f"channel {ident}: record {seq} came where {channel.expected} was due")
        if charge:
            channel.flow.arrive(charge)
        channel.expected += count_of(element)
        if not channel.queue and channel.reading is None and not channel.blocked and not self.front:
            self._turn.append(channel)
        channel.queue.append((element, charge))

    def returned(self, front: list[list[InputChannel]]) -> None:
        """Before anything has arrived: what was in flight at the restored cut comes first."""
        self.front.extend(front)
        self._next_front()

    def open(self) -> Iterable[tuple[ChannelId, int]]:
        """The first grants of channels that began closed, where nothing is left of what was in flight."""
        for channel in () if self.front else self.channels.values():
            grant = channel.flow.open()
            if grant is not None:
                yield channel.id, grant

    def settle(self) -> None:
        """What was read has had its effect: where nothing is left of what was in flight, today's channels come."""
        if self.front and not self._turn:
            self._next_front()

    def _next_front(self) -> None:
        was_idle = self.all_idle
        while self.front and all(channel.drained for channel in self.front[0]):
            self._update()  # it may have held nothing but event time
            self.front.popleft()
        self._turn.extend(c for c in self._current if c.ready and not c.blocked)
        self.woken = self.woken or (was_idle and not self.all_idle)
        self._update()

    def to_load(self) -> Iterable[tuple[InputChannel, list[Parked]]]:
        """What is to be read of the channels whose turn it is, of what was in flight at the restored cut. Said once."""
        for channel in self.front[0] if self.front else ():
            wanted = channel.to_load(self.at_once)
            if wanted:
                yield channel, wanted

    def loaded(self, channel: InputChannel) -> None:
        """What was to be read of a channel is there."""
        if channel.ready and channel not in self._turn and any(channel is one for one in self._current):
            self._turn.append(channel)

    @property
    def holds_parked(self) -> bool:
        """Whether something that was in flight at the restored cut is in its file only."""
        queues = (channel.queue for channels in self.front for channel in channels)
        return any(isinstance(one, Parked) and one.element is None for queue in queues for one, _ in queue)

    def take(self, limit: int) -> Taken:
        """The next channel's marker, or at most `limit` of its records, of one batch or of several small ones. Channels take
        turns."""
        channel = self._turn[0]
        if channel.reading is None:
            element, channel.charge = _there(channel.queue.popleft())
            if isinstance(element, Marker):
                channel.worked_off += isinstance(element, COUNTED)
                self._move_on(channel)
                return Taken(channel, marker=element)
            batch = decoded(channel.id, element)
            channel.reading = self._joined(channel, batch, limit) if channel.queue else batch
            channel.taken = 0
            if channel.idle:
                self._wake(channel)
        batch, start = channel.reading, channel.taken
        stop = min(len(batch), start + limit)
        channel.taken = stop
        if stop < len(batch):
            return Taken(channel, batch.slice(start, stop))
        channel.reading = None
        channel.worked_off += 1
        grant = channel.flow.consume(channel.charge) if channel.charge else None
        self._move_on(channel)
        return Taken(channel, batch if start == 0 else batch.slice(start, stop), grant=grant)

    @property
    def barrier_is_next(self) -> bool:
        """Whether some channel has a barrier next."""
        return self._with_barrier() is not None

    def take_barrier(self) -> Taken:
        """A barrier that is next on its channel, whosever turn it is. Only where there is one."""
        channel = self._with_barrier()
        assert channel is not None
        marker, channel.charge = channel.queue.popleft()
        assert isinstance(marker, Barrier)
        channel.worked_off += isinstance(marker, COUNTED)
        self._turn.remove(channel)
        if channel.queue:
            self._turn.append(channel)
        return Taken(channel, marker=marker)

    def _with_barrier(self) -> InputChannel | None:
        heads = ((channel, channel.queue[0][0]) for channel in self._turn if channel.reading is None)
        return next((channel for channel, head in heads if isinstance(head, Barrier)), None)

    def _joined(self, channel: InputChannel, batch: Batch, limit: int) -> Batch:
        """A small batch together with those that wait behind it, as far as a step may take all of them. Through many
        exchanges batches get ever smaller, since each parts them, and a step costs the same for one record as for many."""
        most = min(limit, JOINED)
        joined, count, queue = [batch], len(batch), channel.queue
        while queue:
            element, charge = queue[0]
            if isinstance(element, Marker | Parked):
                break
            count += count_of(element)
            if count > most:
                break
            following = decoded(channel.id, element)
            if not joinable(batch, following):
                break
            queue.popleft()
            joined.append(following)
            channel.charge += charge
            channel.worked_off += 1
        return batch if len(joined) == 1 else concat(joined)

    def _move_on(self, channel: InputChannel) -> None:
        self._turn.popleft()
        if channel.ready:
            self._turn.append(channel)

    def block(self, ident: ChannelId) -> None:
        """Reads nothing more of this channel until it is released."""
        channel = self.channels[ident]
        channel.blocked = True
        if channel.queue:
            self._turn.remove(channel)

    def release(self, idents: Iterable[ChannelId]) -> None:
        """Reads on from these channels."""
        for ident in idents:
            channel = self.channels[ident]
            if channel.blocked:  # the one whose marker completed the cut never was
                channel.blocked = False
                if channel.queue and not self.front:
                    self._turn.append(channel)

    def mark(self, channel: InputChannel, marker: Watermark | IdleChannel | EndOfInput) -> None:
        """Takes a marker of time into account. `watermark` and `all_idle` are up to date afterwards."""
        if isinstance(marker, Watermark):
            if channel.idle:
                self._wake(channel)
            channel.watermark = max(channel.watermark, marker.time)
        elif isinstance(marker, IdleChannel):
            channel.idle = True
        else:
            channel.ended = True
        self._update()

    def _wake(self, channel: InputChannel) -> None:
        self.woken = self.woken or self.all_idle
        channel.idle = False

    def _update(self) -> None:
        counted = [c.watermark for c in self._current if not c.ended and not c.idle]
        if counted:
            self.watermark = max(self.watermark, min(counted))
        elif self.ended:
            self.watermark = MAX_TIME

    @property
    def empty(self) -> bool:
        """Whether nothing that arrived is unread, but for barriers: those are no work."""
        if self.front:
            return False
        for channel in self.channels.values():
            if channel.reading is not None or not all(isinstance(one, Barrier) for one, _ in channel.queue):
                return False
        return True

    def queued_bytes(self) -> int:
        """What arrived and was not read, and what is left of what was in flight at the restored cut."""
        returned = sum(
            element.size
            for channels in self.front
            for channel in channels
            for element, _ in channel.queue
            if isinstance(element, Frame | Parked)
        )
        return returned + sum(c.flow.arrived - c.flow.consumed for c in self.channels.values())

    def check(self) -> None:
        """Raises `InternalError` where an invariant of this file does not hold."""
        waiting = [c for c in self._current if c.ready and not c.blocked]
        if sorted(c.id for c in waiting) != sorted(c.id for c in self._turn):
            raise InternalError(f"G2: channels with input {waiting} are not those in turn {list(self._turn)}")
        for channel in self.channels.values():
            if not channel.flow.consumed <= channel.flow.arrived:
                raise InternalError(f"F2: channel {channel.id} consumed more than arrived")


def decoded(ident: ChannelId, element: Frame | Batch) -> Batch:
    """A batch from what was queued. A record whose bytes cannot be read back is an error of its class."""
    if not isinstance(element, Frame):
        return element
    try:
        return element.batch()
    except ProtocolViolation:
        raise
    except Exception as error:
        raise UserCodeError(
            f"records of channel {ident} cannot be unpickled: {type(error).__name__}: {error}; their classes must be "
            f"at the top level of the program, or of a module that every worker can import",
            operator=str(ident),
            subtask=ident.target,
            permanent=True,
        ) from error


def _there(entry: tuple[Element | Parked, int]) -> tuple[Element, int]:
    """What a channel has next, which is in memory."""
    element, charge = entry
    if not isinstance(element, Parked):
        return element, charge
    assert element.element is not None
    return element.element, charge


def count_of(element: Element | Parked) -> int:
    """How many records an element holds."""
    if isinstance(element, Frame | Parked):
        return element.count
    return 0 if isinstance(element, Marker) else len(element)
