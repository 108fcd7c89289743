"""Inputs of one subtask: channels with what arrived and was not read, the order of reading, and the watermark over them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tailrace.elements.batches import Batch, concat, joinable
from tailrace.elements.frame_codec import ChannelId, Element, Frame
from tailrace.elements.markers import COUNTED, Barrier, EndOfInput, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.errors import InternalError, ProtocolViolation, UserCodeError, error_text
from tailrace.protocol.deployment import InputTime
from tailrace.task.channels.inputs import InputChannel, Taken, count_of
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.channels.min_watermark import Lowest
from tailrace.task.contract.cut_state import CutState

AT_ONCE = 256 << 10
"""Number of bytes that each restored channel may have in memory, in a gate that has no other channels."""
JOINED = 1024
"""Largest number of records in a batch that is joined from several small ones that wait on one channel."""


@dataclass(eq=False)
class GateCutState(CutState):
    """State of a gate at a cut that no checkpoint holds."""

    watermark: int = MIN_TIME
    """Minimum over the channels that are neither idle nor ended; never decreases."""
    idle_at_end: bool = False
    """True if the task counts as idle though all its channels have ended. The head of a loop lives on then, and receives
    what other tasks that bring event time into the loop report."""
    woken: bool = False
    """True if all channels were idle, and one is not any more. The task sets it back when it has passed that on."""


class Gate(GateCutState):
    """All channels into one subtask.

    Invariant G2: `_turn` holds exactly the channels with something unread that are not blocked, each once: of the
    channels in front, while there are some.
    Invariant G3: nothing is read of today's channels while something is unread that was in flight at the restored cut. If
    that was the cut of a job that had gone on from an earlier cut, all that had been in flight at the earlier one is read
    before what was in flight to that job.
    """

    def __init__(self, channels: list[InputChannel]) -> None:
        super().__init__()
        self.channels = {channel.id: channel for channel in channels}
        self._turn: deque[InputChannel] = deque()
        self.front: deque[list[InputChannel]] = deque()
        """Channels with what was in flight at the restored cut, in the order of reading: one list after the other."""
        self.at_once = max((channel.flow.window for channel in channels), default=AT_ONCE)
        """Number of bytes of each restored channel that are in memory; the others stay in their files."""
        self._lowest = Lowest(channels)
        """Event time of the channels whose turn it is."""

    @property
    def has_input(self) -> bool:
        return bool(self._turn)

    def reads_on(self, cut_is_due: bool) -> bool:
        """True if a step that has read a barrier reads on: something is ready, and no cut comes before it."""
        return bool(self._turn) and not cut_is_due

    def input_times(self) -> list[InputTime]:
        """Event time on each edge, and the source of the channel that holds it back."""
        lowest: dict[int, InputChannel] = {}
        for ident, channel in self.channels.items():
            known = lowest.get(ident.edge)
            if not (channel.idle or channel.ended) and (known is None or channel.watermark < known.watermark):
                lowest[ident.edge] = channel
        return [InputTime(edge, channel.watermark, channel.id.source) for edge, channel in lowest.items()]

    @property
    def ended(self) -> bool:
        return not self.front and not self._lowest.live

    @property
    def _current(self) -> Iterable[InputChannel]:
        """Channels whose turn it is: their event time counts."""
        return self.front[0] if self.front else self.channels.values()

    @property
    def all_idle(self) -> bool:
        """True if every channel that has not ended is idle; if all have ended, `idle_at_end`."""
        if self._lowest.watermark() is not None:
            return False
        return True if self._lowest.live else self.idle_at_end

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        """Stores what came on a channel: a `Frame`, a batch or a marker. Raises `ProtocolViolation` for a channel that
        does not lead to this subtask, for a gap, and for more than was granted."""
        channel = self.channels.get(ident)
        if channel is None:
            raise ProtocolViolation(f"channel {ident} does not lead to this subtask")
        if channel.ended or channel.ending:
            raise ProtocolViolation(f"channel {ident}: something came after its end")
        if seq != channel.expected:
            raise ProtocolViolation(f"channel {ident}: record {seq} came where {channel.expected} was due")
        if charge:
            channel.flow.arrive(charge)
        channel.expected += count_of(element)
        if not channel.queue and channel.reading is None and not channel.blocked and not self.front:
            self._turn.append(channel)
        channel.queue.append((element, charge))

    def put_in_front(self, front: list[list[InputChannel]]) -> None:
        """Puts what was in flight at the restored cut in front. Called before anything has arrived."""
        self.front.extend(front)
        self.compare_anew()
        self._next_front()

    def compare_anew(self) -> None:
        """Compares the event time of channels anew. Called when other channels have their turn, or their event time was
        set back."""
        self._lowest = Lowest(self._current)

    def set_cut_state(self, state: dict[str, Any]) -> None:
        """Sets the state at a cut. Called when all channels have theirs."""
        super().set_cut_state(state)
        self.compare_anew()

    def open(self) -> Iterable[tuple[ChannelId, int]]:
        """First grants of channels that began closed, once nothing is left of what was in flight."""
        for channel in () if self.front else self.channels.values():
            grant = channel.flow.open()
            if grant is not None:
                yield channel.id, grant

    def settle(self) -> None:
        """Goes on to the next channels if nothing is left of the first ones in front. Called when what was read has had
        its effect."""
        if self.front and not self._turn:
            self._next_front()

    def _next_front(self) -> None:
        was_idle = self.all_idle
        while self.front and all(channel.drained for channel in self.front[0]):
            self._update()  # it may have held nothing but event time
            self.front.popleft()
            self.compare_anew()
        self._turn.extend(c for c in self._current if c.ready and not c.blocked)
        self.woken = self.woken or (was_idle and not self.all_idle)
        self._update()

    def to_load(self) -> Iterable[tuple[InputChannel, list[Parked]]]:
        """Records to be loaded from files now, of the channels whose turn it is. Each is returned once."""
        for channel in self.front[0] if self.front else ():
            loads = channel.to_load(self.at_once)
            if loads:
                yield channel, loads

    def note_loaded(self, channel: InputChannel) -> None:
        """Gives a channel its turn, if it has none, when records of it were loaded."""
        if channel.ready and channel not in self._turn and any(channel is one for one in self._current):
            self._turn.append(channel)

    @property
    def holds_parked(self) -> bool:
        """True if something that was in flight at the restored cut is in its file only."""
        queues = (channel.queue for channels in self.front for channel in channels)
        return any(isinstance(one, Parked) and one.element is None for queue in queues for one, _ in queue)

    def take(self, limit: int) -> Taken:
        """Marker of the next channel, or at most `limit` of its records, of one batch or of several small ones. Channels
        take turns."""
        channel = self._turn[0]
        if channel.reading is None:
            element, channel.charge = in_memory(channel.queue.popleft())
            if isinstance(element, Marker):
                channel.marks += isinstance(element, COUNTED)
                if isinstance(element, Watermark) and self.may_delay_time(channel):
                    element = self._newest_in_a_row(channel, element)
                self._move_on(channel)
                return Taken(channel, marker=element)
            batch = decode(channel.id, element)
            channel.reading = self._join(channel, batch, limit) if channel.queue else batch
            channel.taken = 0
            if channel.idle:
                self._wake(channel)
        batch, start = channel.reading, channel.taken
        stop = min(len(batch), start + limit)
        channel.taken = stop
        if stop < len(batch):
            return Taken(channel, batch.slice(start, stop))
        channel.reading = None
        grant = channel.flow.consume(channel.charge) if channel.charge else None
        self._move_on(channel)
        return Taken(channel, batch if start == 0 else batch.slice(start, stop), grant=grant)

    @property
    def barrier_is_next(self) -> bool:
        """True if some channel has a barrier next."""
        return self._with_barrier() is not None

    def take_barrier(self) -> Taken:
        """Barrier that is next on its channel, whichever channel has its turn. To be called only if there is one."""
        channel = self._with_barrier()
        assert channel is not None
        marker, channel.charge = channel.queue.popleft()
        assert isinstance(marker, Barrier)
        channel.marks += isinstance(marker, COUNTED)
        self._turn.remove(channel)
        if channel.queue:
            self._turn.append(channel)
        return Taken(channel, marker=marker)

    def _with_barrier(self) -> InputChannel | None:
        heads = ((channel, channel.queue[0][0]) for channel in self._turn if channel.reading is None)
        return next((channel for channel, head in heads if isinstance(head, Barrier)), None)

    def _join(self, channel: InputChannel, batch: Batch, limit: int) -> Batch:
        """Small batch joined with those that wait behind it, as far as a step may take all of them. Each exchange parts
        batches, so through many exchanges they get ever smaller, and a step costs the same for one record as for many.
        Watermarks between them go behind them, the newest one for all: to move a watermark back is always safe."""
        most = min(limit, JOINED)
        joined, count, queue = [batch], len(batch), channel.queue
        delays, watermark = self.may_delay_time(channel), None
        while queue:
            element, charge = queue[0]
            if delays and isinstance(element, Watermark):
                channel.marks += watermark is not None
                watermark = queue.popleft()
                continue
            if isinstance(element, Marker | Parked):
                break
            count += count_of(element)
            if count > most:
                break
            following = decode(channel.id, element)
            if not joinable(batch, following):
                break
            queue.popleft()
            joined.append(following)
            channel.charge += charge
        if watermark is not None:
            queue.appendleft(watermark)
        return batch if len(joined) == 1 else concat(joined)

    def _newest_in_a_row(self, channel: InputChannel, watermark: Watermark) -> Watermark:
        """Last of a watermark that was read and of those directly behind it, which are read with it."""
        while channel.queue and isinstance(following := channel.queue[0][0], Watermark):
            channel.queue.popleft()
            channel.marks += 1
            watermark = following
        return watermark

    def may_delay_time(self, channel: InputChannel) -> bool:
        """True if a watermark of the channel may be read behind records that have come behind it. One that was in flight
        at the restored cut may not: it is read where it is."""
        return channel.returning is None

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
            if channel.blocked:  # the channel whose marker completed the cut never was
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
            self._lowest.ends()
        self._update()

    def _wake(self, channel: InputChannel) -> None:
        self.woken = self.woken or self.all_idle
        channel.idle = False
        self._lowest.wakes(channel)

    def _update(self) -> None:
        lowest = self._lowest.watermark()
        if lowest is not None:
            self.watermark = max(self.watermark, lowest)
        elif self.ended:
            self.watermark = MAX_TIME

    @property
    def empty(self) -> bool:
        """True if nothing that arrived is unread, but for barriers: those are no work."""
        if self.front:
            return False
        for channel in self.channels.values():
            if channel.reading is not None or not all(isinstance(one, Barrier) for one, _ in channel.queue):
                return False
        return True

    def queued_bytes(self) -> int:
        """Number of bytes that arrived and were not read, and of those that are left of what was in flight at the
        restored cut."""
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
        counted = [c.watermark for c in self._current if not c.ended and not c.idle]
        if (min(counted, default=None), sum(not c.ended for c in self._current)) != (
            self._lowest.watermark(),
            self._lowest.live,
        ):
            raise InternalError(f"G5: event time is {min(counted, default=None)}, not {self._lowest.watermark()}")


def decode(ident: ChannelId, element: Frame | Batch) -> Batch:
    """Batch of a queued element. Raises `UserCodeError` for a record whose class cannot read its bytes back."""
    if not isinstance(element, Frame):
        return element
    try:
        return element.batch()
    except ProtocolViolation:
        raise
    except Exception as error:
        raise UserCodeError(
            f"records of channel {ident} cannot be unpickled: {error_text(error)}; their classes must be "
            f"at the top level of the program, or of a module that every worker can import",
            operator=str(ident),
            subtask=ident.target,
            permanent=True,
        ) from error


def in_memory(entry: tuple[Element | Parked, int]) -> tuple[Element, int]:
    """The next element of a channel, which is in memory, and its charge."""
    element, charge = entry
    if not isinstance(element, Parked):
        return element, charge
    assert element.element is not None
    return element.element, charge
