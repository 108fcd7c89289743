"""A subtask cuts: what belongs to a checkpoint, what does not, and what has to wait; driven step by step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import BARRIER, END, ROWS, WATERMARK, ChannelId, decode
from tailrace.elements.markers import Barrier, EndOfInput, Watermark
from tailrace.elements.timestamps import MIN_TIME
from tailrace.protocol.snapshot import SubtaskAck
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.channels.services import Services
from tailrace.task.subtask.idleness import Idle, Reason
from tailrace.task.subtask.machine import ORDER, Task
from tailrace.task.subtask.snapshot import TaskSnapshot, read_meta


class One:
    """Subtask 0 of one vertex of a program at parallelism 2, its channels, and what comes out of it."""

    def __init__(
        self,
        build: Callable[[tr.Environment, tr.Sink], Any],
        vertex: int = 1,
        *,
        window: int = 1 << 20,
        parallelism: int = 2,
        restored: TaskSnapshot | None = None,
        overtaking: bool = False,
    ) -> None:
        self.out: list[Any] = []
        env = tr.Environment(parallelism=parallelism)
        build(env, tr.sinks.Callback(self.out.append))
        plan = env._plan(env._pending())
        self.services = Services(
            random.Random,
            checkpointing=True,
            overtaking=overtaking,
            make_backend=lambda uid, subtask: MemoryBackend(uid=uid, subtask=subtask),
        )
        self.task = Task(plan, plan.vertices[vertex], 0, 0, self.services, window)
        if restored is not None:
            for operator, (old, part) in zip(self.task.chain.operators, restored.operators, strict=True):
                for _, block in (pair for pair in restored.blocks if pair[0] is part):
                    assert operator.backend is not None and old.backend is not None
                    operator.backend.apply(old.backend.tables_info()[block.table], block.group, block.data)
                if operator.backend is not None:
                    operator.backend.end_restore(False)
        self.task.open()
        self.now = 1000
        self.taken: Any = None
        """The newest snapshot that was encoded."""
        edges = plan.edges_into(vertex)
        self.channels = [ChannelId(edge.id, source, 0) for edge in edges for source in plan.sources(edge, 0)]

    def arrive(self, channel: int, *values: Any) -> One:
        ident = self.channels[channel]
        self.task.arrive(ident, self.task.gate.channels[ident].expected, Rows(list(values)), 1)
        return self

    def mark(self, channel: int, marker: Any) -> One:
        ident = self.channels[channel]
        self.task.arrive(ident, self.task.gate.channels[ident].expected, marker, 0)
        return self

    def barrier(self, channel: int, number: int) -> One:
        return self.mark(channel, Barrier(CutRequest(number)))

    def step(self, budget: int = 100) -> Idle | None:
        idle = self.task.step(self.now, budget)
        self.task.check()
        return idle

    def run(self, *, encode: bool = False) -> Idle:
        """Steps until there is nothing to do: why not."""
        for _ in range(1000):
            idle = self.step()
            if encode:
                self.encode()
            if idle is not None and not (encode and idle.reason is Reason.ENCODING):
                return idle
        raise AssertionError("it never rests")

    def encode(self, limit: int = 1 << 30) -> None:
        """Encodes what there is, and takes it away as the worker does."""
        while self.task.checkpoints.snapshot is not None and not self.task.checkpoints.snapshot.done:
            self.task.checkpoints.encode(self.now, limit)
        if self.task.checkpoints.snapshot is not None:
            self.taken, self.task.checkpoints.snapshot = self.task.checkpoints.snapshot, None

    def sent(self) -> list[tuple[int, Any]]:
        """What went out since the last call: (target, records or marker)."""
        sends, self.task.outbox.sends = self.task.outbox.sends, []
        found: list[tuple[int, Any]] = []
        for channel, _, payload, _ in sends:
            if not isinstance(payload, bytes):
                found.append((channel.target, payload.values if isinstance(payload, Rows) else payload))
            else:
                frame = decode(payload)
                marks = frame.kind in (BARRIER, END, WATERMARK)
                found.append((channel.target, frame.marker() if marks else frame.batch().to_rows().values))
                assert marks or frame.kind == ROWS
        return found


def state(snapshot: TaskSnapshot) -> dict[Any, Any]:
    """The keyed state that a snapshot holds."""
    backend = MemoryBackend()
    made: dict[str, Any] = {}
    for part, block in snapshot.blocks:
        info = part.tables[block.table]
        if info.name not in made:
            made[info.name] = backend.table(info.name, kind=info.kind, encoding=info.encoding)
        backend.apply(info, block.group, block.data)
    backend.end_restore(True)
    return {key: value for table in made.values() if table.kind != "timers" for key, value in table.items()}


class Total(tr.KeyedProcessFunction):
    """Adds up the values of a key, and emits the sum."""

    total = tr.ValueState(int, default=0)

    def process(self, value: Any, ctx: tr.Context) -> Any:
        self.total.value += value
        yield self.total.value


def summed(env: tr.Environment, sink: tr.Sink) -> None:
    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: 0).process(Total()).sink_to(sink)


def passed_on(env: tr.Environment, sink: tr.Sink) -> None:
    middle = env.from_source(tr.sources.Sequence(0, 10)).rebalance().map(lambda x: x)
    middle.rebalance().map(lambda x: x).sink_to(sink)


def test_what_a_task_wants_is_asked_when_it_is_opened() -> None:
    """The worker had looked for its events before, while the task's state was read. A source that deals its splits out
    anew has events when it is opened: the worker would not have looked until it was stepped."""
    one = One(passed_on, vertex=0)
    one.services.stirred.clear()
    one.task.open()
    assert list(one.services.stirred) == [0]


# The order.


def test_every_reason_to_do_nothing_has_its_place_in_the_order() -> None:
    """A task takes the lines that are for its kind, and the last one applies to all: it never has no answer."""
    assert {turn.reason for turn in ORDER if turn.act is None or turn.reason is Reason.QUIET} == set(Reason)
    task = One(passed_on).task
    kinds = [(*turn[:3], number, turn.of_task) for number, turn in enumerate(ORDER) if turn.whose(task)]
    assert kinds == task._order
    assert len(task._order) == 9, "what loops, sources and timers of the clock do is not asked of a task without them"
    assert ORDER[-1].guard(task, 0) and ORDER[-1].whose(task)


def test_the_last_reason_is_kept_for_the_report() -> None:
    one = One(summed)
    assert one.task.idle is None
    one.run()
    assert one.task.idle == Idle(Reason.NO_INPUT)
    one.arrive(0, 1)
    assert one.step() is None and one.task.idle is None
    one.barrier(0, 1)
    one.run()
    assert one.task.idle == Idle(Reason.ALIGNING)


# Alignment.


def test_the_state_of_a_cut_is_what_came_before_the_markers_on_each_channel() -> None:
    one = One(summed)
    one.arrive(0, 1).barrier(0, 1).arrive(0, 100)
    one.arrive(1, 2)
    assert one.run() == Idle(Reason.ALIGNING)
    assert one.out == [1, 3], "what came behind the marker waits"
    one.arrive(1, 4).barrier(1, 1).arrive(1, 1000)
    one.run(encode=True)
    assert state(one.taken) == {0: 7}
    assert one.out[:3] == [1, 3, 7] and one.out[-1] == 1107, "and nothing is lost"


def test_the_channel_that_is_not_there_yet_is_read_on() -> None:
    one = One(summed).barrier(0, 1).arrive(0, 100)
    one.run()
    for value in (1, 2, 3):
        one.arrive(1, value)
        assert one.run() == Idle(Reason.ALIGNING)
    assert one.out == [1, 3, 6]


def test_what_happens_between_the_cut_and_the_encoding_is_not_in_the_snapshot() -> None:
    one = One(summed)
    one.arrive(0, 1).barrier(0, 1).barrier(1, 1)
    one.run()
    assert one.task.checkpoints.snapshot is not None
    one.arrive(0, 5).arrive(1, 6)
    one.run()
    assert one.out[-1] == 12
    one.encode(limit=1)
    assert state(one.taken) == {0: 1}


def test_how_long_it_waited_is_reported() -> None:
    one = One(summed).barrier(0, 1)
    one.run()
    one.now += 500
    one.barrier(1, 1)
    one.run(encode=True)
    ack = one.taken.ack(1, 0)
    assert isinstance(ack, SubtaskAck) and ack.alignment_micros == 500
    one.now += 70
    one.barrier(0, 2).barrier(1, 2)
    one.run(encode=True)
    assert one.taken.ack(1, 0).alignment_micros == 0


def test_a_barrier_is_announced_when_it_arrives_before_it_is_its_turn() -> None:
    """A slow task knows of a cut while all that is in front of the barriers is still to be read."""
    one = One(summed).arrive(0, 1, 1, 1, 1).barrier(0, 1)
    cuts = one.task.cuts
    assert list(cuts.known) == [1] and len(cuts.known[1].arrived) == 1
    assert (cuts.current, cuts.blocked) == (None, {})
    for _ in range(3):
        assert one.step(budget=1) is None
        one.now += 100
    one.arrive(1, 1).barrier(1, 1)
    assert len(cuts.known[1].arrived) == 2 and cuts.current is None
    one.run(encode=True)
    ack = one.taken.ack(1, 0)
    assert (ack.announced_micros, ack.alignment_micros) == (300, 0)
    assert state(one.taken) == {0: 5}
    assert cuts.known == {}


def test_a_barrier_that_arrives_takes_nothing_from_the_cuts_that_were_made() -> None:
    """The driver looks at how many were made before a step and behind it, to know which step made one and how long that
    took. A step that only notes that the barrier of the next cut has arrived makes none."""
    one = One(summed).barrier(0, 1).barrier(1, 1)
    one.run(encode=True)
    assert one.task.cuts.made == 1
    one.arrive(0, 1).barrier(0, 2)
    one.run()
    assert one.task.cuts.made == 1
    one.barrier(1, 2)
    one.run(encode=True)
    assert one.task.cuts.made == 2


def test_what_is_announced_of_a_cut_that_is_given_up_is_forgotten() -> None:
    one = One(summed).arrive(0, 1).barrier(0, 1).barrier(1, 2)
    assert list(one.task.cuts.known) == [1, 2]
    one.task.abort(1)
    one.run()
    one.now += 40
    one.barrier(0, 2)
    one.run(encode=True)
    ack = one.taken.ack(1, 0)
    assert (ack.announced_micros, ack.alignment_micros) == (40, 40)
    assert one.task.cuts.known == {}


def test_a_batch_is_cut_where_the_marker_stands_though_it_is_read_in_portions() -> None:
    one = One(summed).arrive(0, 1, 1, 1, 1, 1).barrier(0, 1).barrier(1, 1)
    for _ in range(3):
        one.step(budget=1)
    assert one.task.checkpoints.snapshot is None
    one.run(encode=True)
    assert state(one.taken) == {0: 5}


def test_an_ended_channel_does_not_hold_a_cut_up() -> None:
    one = One(summed).barrier(0, 1)
    one.run()
    one.arrive(1, 3).mark(1, EndOfInput())
    one.run(encode=True)
    assert state(one.taken) == {0: 3} and one.taken.checkpoint == 1
    one.barrier(0, 2)
    one.run(encode=True)
    assert one.taken.checkpoint == 2


def test_a_trigger_alone_cuts_nothing_while_inputs_are_alive() -> None:
    one = One(summed)
    one.task.trigger(CutRequest(1))
    one.run()
    assert one.task.checkpoints.snapshot is None
    one.mark(0, EndOfInput()).mark(1, EndOfInput())
    one.run(encode=True)
    assert one.taken.checkpoint == 1


# What goes on.


def test_the_barrier_goes_behind_what_was_gathered_on_every_channel() -> None:
    one = One(passed_on).arrive(0, 1, 2).barrier(0, 1).barrier(1, 1)
    one.run(encode=True)
    one.arrive(0, 3, 4)
    one.run(encode=True)
    one.task.flush()
    sent = one.sent()
    for target in (0, 1):
        mine = [what for to, what in sent if to == target]
        at = mine.index(Barrier(CutRequest(1)))
        before = [value for batch in mine[:at] for value in batch]
        after = [value for batch in mine[at + 1 :] for value in batch]
        assert (len(before), len(after)) == (1, 1) and before[0] < 3 <= after[0]


def test_a_source_cuts_when_it_is_triggered_behind_what_it_has_read() -> None:
    one = One(passed_on, vertex=0)
    while not one.task.work.records_in:
        assert one.step(budget=3) is None
    one.task.trigger(CutRequest(1))
    assert one.step() is None
    one.task.flush()
    sent = one.sent()
    assert [what for _, what in sent][-2:] == [Barrier(CutRequest(1)), Barrier(CutRequest(1))]
    assert sorted(v for _, what in sent if isinstance(what, list) for v in what) == [0, 2, 4]
    assert one.task.checkpoints.snapshot is not None and one.task.cuts.made == 1


def test_without_credit_the_cut_is_made_and_its_barrier_stays_in_order() -> None:
    one = One(passed_on, window=64)
    for value in range(8):
        one.arrive(0, bytes([value]) * 100)
        one.task.step(one.now, 100)
        one.task.flush()
    idle = one.run()
    assert idle == Idle(Reason.NO_CREDIT)
    before = one.sent()
    # The barriers are there already: what is read waits for credit, and so they wait behind it.
    one.barrier(0, 1).barrier(1, 1)
    assert one.run() == Idle(Reason.NO_CREDIT) and one.task.checkpoints.snapshot is None
    for _ in range(20):
        for channel in list(one.task.outbox.channels):
            one.task.grant(channel, 1 << 30)
        one.run(encode=True)
    sent = before + one.sent()
    for target in (0, 1):
        mine = [what for to, what in sent if to == target]
        assert mine[-1] == Barrier(CutRequest(1))
    assert sum(len(what) for _, what in sent if isinstance(what, list)) == 8


def test_a_cut_that_is_due_is_made_though_what_was_emitted_waits_for_credit() -> None:
    one = One(passed_on, vertex=0, window=64)
    one.task.trigger(CutRequest(1))
    one.step()
    one.encode()
    large = [bytes(100)]
    for _ in range(4):
        for output in one.task.outbox.outputs:
            one.task.outbox.emit(output, Rows(large * 2))
            one.task.flush()
    assert one.task.outbox.blocked
    one.task.trigger(CutRequest(2))
    assert (
        one.step() is None
        and one.task.checkpoints.snapshot is not None
        and one.task.checkpoints.snapshot.checkpoint == 2
    )
    for channel in one.task.outbox.channels.values():
        assert (
            not channel.queue
            or channel.queue[-1][1] in (Barrier(CutRequest(2)),)
            or decode(channel.queue[-1][1]).kind == BARRIER
        )


# Event time.


def timed(env: tr.Environment, sink: tr.Sink) -> None:
    class Alarm(tr.KeyedProcessFunction):
        def process(self, value: Any, ctx: tr.Context) -> None:
            ctx.set_timer(event_time=value / 1e6)

        def on_timer(self, time: float, ctx: tr.Context) -> Any:
            yield round(time * 1e6)

    env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: x).process(Alarm()).sink_to(sink)


def reached(snapshot: TaskSnapshot) -> list[int]:
    return [read_meta(part.meta).reached for part in snapshot.parts if part.meta is not None]


def test_a_watermark_belongs_to_the_cut_it_came_before() -> None:
    one = One(timed)
    one.mark(0, Watermark(50)).mark(1, Watermark(40)).barrier(0, 1).barrier(1, 1)
    one.mark(0, Watermark(500)).mark(1, Watermark(500))
    while one.task.checkpoints.snapshot is None:
        one.step()
    assert reached(one.task.checkpoints.snapshot) == [40, 40]
    one.run(encode=True)
    assert one.task.watermark() == 500


def test_the_watermark_of_a_channel_that_waits_does_not_count() -> None:
    one = One(timed)
    one.mark(0, Watermark(50)).barrier(0, 1).mark(0, Watermark(500))
    one.mark(1, Watermark(100))
    one.run()
    assert one.task.watermark() == 50
    one.barrier(1, 1)
    one.run(encode=True)
    assert reached(one.taken) == [50, 50] and one.task.watermark() == 100


def test_event_time_that_is_on_its_way_is_in_the_cut_though_not_all_timers_have_fired() -> None:
    """Timers that have not fired are in the state, and fire behind the cut (`tests/task/subtask/test_portions.py`)."""
    one = One(timed)
    one.arrive(0, *range(10)).mark(0, Watermark(20)).mark(1, Watermark(20)).barrier(0, 1).barrier(1, 1)
    while one.task.checkpoints.snapshot is None:
        assert one.step(budget=1) is None
    snapshot = one.task.checkpoints.snapshot
    assert one.out == [0] and reached(snapshot) == [MIN_TIME, MIN_TIME]
    assert [read_meta(part.meta).came for part in snapshot.parts if part.meta is not None] == [20, MIN_TIME]
    one.run(encode=True)
    assert one.out == list(range(10)) and one.task.watermark() == 20


def test_timers_that_were_not_due_are_in_the_state() -> None:
    one = One(timed).arrive(0, 5, 50).mark(0, Watermark(20)).mark(1, Watermark(20)).barrier(0, 1).barrier(1, 1)
    one.run(encode=True)
    again = One(timed, restored=one.taken)
    again.mark(0, Watermark(100)).mark(1, Watermark(100))
    again.run()
    assert (one.out, again.out) == ([5], [50])


def test_before_any_watermark_nothing_was_reached() -> None:
    one = One(summed).barrier(0, 1).barrier(1, 1)
    one.run(encode=True)
    assert reached(one.taken) == [MIN_TIME, MIN_TIME]


# One after the other.


def test_a_cut_waits_until_the_one_before_is_encoded_and_so_does_the_input() -> None:
    one = One(summed)
    for number in (1, 2):
        one.arrive(0, number).barrier(0, number).barrier(1, number)
    one.arrive(0, 1000)
    assert one.run() == Idle(Reason.ENCODING)
    assert one.out == [1, 3]
    one.encode()
    assert (one.taken.checkpoint, state(one.taken)) == (1, {0: 1})
    one.run()
    one.encode()
    assert (one.taken.checkpoint, state(one.taken)) == (2, {0: 3})
    assert one.out == [1, 3, 1003]


def test_an_abort_gives_the_channel_back_and_the_snapshot_away() -> None:
    one = One(summed).barrier(0, 1).arrive(0, 5)
    one.run()
    one.task.abort(1)
    one.run()
    assert one.out == [5]
    one.barrier(1, 1)
    one.run()
    assert one.task.checkpoints.snapshot is None, "of one that was aborted no marker counts"
    one.barrier(0, 2).barrier(1, 2)
    one.run()
    assert one.task.checkpoints.snapshot is not None
    one.task.abort(2)
    assert one.task.checkpoints.snapshot is None
    one.arrive(0, 1).barrier(0, 3).barrier(1, 3)
    one.run(encode=True)
    assert state(one.taken) == {0: 6}, "and the next one has it all"


def test_an_abort_takes_back_a_cut_that_is_due() -> None:
    one = One(summed)
    for number in (1, 2):
        one.barrier(0, number).barrier(1, number)
    assert one.run() == Idle(Reason.ENCODING)
    one.task.abort(2)
    assert one.run() == Idle(Reason.NO_INPUT)
    one.encode()
    assert one.run() == Idle(Reason.NO_INPUT) and one.taken.checkpoint == 1


def test_one_that_a_channel_left_out_is_declined() -> None:
    one = One(summed).barrier(0, 1).arrive(0, 5)
    one.run()
    one.barrier(1, 2)
    one.run()
    assert one.task.cuts.declined == [1] and one.out == [5]
    one.barrier(0, 2)
    one.run(encode=True)
    assert (one.taken.checkpoint, state(one.taken)) == (2, {0: 5})


def test_confirming_makes_the_next_one_small() -> None:
    one = One(summed).arrive(0, 1).barrier(0, 1).barrier(1, 1)
    one.run(encode=True)
    [operator] = [op for op in one.task.chain.operators if op.backend is not None]
    assert operator.backend is not None
    full, changed = operator.backend.groups(1)
    assert len(full) == 1 and changed == []
    operator.chains.extend(1, "one", full, changed, set(full))
    one.task.confirm(1)
    assert list(operator.chains.confirmed.values()) == [("one",)]


# The end.


def ended() -> One:
    one = One(passed_on).arrive(0, 1).mark(0, EndOfInput()).mark(1, EndOfInput())
    assert one.run() == Idle(Reason.FINISHED)
    assert one.task.finished
    one.sent()
    return one


def test_a_finished_task_cuts_when_it_is_triggered_and_has_nothing_to_send() -> None:
    one = ended()
    one.task.trigger(CutRequest(1))
    one.run(encode=True)
    assert one.taken.checkpoint == 1 and one.sent() == []
    assert all(part.finished for part in one.taken.parts)


def test_a_cut_before_the_end_was_said_goes_before_it() -> None:
    one = One(passed_on).mark(0, EndOfInput()).mark(1, EndOfInput())
    one.step()
    one.step()
    one.task.trigger(CutRequest(1))
    one.run(encode=True)
    sent = one.sent()
    for target in (0, 1):
        assert [what for to, what in sent if to == target] == [Barrier(CutRequest(1)), EndOfInput()]
    assert not all(part.finished for part in one.taken.parts)


class AtTheEnd(tr.KeyedProcessFunction):
    """Has a timer at the end of event time, which sets one of the clock."""

    def process(self, value: Any, ctx: tr.Context) -> None:
        ctx.set_timer(event_time=1e9)

    def on_timer(self, timestamp: float, ctx: tr.Context) -> None:
        if timestamp == 1e9:
            ctx.set_timer(processing_time=5.0)


def test_what_fires_at_the_end_is_in_another_step_than_a_cut() -> None:
    """A replay does both again, each with the answers that user code got in it."""

    def timed(env: tr.Environment, sink: tr.Sink) -> None:
        env.from_source(tr.sources.Sequence(0, 10)).key_by(lambda x: 0).process(AtTheEnd()).sink_to(sink)

    one = One(timed).arrive(0, 3).mark(0, EndOfInput()).mark(1, EndOfInput())
    for _ in range(3):  # a record and two ends
        assert one.step() is None
    one.task.trigger(CutRequest(1))
    assert one.step() is None and one.task.checkpoints.just_cut is not None
    one.encode()
    one.task.trigger(CutRequest(2))
    assert one.step() is None and one.task.checkpoints.just_cut is None, "the timer has fired"
    assert one.step() is None and one.task.checkpoints.just_cut == CutRequest(2)
    one.encode()
    assert one.step() == Idle(Reason.QUIET, 5_000_000)


def test_a_sink_prepares_at_each_cut_and_for_the_last_time_at_the_end() -> None:
    class Numbered(tr.Sink):
        form = "rows"

        def writer(self, ctx: Any) -> Any:
            return Batches()

        def publish(self, prepared: Any) -> None: ...

    class Batches:
        def __init__(self) -> None:
            self.got: list[Any] = []

        def write(self, records: Any) -> None:
            self.got += records

        def prepare(self) -> bytes | None:
            got, self.got = self.got, []
            return bytes(got) if got else None

        def close(self) -> None: ...

    def program(env: tr.Environment, sink: tr.Sink) -> None:
        env.from_source(tr.sources.Sequence(0, 10)).rebalance().sink_to(Numbered())

    def prepared() -> list[bytes]:
        one.run(encode=True)
        assert one.taken is not None
        return [data for _, data, _ in one.taken.prepared]

    one = One(program)
    one.arrive(0, 1).barrier(0, 1).barrier(1, 1)
    assert prepared() == [b"\1"]
    one.arrive(0, 2).barrier(0, 2).barrier(1, 2)
    assert prepared() == [b"\1", b"\2"], "1 is not known to be complete"
    one.task.confirm(1)
    one.barrier(0, 3).barrier(1, 3)
    assert prepared() == [b"\2"], "2 may be aborted still"
    one.task.abort(2)
    one.task.confirm(3)
    one.arrive(0, 4).mark(0, EndOfInput()).mark(1, EndOfInput())
    assert one.run() == Idle(Reason.FINISHED)
    one.task.trigger(CutRequest(4))
    assert prepared() == [b"\4"]
    one.task.confirm(4)
    one.task.trigger(CutRequest(5))
    assert prepared() == []
    assert one.task.prepared_output() == [], "that is for jobs without checkpoints"


@pytest.mark.parametrize("seed", range(20))
def test_whatever_the_order_each_record_is_on_one_side_of_each_cut(seed: int) -> None:
    """Two channels with random values and the same markers among them, read with random budgets."""
    chance = random.Random(seed)
    one = One(summed)
    before: dict[int, int] = {}
    todo: list[list[Any]] = []
    for _ in range(2):
        message: list[Any] = []
        total = 0
        for number in (1, 2, 3):
            for _ in range(chance.randrange(4)):
                values = [chance.randrange(100) for _ in range(chance.randrange(1, 4))]
                total += sum(values)
                message.append(values)
            before[number] = before.get(number, 0) + total
            message.append(number)
        todo.append(message)
    found: dict[int, int] = {}
    for _ in range(2000):
        channel = chance.randrange(2)
        if todo[channel] and chance.random() < 0.5:
            what = todo[channel].pop(0)
            _ = one.arrive(channel, *what) if isinstance(what, list) else one.barrier(channel, what)
        one.step(budget=chance.randrange(1, 4))
        if one.task.checkpoints.snapshot is not None and chance.random() < 0.3:
            one.encode(limit=1)
            found[one.taken.checkpoint] = state(one.taken).get(0, 0)
    assert found == before
