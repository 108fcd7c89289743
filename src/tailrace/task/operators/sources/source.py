"""Sources at run time: they request splits, read them in turns, and report each one that ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pyarrow as pa

from tailrace.api import connectors as api
from tailrace.api.connectors import AssignedSplit, Reader, SplitReader, SplitsChange
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.byte_texts import size_text
from tailrace.elements.columns.schemas import OneSchema
from tailrace.elements.timestamps import ceil_micros
from tailrace.elements.valueclasses import Shapes
from tailrace.elements.valuepickling import dump_described, load_described
from tailrace.errors import InternalError
from tailrace.graph.graph import Node
from tailrace.graph.operators import Source
from tailrace.state.backend import MetaPart
from tailrace.state.format import TableInfo
from tailrace.state.pickle_roundtrip import comes_back
from tailrace.task.contract.cut_state import CutState
from tailrace.task.contract.outside import Taken
from tailrace.task.operators.base import OperatorTask, close_all
from tailrace.task.operators.columns.conversion import fit
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.contracts import (
    batch_of,
    list_of,
    of_class,
    reader_of,
    records_of,
)
from tailrace.task.operators.sources.completions import NUMBER_OF_ENUMERATOR, Completions, ReadUpTo, takes_reports
from tailrace.task.operators.sources.enumerators import Finder
from tailrace.task.operators.sources.lags import measures_lag
from tailrace.task.operators.sources.split_readers import SharedReader, lost_metric, reads_many
from tailrace.task.operators.sources.splits import (
    LARGEST_SPLIT,
    Ask,
    Cuts,
    Deal,
    Dealer,
    HeldSplit,
    SourceState,
    SplitMessage,
    classes_of,
    deal_again,
    decode_state,
    encode_state,
    in_messages,
    join_states,
    read_post,
)

ENUMERATOR = 0
"""Subtask of a source that knows its splits."""


@dataclass
class _OpenSplit:
    held: HeldSplit
    reader: Reader | None = None
    """Reader of the split; None until it is this split's turn to be opened."""
    ready_at: int = 0
    """Time before which the split is not read again (int64 microseconds)."""

    @property
    def index(self) -> int:
        return self.held.index


@dataclass(eq=False)
class SourceCutState(CutState):
    """State of a source at a cut, beside the splits that it reads. A checkpoint holds a part of it."""

    opened_splits: list[int] = field(default_factory=list)
    """Splits that came since the task last looked."""
    ended_splits: list[int] = field(default_factory=list)
    """Splits that ended since the task last looked."""
    messages_sent: int = 0
    """Number of messages for other subtasks that there have been so far."""
    _next: int = 0
    _dealer: Dealer | None = None
    _discover_at: int | None = None
    _over: list[bytes] = field(default_factory=list)
    """Splits that have ended, and whose end is not yet reported to the enumerator."""
    _cuts: Cuts = field(default_factory=Cuts)
    _inbox: list[tuple[int, SplitMessage]] = field(default_factory=list)
    """Messages that came before the subtask was open, or were sent behind a cut that is still to be made here."""
    _ended: set[int] = field(default_factory=set)
    """Splits that ended here and that the enumerator has not forgotten."""
    _asking: bool = False
    _last: bool = False
    """True if the enumerator has reported that there are no more splits for this subtask."""
    _ends_here: bool = False
    """True if a stop requires that nothing more is read."""
    _left: bool = False
    """True if the splits are given up for a stop."""
    _changes: list[Deal] = field(default_factory=list)
    """Messages about splits that are gone or have moved. The next step follows them: they call user code."""


class SourceTask(OperatorTask, SourceCutState):
    """Reads the splits that it is dealt (`task.operators.sources.splits` explains how, and why none is lost or read twice).

    A bounded source has one split at a time, and requests the next one when the split has ended, or has nothing at the
    moment. If the watermark is made from the splits, or splits do not end, all of them are open at once and read in turn:
    the watermark is a minimum over splits, so none may run ahead unseen.
    """

    one_schema_of = "output"

    def __init__(self, node: Node, ctx: OperatorContext) -> None:
        super().__init__(node, ctx)
        SourceCutState.__init__(self)
        assert isinstance(node.operator, Source)
        self.source = node.operator.source
        self.outside = ctx.services.outside
        self.too_far: Callable[[], set[int]] | None = None
        """Function that returns the splits that are not read on because they are too far ahead of others; set before `open`
        if the chain makes watermarks from the splits."""
        self.splits: list[_OpenSplit] = []
        self.empty_splits: list[int] = []
        """Splits that were read since the task last looked, and had nothing."""
        self.events: list[tuple[int, bytes]] = []
        """Messages for other subtasks of this operator: (subtask, payload). The task carries them off after each step,
        event and opening."""
        self._unopened: deque[_OpenSplit] = deque()
        self._finder = Finder(self.source, ctx.parallelism, None)
        self._completions = Completions(ctx)
        self._shared = SharedReader(self.source, ctx) if reads_many(self.source) else None
        """Reader of all splits; None if each split has a reader of its own."""
        self._restored: list[tuple[int, int, SourceState]] | None = []
        """State of the restored checkpoint; None once the task is open."""
        self._classes: Shapes = ()
        """Classes of the splits and positions in the newest checkpoint."""
        known = getattr(self.source, "schema", None)
        self.one_schema = OneSchema(known if isinstance(known, pa.Schema) else None)

    # Before the first step.

    def restore(self, parts: list[MetaPart]) -> None:
        self._restored = [(one.subtask, one.parallelism, self._as_now(one.data)) for one in parts if one.data]

    def _as_now(self, data: bytes) -> SourceState:
        """The state of a subtask, with its splits as they are now: a savepoint holds files that were elsewhere before."""
        state, now = decode_state(data), getattr(type(self.source), "restored_split", None)
        if now is None:
            return state

        def anew(split: bytes) -> bytes:
            return dump_described(now(self.source, load_described(split)))

        held = [msgspec.structs.replace(one, split=anew(one.split)) for one in state.held]
        known = state.known
        if known is not None:
            known = msgspec.structs.replace(known, splits=[(index, anew(split)) for index, split in known.splits])
        return msgspec.structs.replace(state, held=held, known=known)

    def open(self) -> None:
        restored = self._restored or []
        known, held, ended = join_states(restored)
        if known is not None:
            today = dict(known.splits)  # the enumerator may have known of a move before the reader did
            for one in deal_again(restored, self.ctx.subtask, self.ctx.parallelism):
                self._add(HeldSplit(one.index, today.get(one.index, one.split), one.position))
        if self.ctx.subtask == ENUMERATOR:
            self._dealer = Dealer(self.ctx.parallelism, self._everything)
            position = None
            if known is not None:
                self._dealer.restore(known, held, ended)
                position = known.position
                self._over = [split for index, split in known.splits if index in ended]
            if known is None or not known.over:
                self._list_splits(position, known is None)
            again = self._dealer.change(sorted(self._dealer.gone), {})
            self._answer([*again, *self._dealer.deal()])
        self._restored = None
        # A subtask that had finished has reported so to its consumers, and takes no split; as the enumerator it answers.
        self._last = self._last or self.finished
        self._send_requests(not self._last and (self._everything or not self.splits), [])
        self._settle()

    @property
    def _everything(self) -> bool:
        return self.too_far is not None or not self.source.bounded or reads_many(self.source)

    def _list_splits(self, position: bytes | None, fresh: bool) -> None:
        """Lists the splits, or starts the enumerator that finds them."""
        assert self._dealer is not None
        source = self.source
        self._finder.position = position
        exists = self._finder.exists
        self._finder.is_there = self.call_user(lambda: self.outside.request(exists), what="opening the enumerator")
        if self._finder.is_there:
            self._discover_at = 0
            return
        if fresh:
            splits = lambda: list_of(source.splits(self.ctx.parallelism), f"{of_class(source)}.splits")  # noqa: E731
            found = self.call_user(lambda: self.outside.request(splits), what="listing the splits")
            self._dealer.add([self._split(split) for split in found])
        self._dealer.over = True

    # Messages between subtasks.

    def event(self, source: int, payload: bytes) -> None:
        """Stores a message from another subtask. User code that the message requires is called later, in `read`."""
        self._inbox.append((source, read_post(payload)))
        self._settle()

    def _settle(self) -> None:
        """Takes the stored messages, except those that have to wait."""
        waiting: list[tuple[int, SplitMessage]] = []
        held_back: set[int] = set()
        for source, post in self._inbox:
            if self._restored is not None or source in held_back or self._cuts.behind(post):
                held_back.add(source)  # the messages of a subtask stay in order
                waiting.append((source, post))
            else:
                self._take(source, post.message)
        self._inbox = waiting

    def _take(self, source: int, message: Ask | Deal) -> None:
        if isinstance(message, Ask):
            if self._dealer is None:
                raise InternalError(
                    f"{self.node.name}: subtask {self.ctx.subtask} was asked for a split; it knows none"
                )
            found = self._dealer.known
            self._over += [found[index] for index in message.ended if index in found]
            self._answer(self._dealer.answer(source, message))
            return
        if message.gone or message.moved:
            self._changes.append(message)
        for index, split in message.splits if not self._left else ():
            self._add(HeldSplit(index, split))
            self.opened_splits.append(index)
        if (message.splits or message.last or self._everything) and not message.more:
            self._asking = False
        self._last = self._last or message.last
        self._ended.difference_update(message.forget)

    def end_here(self) -> None:
        """Ends the input here, for a stop, however much is left of it. The next step closes what is open. The end of a
        split is reported to no subtask, since none has ended."""
        self._ends_here = not self.ended

    def _leave_splits(self) -> None:
        self._ends_here, self._left, self._last, self._discover_at = False, True, True, None
        left, self.splits = self.splits, []
        self._unopened.clear()
        self.ended_splits += [split.index for split in left]
        self._end_splits(left)

    def _add(self, held: HeldSplit) -> None:
        split = _OpenSplit(held)
        self.splits.append(split)
        self._unopened.append(split)
        if self._shared is not None:
            self._shared.next_read = 0

    def _answer(self, deals: list[tuple[int, Deal]]) -> None:
        for reader, deal in deals:
            self._send(reader, deal)

    def _send(self, target: int, message: Ask | Deal) -> None:
        if target == self.ctx.subtask:
            self._take(target, message)
        else:
            messages = [(target, self._cuts.stamp(part)) for part in in_messages(message)]
            self.events += messages
            self.messages_sent += len(messages)

    def _send_requests(self, requests: bool, ended: list[int]) -> None:
        """Reports ended splits to the enumerator, and requests a split."""
        if requests or ended:
            self._asking = self._asking or requests
            self._send(ENUMERATOR, Ask(requests, ended))

    def _may_request(self) -> bool:
        return not (self._last or self._asking or self._everything)

    # Reading.

    @property
    def ended(self) -> bool:
        """True if nothing will be read any more."""
        return self._last and not self.splits

    @property
    def follows(self) -> bool:
        """True if splits of this source follow one another: one that has ended holds event time until the next ones come."""
        return bool(getattr(self.source, "splits_follow", False))

    @property
    def starved(self) -> bool:
        """True if the source has no split, and knows that there is none for it at the moment: it does not hold event time
        back."""
        return not (self.splits or self._last or self._asking)

    @property
    def _incomplete(self) -> bool:
        """True if the source must not read yet what it holds. After a restore, splits may still come that no subtask had
        at the cut, and event time would run ahead of them."""
        return self.too_far is not None and self._asking

    def ready(self, now: int) -> bool:
        """True if there is work now: a split may have records, the enumerator is due, or a stop closes the splits."""
        due = self._ends_here or bool(self._changes) or (self._discover_at is not None and self._discover_at <= now)
        if due or self._incomplete:
            return due
        if self._shared is None:
            return any(split.ready_at <= now for split in self._read_on())
        held, woken = self._held_back(), self.ctx.services.decision(self._shared.woken)
        return len(held) < len(self.splits) and self._shared.is_due(now, held, woken)

    def _held_back(self) -> set[int]:
        """Splits that are not read because they are too far ahead of others."""
        return set() if self.too_far is None else self.too_far()

    def reader_woken(self) -> None:
        """Notes that the reader of all splits may have records."""
        if self._shared is not None:
            self._shared.woken = True

    def _read_on(self) -> list[_OpenSplit]:
        """Splits that are not too far ahead of others."""
        held = self._held_back()
        return [split for split in self.splits if split.index not in held] if held else self.splits

    def known_empty(self, now: int) -> set[int]:
        """Splits that have nothing now, as their readers have reported."""
        if self._shared is not None and self.ctx.services.decision(self._shared.woken):
            return set()
        return {split.index for split in self.splits if split.reader is not None and split.ready_at > now}

    def wake_at(self) -> int | None:
        """Time at which there may be work, if there is none now; None if only a message from another subtask can bring
        some."""
        read_on = [] if self._incomplete else self._read_on()
        shared = self._shared
        times = [split.ready_at for split in read_on] if shared is None else [shared.next_read] * bool(read_on)
        return min(times if self._discover_at is None else [*times, self._discover_at], default=None)

    def read(self, limit: int, now: int) -> int:
        """Reads at most `limit` records of the next ready split and sends them on; returns their number. A step opens one
        split, if any waits for that, and all are opened before any is read. A reader of all splits gets them at once, and is
        read by itself. Looking for splits is a step of its own, and so is leaving them."""
        if self._ends_here:
            self._leave_splits()
            return 0
        if self._discover_at is not None and self._discover_at <= now:
            self._discover(now)
            return 0
        if self._changes:
            self._follow_changes()
            return 0
        if self._unopened:
            self._open([self._unopened.popleft() for _ in range(1 if self._shared is None else len(self._unopened))])
            if self._unopened:
                return 0
        if self._shared is not None:
            return self._read_many(self._shared, limit, now)
        split = self._turn(now)
        if split is None:
            return 0
        take = lambda most, later=0.0: self._take_from(split, most, now / 1_000_000 + later)  # noqa: E731 - the user's
        batch, lost = super().call_user(lambda: self.outside.read(take, limit), what="reading a split")
        if lost:
            self.ctx.metrics.inc(lost_metric(split.reader), lost)
        if batch is None:
            self._end(split)
            return 0
        if not len(batch):
            assert split.reader is not None
            split.ready_at = self._next_time(split.reader, now)
            self.empty_splits.append(split.index)
            self._send_requests(self._may_request() and not self.ready(now), [])
            return 0
        return self._send_on(batch)

    def _follow_changes(self) -> None:
        """Ends the splits that are gone, and reads those that have moved where they are now."""
        changes, self._changes = self._changes, []
        here = {split.index: split for split in self.splits}
        for change in changes:
            for index in change.gone:
                if (split := here.pop(index, None)) is not None:
                    if split.reader is None:
                        self._unopened.remove(split)
                    self._end(split)
            for index, data in change.moved:
                if (split := here.get(index)) is not None:
                    split.held = HeldSplit(index, data, self._position(split))
                    if split.reader is not None:
                        self._close_splits([split])
                        self._open([split])

    def _send_on(self, batch: Batch) -> int:
        if isinstance(batch, Columns):
            batch.data = fit(self, batch.data)
        self.out(batch)
        return len(batch)

    def _next_time(self, reader: Reader | SplitReader, now: int) -> int:
        """Time of the next read of a reader that has nothing at the moment (int64 microseconds)."""
        next_at = lambda: ceil_micros(reader.next_at(now / 1_000_000))  # noqa: E731 - one call of the user's
        found: int = self.call_user(lambda: self.outside.request(next_at), what="asking a split for its next time")
        return found

    def _read_many(self, shared: SharedReader, limit: int, now: int) -> int:
        """Reads at most `limit` records of any split, and sends them on; returns their number."""
        shared.held, shared.woken = self._held_back(), False
        take = lambda most, later=0.0, only=None: shared.take(most, now / 1_000_000 + later, only)  # noqa: E731
        parts, lost = super().call_user(lambda: self.outside.read_parts(take, limit), what="reading splits")
        if lost:
            self.ctx.metrics.inc(lost_metric(shared.reader), lost)
        by_index = {split.index: split for split in self.splits}
        found = {number for number, batch in parts if batch is not None and not len(batch)}
        self.empty_splits += sorted(found)
        count = sum(self._send_on(batch) for _, batch in parts if batch is not None and len(batch))
        for number in [number for number, batch in parts if batch is None]:
            self._end(by_index[number])
        assert shared.reader is not None
        waits = not count and self._read_on()
        shared.next_read = self._next_time(shared.reader, now) if waits else now
        for split in self.splits:
            split.ready_at = 0 if count or split.index not in found else shared.next_read
        return count

    def _open(self, splits: list[_OpenSplit]) -> None:
        """Opens splits: each gets a reader, or the one reader gets them."""

        def open_readers() -> list[Reader]:
            given = [
                AssignedSplit(split.index, load_described(held.split), None if at is None else load_described(at))
                for split in splits
                for held, at in [(split.held, split.held.position)]
            ]
            shared = None if self._shared is None else self._shared.assign(given)
            if shared is not None:
                return shared
            self._shared = None
            made = self.source.reader
            return [reader_of(made(one.split, one.position), f"{of_class(self.source)}.reader") for one in given]

        for split, reader in zip(splits, self.call_user(open_readers, what="opening a split"), strict=True):
            split.reader = reader
            if takes_reports(reader):
                self._completions.begin()

    def _end_splits(self, splits: list[_OpenSplit]) -> None:
        """Closes splits that are not read any more, but for readers that are called once more behind a checkpoint."""
        ends = [split for split in splits if self.ctx.services.checkpointing and takes_reports(split.reader)]
        kept = []
        for split in ends:
            assert split.reader is not None
            at = self._pickle(self._ask_position(split.reader), "the position of a split")
            if self._completions.end_split(split.index, split.reader, at):
                kept.append(split)
        self._close_splits([split for split in splits if split not in kept])

    def _close_splits(self, splits: list[_OpenSplit]) -> None:
        closing = [split.reader for split in splits if split.reader is not None]
        if self._shared is not None:
            self._shared.forget([split.index for split in splits])
        self.call_user(lambda: close_all(closing), what="closing a split")

    def _take_from(self, split: _OpenSplit, limit: int, now: float) -> Taken:
        """Batch that the reader returns, in the source's form, or None at the end of the split; and how much it
        has lost since it was read last."""
        reader: Any = split.reader
        given, who = reader.read(limit, now), f"{of_class(reader)}.read"
        lost = getattr(reader, "lost", 0)
        if lost:
            reader.lost = 0
        if self.source.form == "columns":
            batch = batch_of(given, limit, self.source.columns, who)
            return (None if batch is None else Columns(batch, split=split.index)), lost
        records = records_of(given, limit, "rows", who)
        # The reader keeps its list, and may fill it anew; batches wait in channels.
        return (None if records is None else Rows(list(records), split=split.index)), lost

    def _turn(self, now: int) -> _OpenSplit | None:
        held = self._held_back()
        for offset in range(len(self.splits)):
            split = self.splits[(self._next + offset) % len(self.splits)]
            if split.ready_at <= now and split.index not in held:
                self._next = (self._next + offset + 1) % len(self.splits)
                return split
        return None

    def _end(self, split: _OpenSplit) -> None:
        at = self.splits.index(split)
        del self.splits[at]
        if at < self._next:
            self._next -= 1
        self.ended_splits.append(split.index)
        self._end_splits([split])
        if self.ctx.services.checkpointing:
            self._ended.add(split.index)
        reports = self.ctx.services.checkpointing or type(self.source).enumerator is not api.Source.enumerator
        self._send_requests(self._may_request(), [split.index] if reports else [])

    def _discover(self, now: int) -> None:
        """Calls the enumerator once for the splits that it has found."""
        dealer = self._dealer
        assert self._finder.is_there and dealer is not None
        self._inform_enumerator()

        discover = lambda: self._finder.discover(now / 1_000_000)  # noqa: E731 - one call of the user's
        found = self.call_user(lambda: self.outside.request(discover), what="finding splits")
        if self.ctx.services.exact:
            self._look_where_it_is()  # a worker that takes this one's place goes on from there
        if found is None:
            self._discover_at, dealer.over = None, True
        else:
            dealer.add([self._split(split) for split in found.new])
            self._answer(self._dealer_change(dealer, found))
            next_at = lambda: ceil_micros(self._finder.next_at(now / 1_000_000))  # noqa: E731 - one call of the user's
            next_time = lambda: self.outside.request(next_at)  # noqa: E731 - one call of the user's
            self._discover_at = self.call_user(next_time, what="asking the enumerator for its next time")
        self._answer(dealer.deal())

    def _dealer_change(self, dealer: Dealer, found: SplitsChange) -> list[tuple[int, Deal]]:
        """Deals for splits that are gone or have moved."""
        if not found.gone and not found.moved:
            return []
        known = [(index, load_described(data)) for index, data in dealer.known.items()]
        gone = [index for index, split in known if split in found.gone]
        moved = {index: self._split(now) for before, now in found.moved for index, split in known if split == before}
        return dealer.change(gone, moved)

    def _inform_enumerator(self) -> None:
        """Reports to the enumerator which of its splits have ended."""
        over, self._over = self._over, []
        for split in over if self._finder.is_there else ():
            note_end = lambda split=split: self._finder.note_end(split)  # noqa: E731 - one call of the user's
            self.call_user(
                lambda note_end=note_end: self.outside.act(note_end), what="telling the enumerator what has ended"
            )

    def _look_where_it_is(self) -> None:
        """Requests the position of the enumerator."""
        position, before = self._finder.new_position, self._finder.position
        found = self.call_user(lambda: self.outside.request(position), what="asking the enumerator for its position")
        self._finder.position = before if found is None else found

    def look_at_lag(self, now: int) -> None:
        """Takes the lag of the readers into the metrics."""
        shared = None if self._shared is None else self._shared.reader
        if shared is not None:
            self._completions.lags.look(now, shared.lag)
            return
        readers = {split.index: split.reader for split in self.splits if measures_lag(split.reader)}
        if readers:
            self._completions.lags.look(now, lambda at: {number: reader.lag(at) for number, reader in readers.items()})

    def cut_state(self) -> dict[str, Any]:
        """State at a cut, with the splits: (number, when it is read again, True if it was not opened yet) of each."""
        splits = [(one.index, one.ready_at, one.reader is None) for one in self.splits]
        shared = None if self._shared is None else (self._shared.next_read, sorted(self._shared.held))
        return super().cut_state() | {"splits": splits, "shared": shared}

    def set_cut_state(self, state: dict[str, Any]) -> None:
        """Sets the state at a cut. No subtask receives a message about the splits."""
        super().set_cut_state(state)
        splits = state["splits"]
        by_index = {split.index: split for split in self.splits}
        self.splits = [by_index[index] for index, _, _ in splits]
        for split, (_, ready_at, _) in zip(self.splits, splits, strict=True):
            split.ready_at = ready_at
        self._unopened.clear()
        to_open: list[_OpenSplit] = []
        for split, (_, _, unopened) in zip(self.splits, splits, strict=True):
            if unopened:
                self._unopened.append(split)
            elif split.reader is None:
                to_open.append(split)
        if to_open:
            self._open(to_open)
        if self._shared is not None and state["shared"] is not None:
            self._shared.next_read, self._shared.held = state["shared"][0], set(state["shared"][1])
        self.events.clear()

    def close(self) -> None:
        shared = None if self._shared is None else self._shared.reader
        readers = [split.reader for split in self.splits if split.reader is not None] if shared is None else [shared]
        close_all([*readers, *self._completions.end(), *self._finder.opened])

    # Checkpoints.

    def snapshot(self, checkpoint: int) -> bytes | None:
        held = [HeldSplit(s.index, s.held.split, self._position(s)) for s in self.splits]
        read = zip(self.splits, held, strict=True)
        reads = [ReadUpTo(s.index, s.reader, h.position) for s, h in read if h.position is not None]
        known = None
        if self._dealer is not None:
            if self._finder.is_there:
                self._inform_enumerator()
                self._look_where_it_is()
                reads += self._report_of_enumerator()
            known = self._dealer.state(self._finder.position if self._finder.is_there else None)
        self._completions.note_cut(checkpoint, reads)
        self.call_user(lambda: close_all(self._completions.closable()), what="closing a split")
        state = SourceState(held, sorted(self._ended), known)
        self._classes = classes_of(state)
        data = encode_state(state)
        self._cuts.note_cut(checkpoint)
        self._settle()
        return data

    def _report_of_enumerator(self) -> list[ReadUpTo]:
        """The enumerator and its position, if it is to be informed that a checkpoint is complete."""
        position = self._finder.position
        found = [one for one in self._finder.opened if takes_reports(one)]
        if not found or position is None:
            return []
        self._completions.begin()
        return [ReadUpTo(NUMBER_OF_ENUMERATOR, found[0], position)]

    def own_tables(self) -> list[TableInfo]:
        return [TableInfo("splits", "splits", classes=self._classes)] if self._classes else []

    def _position(self, split: _OpenSplit) -> bytes | None:
        reader = split.reader
        if reader is None:
            return split.held.position
        at = self._ask_position(reader)
        data = self._pickle(at, "the position of a split")
        if self.ctx.services.exact and not comes_back(at):
            # A reader that goes on from it may read the rest in another order, that of a set for example: so does this one.
            self._close_splits([split])
            split.held.position = data
            self._open([split])
        return data

    def _ask_position(self, reader: Reader) -> Any:
        return self.call_user(lambda: reader.position, what="asking a split for its position")

    def _pickle(self, value: Any, what: str) -> bytes:
        """Value of the user, pickled for a checkpoint or for another subtask."""
        return self.call_user(lambda: dump_described(value), what=f"pickling {what}")  # type: ignore[no-any-return]

    def _split(self, split: Any) -> bytes:
        data = self._pickle(split, "a split")
        if len(data) > LARGEST_SPLIT:
            raise self.user_error(
                ValueError(
                    f"a split of the source has {size_text(len(data))}, pickled, and at most {size_text(LARGEST_SPLIT)} "
                    f"travel to its reader: let a split say where the records are, instead of holding them"
                )
            )
        return data

    def call_user(self, function: Callable[..., Any], *args: Any, what: str) -> Any:
        """Calls code of the source. What it reads of clocks is no answer of the world, except while a reader reads: its
        splits and positions are answers already."""
        return super().call_user(self.outside.apart, function, *args, what=what)

    def confirm(self, checkpoint: int) -> None:
        self._cuts.complete(checkpoint)
        self._completions.complete(checkpoint)
        self._settle()

    def abort(self, checkpoint: int) -> None:
        self._cuts.abort(checkpoint)
        self._completions.abort(checkpoint)
        self._settle()
