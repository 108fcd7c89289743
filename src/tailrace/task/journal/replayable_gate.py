"""The gate of a task whose worker may be replaced: it records what each step reads, and reads that when the step is
replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

from tailrace.elements.batches import Batch, concat
from tailrace.elements.frame_codec import ChannelId, Element, Frame
from tailrace.elements.markers import COUNTED, TIMES, Barrier, IdleChannel, Marker, Watermark
from tailrace.elements.timestamps import MIN_TIME
from tailrace.task.channels.gate import Gate, decode, in_memory
from tailrace.task.channels.inputs import InputChannel, Taken, count_of
from tailrace.task.channels.lazy_records import Parked
from tailrace.task.journal.digests import Digest
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.merged_reads import Pieces, in_order, totals
from tailrace.task.subtask.machine import Task

A_MARKER, A_BARRIER, AN_IDLE_MARKER = -1, -2, -3
"""Values in place of a number of records that were read: a marker was read, a barrier, or that the channel is idle."""
FEEDBACK = -1
"""Number, in the place of a channel's, of what comes back to the head of a loop."""
ANY = 1 << 60
"""A number of bytes that no channel ever carries."""
A_TIME = 1 << 32
"""Value in place of a number of records for the least watermark. That of a later one is larger, by the microseconds that
it is later."""


class ReplayableGate(Gate):
    """A gate whose reads are facts: the number of a channel, and how many records of it; or what was read in place of
    records.

    Invariant Y14: with `times_in_facts` a replay takes event time from facts, never from a channel. So it does not matter
    where the markers of event time are on the channel now.
    """

    def __init__(self, channels: list[InputChannel], facts: Facts, times_in_facts: bool) -> None:
        """`times_in_facts`: whether the markers of event time that are read are facts, with their times."""
        super().__init__(channels)
        self.facts, self.times_in_facts = facts, times_in_facts
        self._numbered = dict(enumerate(channels))
        """Channels by number, with the channels that bring back records that were in flight."""
        for number, channel in self._numbered.items():
            channel.number = number
        self._digests: dict[ChannelId, dict[int, Digest]] = {ident: {0: Digest()} for ident in self.channels}
        """Digests of what has come on each channel since the barrier of a checkpoint (0: ever), barriers aside. They are
        requested if the sender is replaced."""
        self.values: dict[ChannelId, tuple[int, int]] = {}
        """The newest known digest of the values of each channel, with the number behind the last record that it covers."""
        self.on_arrival: Callable[[ChannelId, int, Element], None] | None = None
        """A callback for what comes from other workers, where a hot standby is to get it as well."""

    @property
    def has_input(self) -> bool:
        return bool(self.facts.given) if self.facts.given is not None else super().has_input

    def reads_on(self, cut_is_due: bool) -> bool:
        return bool(self.facts.given) if self.facts.given is not None else super().reads_on(cut_is_due)

    def take(self, limit: int) -> Taken:
        facts = self.facts
        if facts.again:
            return self._take_again(facts.of(0), facts.of(0))
        taken = super().take(limit)
        facts.of(taken.channel.number)
        facts.of(self._fact_of(taken))
        return taken

    def _fact_of(self, taken: Taken) -> int:
        """Fact for what was read."""
        marker = taken.marker
        if taken.batch is not None:
            return len(taken.batch)
        if isinstance(marker, TIMES) and self._in_facts(taken.channel):
            return AN_IDLE_MARKER if isinstance(marker, IdleChannel) else A_TIME + marker.time - MIN_TIME
        return A_BARRIER if isinstance(marker, Barrier) else A_MARKER

    def _in_facts(self, channel: InputChannel) -> bool:
        """True if the event time of a channel is in facts. That of records that were in flight at the restored cut stays
        on their channels: it is where it was."""
        return self.times_in_facts and channel.returning is None

    def may_delay_time(self, channel: InputChannel) -> bool:
        """True where the time of a watermark is in the facts; where it is not, a replay reads it where it came."""
        return self._in_facts(channel)

    def take_barrier(self) -> Taken:
        facts = self.facts
        if facts.again:
            return self._take_again(facts.of(0), facts.of(0))
        taken = super().take_barrier()
        facts.of(taken.channel.number)
        facts.of(A_BARRIER)
        return taken

    def arrive(self, ident: ChannelId, seq: int, element: Element, charge: int) -> None:
        super().arrive(ident, seq, element, charge)
        if self.on_arrival is not None and ident.source != ident.target:
            self.on_arrival(ident, seq, element)
        if isinstance(element, Barrier):
            self._digests[ident][element.checkpoint] = Digest()
            return
        if self.times_in_facts and isinstance(element, TIMES):
            return
        if isinstance(element, Frame) and (values := element.digest) is not None:
            self.values[ident] = seq + element.count, values
        for digest in self._digests[ident].values():
            digest.add(element)

    def put_in_front(self, front: list[list[InputChannel]]) -> None:
        number = len(self.channels)
        for channels in front:
            for channel in channels:
                channel.number = number
                self._numbered[number] = channel
                number += 1
        super().put_in_front(front)

    def note_barrier(self, ident: ChannelId, checkpoint: int) -> None:
        """Notes the place of a barrier on a channel, of which a replay reads no barriers."""
        self._digests[ident][checkpoint] = Digest()

    def let_all_come(self) -> None:
        """Grants the senders in other workers everything: their frames were granted to the worker that is followed."""
        for ident, channel in self.channels.items():
            if ident.source != ident.target:
                channel.flow.granted = ANY

    # What has come, for a sender that is replaced.

    def is_behind(self, ident: ChannelId, checkpoint: int) -> bool:
        """True if the barrier of a checkpoint has come on a channel, or the end of the channel."""
        channel = self.channels[ident]
        return checkpoint in self._digests[ident] or channel.ended or channel.ending

    def came_since(self, ident: ChannelId, checkpoint: int) -> Digest:
        """Digest of what has come on a channel since the barrier of a checkpoint (0: ever), barriers aside."""
        return self._digests[ident].get(checkpoint) or Digest()

    def complete(self, checkpoint: int) -> None:
        """Forgets what only older checkpoints than this one need: no worker restores them any more."""
        for ident, digests in self._digests.items():
            self._digests[ident] = {number: one for number, one in digests.items() if number >= checkpoint}

    def begin_at(self, checkpoint: int) -> None:
        """Begins the digests of channels anew: what comes is behind the barriers of this checkpoint."""
        self._digests = {ident: {checkpoint: Digest()} for ident in self.channels}

    def sender_replaced(self, ident: ChannelId) -> None:
        """Prepares a channel for a new sender, which takes the place of a lost one and begins with a whole window. What
        is unread counts for none of that window."""
        flow = self.channels[ident].flow
        flow.granted, flow.arrived, flow.consumed = flow.window, 0, flow.consumed - flow.arrived

    # The replay.

    def put_back(self, unread: dict[ChannelId, list[Element]], front: list[list[InputChannel]]) -> None:
        """Takes what another task, whose place this one takes, had not read at its cut."""
        for ident, elements in unread.items():
            channel = self.channels[ident]
            channel.expected += sum(map(count_of, elements))
            channel.queue.extend((element, 0) for element in elements)
        self.front = deque(front)
        self._numbered |= {channel.number: channel for channels in front for channel in channels}
        self._take_turns()
        self.compare_anew()

    def lacking(self, facts: Sequence[int]) -> InputChannel | None:
        """First channel on which records are missing that a step read, which is to be repeated; None if all are here.
        `facts`: those of the step's reads."""
        channels, begun = self._numbered, dict[int, Iterator[int]]()
        for number, count in zip(facts[::2], facts[1::2], strict=True):
            if count == A_BARRIER or is_time(count):
                continue
            unread = begun.setdefault(number, self._unread(channels[number]))
            here = 0
            while here < max(count, 1):
                found = next(unread, None)
                if found is None:
                    return channels[number]
                here += found if count != A_MARKER else 1
        return None

    def unread(self, number: int) -> Unread:
        """The records that are unread on a channel in front of its next marker, barriers aside."""
        return Unread(self._in_front_of_a_marker(self._numbered[number]))

    def _in_front_of_a_marker(self, channel: InputChannel) -> Iterator[int]:
        """Numbers of records of the elements that are unread on a channel in front of its next marker, one by one."""
        passed_over = self._passed_over(channel)
        if channel.reading is not None:
            yield len(channel.reading) - channel.taken
        for element, _ in channel.queue:
            if isinstance(element, Marker):
                if not isinstance(element, passed_over):
                    return
            elif isinstance(element, Parked) and element.element is None:
                return
            else:
                yield count_of(element)

    def _take_again(self, number: int, count: int) -> Taken:
        """Input of a step when it was done first: `count` records of a channel, or its marker. Barriers are skipped:
        their checkpoints were given up, or are done. They may have overtaken what comes before them now."""
        channel = self._numbered[number]
        if channel in self._turn:
            self._turn.remove(channel)
        taken = Taken(channel)
        self._skip_markers(channel)
        if is_time(count):
            taken.marker = time_marker(count)
        elif count == A_MARKER:
            element, channel.charge = channel.queue.popleft()
            assert isinstance(element, Marker)
            channel.marks += isinstance(element, COUNTED)
            taken.marker = element
        elif count != A_BARRIER:
            taken.batch = concat(self._exactly(taken, count))
        if channel.ready and not channel.blocked and any(channel is one for one in self._current):
            self._turn.append(channel)
        return taken

    def merge(
        self, pieces: Pieces, feedback: list[Batch] | None = None
    ) -> tuple[list[tuple[int, Batch]], list[tuple[ChannelId, int]]]:
        """Input of several steps that read records only: their batches, each with the port that it came to, and the
        credit that is granted for them. `feedback`: the records of the pieces with the number `FEEDBACK`."""
        read, grants, ports = dict[int, list[Batch]](), list[tuple[ChannelId, int]](), dict[int, int]()
        for number, count in totals(pieces).items():
            if number == FEEDBACK:
                assert feedback is not None
                ports[number], read[number] = 0, feedback
                continue
            taken = Taken(self._numbered[number])
            ports[number] = taken.channel.port
            read[number] = self._exactly(taken, count)
            if taken.grant is not None:
                grants.append((taken.channel.id, taken.grant))
        self._take_turns()
        return in_order(pieces, read, ports), grants

    def _take_turns(self) -> None:
        """Gives each channel with input its turn, in the order of the channels."""
        self._turn = deque(channel for channel in self._current if channel.ready and not channel.blocked)

    def _exactly(self, taken: Taken, count: int) -> list[Batch]:
        """The next `count` records of a channel, of as many batches as that takes."""
        channel, parts = taken.channel, list[Batch]()
        while count:
            if channel.reading is None:
                self._skip_markers(channel)
                element, channel.charge = in_memory(channel.queue.popleft())
                assert not isinstance(element, Marker)
                channel.reading, channel.taken = decode(channel.id, element), 0
                if channel.idle:
                    self._wake(channel)
            batch, start = channel.reading, channel.taken
            stop = min(len(batch), start + count)
            count -= stop - start
            parts.append(batch if (start, stop) == (0, len(batch)) else batch.slice(start, stop))
            channel.taken = stop
            if stop == len(batch):
                channel.reading = None
                if channel.charge:
                    grant = channel.flow.consume(channel.charge)
                    taken.grant = taken.grant if grant is None else grant
        return parts

    @property
    def any_idle(self) -> bool:
        """True if any channel is idle."""
        return any(channel.idle for channel in self.channels.values())

    def mark_times(self, marks: Sequence[int]) -> None:
        """Takes into account the watermarks that several steps have read of channels none of which is idle. `marks`: for
        each the number of the channel and the fact, as in `Pieces`."""
        for number, fact in dict(zip(marks[::2], marks[1::2], strict=True)).items():
            marker = time_marker(fact)
            assert isinstance(marker, Watermark)
            self.mark(self._numbered[number], marker)

    def _passed_over(self, channel: InputChannel) -> tuple[type, ...]:
        """Markers that a replay does not read from a channel."""
        return (Barrier, *TIMES) if self._in_facts(channel) else (Barrier,)

    def _skip_markers(self, channel: InputChannel) -> None:
        passed_over = self._passed_over(channel)
        while channel.queue and isinstance(channel.queue[0][0], passed_over):
            channel.queue.popleft()

    def _unread(self, channel: InputChannel) -> Iterator[int]:
        """Numbers of records of the elements that are unread on a channel and are here, one by one."""
        passed_over = self._passed_over(channel)
        if channel.reading is not None:
            yield len(channel.reading) - channel.taken
        for element, _ in channel.queue:
            if isinstance(element, Parked) and element.element is None:
                return
            if not isinstance(element, passed_over):
                yield count_of(element)


class Unread:
    """Unread records of a channel, which are counted only as far as steps need them."""

    __slots__ = ("_counts", "_here")

    def __init__(self, counts: Iterator[int]) -> None:
        """`counts`: the number of records of each element."""
        self._counts, self._here = counts, 0

    def take(self, count: int) -> bool:
        """Takes so many records. False if there are fewer."""
        while self._here < count:
            found = next(self._counts, None)
            if found is None:
                return False
            self._here += found
        self._here -= count
        return True


def gate_of(task: Task) -> ReplayableGate:
    """Gate of a task of a replayable slice."""
    assert isinstance(task.gate, ReplayableGate)
    return task.gate


def is_time(fact: int) -> bool:
    """True if the fact of a read is event time: a watermark, or that the channel is idle."""
    return fact >= A_TIME or fact == AN_IDLE_MARKER


def time_marker(fact: int) -> Watermark | IdleChannel:
    """The marker of event time of which this is the fact."""
    return IdleChannel() if fact == AN_IDLE_MARKER else Watermark(fact - A_TIME + MIN_TIME)
