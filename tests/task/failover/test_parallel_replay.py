"""A worker that does again what another one did lets each task go through its own part of that, and takes steps that read
one after the other as one, where nobody can tell: the records of each channel are the same, whatever frames they lie in."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark import cloudpickle

import tailrace as tr
from tailrace.elements.frames import ChannelId, decode
from tailrace.graph.plan import Plan
from tailrace.runtime.worker.random_state import SharedGenerators
from tailrace.task.channels.services import Services
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.failover.parallel_replay import meets_in_channels
from tailrace.task.failover.recorded_slice import RecordedSlice
from tailrace.task.failover.replay import Again
from tailrace.task.failover.takeover import peer_replaced
from tailrace.task.journal.digests import Digest
from tailrace.task.journal.history import Did
from tailrace.task.journal.history import decode as decode_entry
from tailrace.task.journal.recorded_gate import RecordedGate
from tailrace.task.journal.recorded_outbox import outbox_of
from tailrace.task.journal.sent_log import Keeping

RECORDS = 300
NOWHERE = tr.sinks.Callback(lambda record: None)


class Seen(tr.KeyedProcessFunction):
    """Counts the records of each key, and emits what `of` makes of that."""

    count = tr.ValueState(int, default=0)

    def __init__(self, of: Callable[[int, tr.Context], Any]) -> None:
        self.of = of
        self.calls = 0

    def process(self, record: int, ctx: tr.Context) -> Iterator[Any]:
        self.count.value += 1
        yield record % 20, self.count.value, self.of(record, ctx)


def plan(of: Callable[[int, tr.Context], Any]) -> Plan:
    """A source in worker 0, whose records go to both workers, and to both once more by another key."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, RECORDS), parallelism=1)
    seen = numbers.key_by(lambda n: n % 20).process(Seen(of))
    seen.key_by(lambda record: record[1] % 5).reduce(lambda a, b: max(a, b, key=repr)).sink_to(NOWHERE)
    return env._plan(env._pending())


class Workers:
    """Two of them, driven by hand, one of which may be done again by a third."""

    def __init__(self, made: Plan) -> None:
        self.plan = made
        self.chance = random.Random(4)
        self.slices = [self.opened(0), self.opened(1)]

    def opened(self, slot: int) -> RecordedSlice:
        services = Services(random.Random, shared=SharedGenerators(), debug=True)
        own = cloudpickle.loads(cloudpickle.dumps(self.plan))
        made = RecordedSlice(own, slot, 0, services, 1 << 20, Keeping(MemorySpill, 0))
        made.open()
        return made

    def run(self) -> None:
        """In steps of a few records, each at a time of its own, until all is done."""
        now = 0
        while not all(slice.finished for slice in self.slices):
            for slice in self.slices:
                for task in slice.tasks:
                    now += 1
                    slice.step(task, now, self.chance.randint(1, 4))
                slice.flush()
            self.deliver(*self.slices)
            self.deliver(*reversed(self.slices))

    def deliver(self, one: RecordedSlice, other: RecordedSlice) -> int:
        actions, one.actions = one.actions, []
        for action in actions:
            other.receive(decode(action.data), one.slot)
        return len(actions)

    def done_again(self) -> tuple[RecordedSlice, Again]:
        """What worker 1 did, by another one."""
        lost, survivor = self.slices[1], self.slices[0]
        other = self.opened(1)
        again = Again(other, map(decode_entry, lost.history.entries), 0)
        peer_replaced(survivor, 1)
        while not again.go_on():
            moved = self.deliver(survivor, other) + self.deliver(other, survivor)
            assert again.moved or moved, f"it waits for {again.left[0]}"
        return other, again


def sent(slice: RecordedSlice) -> dict[ChannelId, list[Any]]:
    """What has gone on each channel to the other worker."""
    found: dict[ChannelId, list[Any]] = {}
    for task in slice.tasks:
        logs = outbox_of(task).logs
        for ident in task.outbox.channels:
            frames = logs[ident].items() if ident in logs else []
            found[ident] = [
                value for item in frames for value in decode(task.outbox.frame(item)).batch().to_rows().values
            ]
    return found


def frames(slice: RecordedSlice) -> int:
    return sum(len(log.items()) for task in slice.tasks for log in outbox_of(task).logs.values())


def steps(slice: RecordedSlice) -> list[Did]:
    entries = map(decode_entry, slice.history.entries)
    return [entry for entry in entries if isinstance(entry, Did) and entry.facts]


def test_steps_that_read_one_after_the_other_are_done_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = Workers(plan(lambda record, ctx: record))
    workers.run()
    lost = workers.slices[1]
    taken: list[int] = []
    merge = RecordedGate.merge

    def watched(gate: RecordedGate, pieces: Any) -> Any:
        taken.append(len(pieces))
        return merge(gate, pieces)

    monkeypatch.setattr(RecordedGate, "merge", watched)
    other, _ = workers.done_again()
    assert sent(other) == sent(lost) and sum(map(len, sent(lost).values())) > 50
    assert len(taken) < len(steps(lost)) / 4, "few of them"
    assert frames(other) < frames(lost) / 3


@pytest.mark.parametrize(
    "of",
    [
        lambda record, ctx: ctx.now(),
        lambda record, ctx: random.random(),
        lambda record, ctx: ctx.random.random(),
        lambda record, ctx: ctx.call(random.Random(record).random),
        lambda record, ctx: ctx.now() if record % 11 == 0 else record,
    ],
    ids=["the clock", "random numbers of Python", "random numbers of ctx", "answers", "the clock now and then"],
)
def test_what_a_step_has_of_its_own_is_what_it_was(of: Callable[[int, tr.Context], Any]) -> None:
    workers = Workers(plan(of))
    workers.run()
    other, _ = workers.done_again()
    assert sent(other) == sent(workers.slices[1]), (
        "the same numbers, though many steps are done as one where they have none"
    )


def test_a_step_that_asks_for_the_clock_is_reported_from_others() -> None:
    workers = Workers(plan(lambda record, ctx: ctx.now() if record == 149 else record))
    workers.run()
    assert [entry.by_itself for entry in steps(workers.slices[1])].count(True) <= 1
    assert sum(entry.by_itself for slice in workers.slices for entry in steps(slice)) == 1


def test_others_have_a_part_of_a_frame_that_was_made_again() -> None:
    """They have so many records of a channel; the frames that they lie in now end elsewhere."""
    workers = Workers(plan(lambda record, ctx: record))
    workers.run()
    lost = workers.slices[1]
    values = sent(lost)
    other, _ = workers.done_again()
    (task, ident) = next(
        (task, ident) for task in other.tasks for ident, log in outbox_of(task).logs.items() if log.items()
    )
    whole, outbox = len(values[ident]), outbox_of(task)
    for came in (1, whole // 2, whole - 1, whole):
        digest = outbox.made_again(ident, came)
        assert (digest.count, digest.records) == (came, came)
        assert digest.value == of_values(lost, ident, came), "as the other one counts them"
        task.outbox.sends.clear()
        outbox.receiver_replaced(ident, came)
        again = [decode(data).batch().to_rows().values for _, _, data, _ in task.outbox.sends if decode(data).count]
        assert [value for values in again for value in values] == values[ident][came:]
        assert sent(other)[ident] == values[ident], "all of it is kept"
        outbox.keeping.check([item for one in other.tasks for item in outbox_of(one).kept_items()])


def of_values(slice: RecordedSlice, ident: ChannelId, count: int) -> int:
    """The digest of the first records of a channel, as they lay in the frames of who made them first."""
    digest = Digest()
    (outbox,) = [outbox_of(task) for task in slice.tasks if ident in task.outbox.channels]
    for item in outbox.logs[ident].items():
        digest.add(decode(outbox.frame(item)), count - digest.count)
    return digest.value


def test_event_time_and_loops_are_done_again_in_one_order() -> None:
    """A watermark goes where a frame ends, and the waves of a loop count frames."""
    env = tr.Environment(parallelism=2)
    numbers = env.from_source(tr.sources.Sequence(0, 10))
    numbers.key_by(lambda n: n).count().sink_to(NOWHERE)
    assert meets_in_channels(env._plan(env._pending()))

    timed = tr.Environment(parallelism=2)
    stream = timed.from_source(tr.sources.Sequence(0, 10)).assign_timestamps(lambda n: float(n))
    stream.key_by(lambda n: n).count().sink_to(NOWHERE)
    assert not meets_in_channels(timed._plan(timed._pending()))

    looped = tr.Environment(parallelism=2)
    begun = looped.from_source(tr.sources.Sequence(0, 10)).iterate(lambda s: (s.filter(lambda n: n < 3), s))
    begun.sink_to(NOWHERE)
    assert not meets_in_channels(looped._plan(looped._pending()))
