"""What is kept of what went to other workers: in memory up to a bound, the rest in a spill, and all of it once more for who
takes the place of a lost worker."""

import random
from collections import deque
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import ChannelId, decode
from tailrace.elements.markers import Barrier
from tailrace.elements.spills import FrameSpill
from tailrace.errors import InternalError
from tailrace.protocol.credit import Consumer
from tailrace.state.paths import kept_prefix
from tailrace.storage.filesystem import LocalFolder
from tailrace.storage.storedspill import StoredSpill
from tailrace.task.channels.outbox import Outgoing, OutputChannel, OutputEdge
from tailrace.task.channels.partition import ToOne
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.failover.replayable_slice import Keeps, ReplayableSlice
from tailrace.task.journal.digests import Digest
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.replayable_outbox import ReplayableOutbox
from tailrace.task.journal.sent_log import AT_LEAST, AT_ONCE, WHAT, Keeping
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.simulator import Simulation
from tailrace.testing.world import Observer

HERE, THERE = ChannelId(0, 0, 1), ChannelId(1, 0, 2)
WINDOW = 400


class Disk(MemorySpill):
    """A spill that counts what is read back."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, ref: int) -> bytes:
        self.reads += 1
        return super().read(ref)


class Sending:
    """A worker with an edge to each of two others, which read what comes at each call."""

    def __init__(self, budget: int, window: int = WINDOW, spill: FrameSpill | None = None) -> None:
        self.disk = Disk()
        self.keeping = Keeping(lambda: spill or self.disk, budget)
        self.window = window
        self.outputs = {c: OutputEdge("giver", ToOne(), [OutputChannel(c, False, window)]) for c in (HERE, THERE)}
        self.box = ReplayableOutbox(list(self.outputs.values()), 1, 0, 0, False, Facts(), self.keeping)
        self.readers = {c: Consumer(window) for c in (HERE, THERE)}
        self.unread: deque[Outgoing] = deque()

    def emit(self, *values: Any, to: ChannelId = HERE) -> list[Any]:
        """Sends records, each in a frame of its own; what has come on the first channel by then."""
        for value in values:
            self.box.emit(self.outputs[to], Rows([value]))
            self.box.flush()
        return self.came()

    def barrier(self, checkpoint: int) -> list[Any]:
        self.box.barrier(CutRequest(checkpoint))
        return self.came()

    def came(self, limit: int = 1_000) -> list[Any]:
        """Reads at most so many of the elements that have come at the other ends, records and markers."""
        found: list[Any] = []
        for _ in range(limit):
            self.unread.extend(self.box.sends)
            self.box.sends.clear()
            if not self.unread:
                break
            ident, seq, payload, charge = self.unread.popleft()
            assert isinstance(payload, bytes)
            frame = decode(payload)
            assert frame.seq == seq and frame.channel == ident
            if charge:
                self.readers[ident].arrive(charge)  # raises where more came than was granted
                grant = self.readers[ident].consume(charge)
                if grant is not None:
                    self.box.grant(ident, grant)
            if ident == HERE:
                found += frame.batch().to_rows().values if frame.count else [frame.marker()]
        self.check()
        return found

    def replaced(self, came: int = 0) -> None:
        """A log whose first channel gets another reader from now on: what is on its way there is lost."""
        self.unread.extend(self.box.sends)
        self.box.sends.clear()
        self.unread = deque(one for one in self.unread if one[0] != HERE)
        self.readers[HERE] = Consumer(self.window)
        self.box.receiver_replaced(HERE, came)

    def check(self) -> None:
        self.box.check()
        self.keeping.check(self.box.kept_items())


@pytest.mark.parametrize("budget", [0, 100, 1_000, 1 << 20])
def test_what_has_no_room_in_memory_is_spilled_and_comes_once_more_in_order(budget: int) -> None:
    s = Sending(budget)
    values = [f"record {n}" for n in range(50)]
    assert s.emit(*values) == values
    assert s.keeping.memory <= budget and s.keeping.spilled == s.disk.held
    assert (s.disk.held > 0) == (budget < 1 << 20)
    s.replaced()
    assert s.came() == values
    s.replaced()
    assert s.came() == values, "and again, if need be"
    assert s.disk.appended == s.disk.held, "what is in the spill is not written again"


def test_of_what_is_there_already_nothing_comes_again() -> None:
    s = Sending(0)
    values = [f"record {n}" for n in range(20)]
    s.emit(*values)
    s.replaced(came=13)
    assert s.came() == values[13:]
    s.replaced()
    assert s.came() == values


def test_the_oldest_goes_to_the_spill_whichever_channel_it_went_on() -> None:
    s = Sending(1_000)
    s.emit(*["x" * 100] * 8)
    assert s.disk.held > 0
    before = s.keeping.spilled
    s.emit("y" * 100, to=THERE)
    assert s.keeping.spilled > before, "one bound for all channels"
    reads = s.disk.reads
    assert len(list(s.box.logs[THERE].elements())) == 1
    assert s.disk.reads == reads, "the newest one is in memory"


def test_frames_are_kept_as_they_went_and_not_copied() -> None:
    s = Sending(1 << 20)
    s.box.emit(s.outputs[HERE], Rows(["a record"]))
    s.box.flush()
    ((_, _, sent, _),) = s.box.sends
    (item,) = s.box.kept_items()
    assert item.data is sent


def test_a_new_reader_gets_no_more_at_once_than_its_window_and_nothing_is_read_before() -> None:
    s = Sending(0)
    values = ["x" * 50 + str(n) for n in range(100)]
    s.emit(*values)
    assert s.disk.reads == 0
    s.replaced()
    here = s.readers[HERE]
    assert 0 < s.disk.reads < 10 and sum(charge for *_, charge in s.box.sends) <= here.window
    assert s.box.sends and s.box.blocked == 1
    assert s.came(limit=20) == values[:20]
    assert s.disk.reads < 30


def test_at_a_complete_checkpoint_what_went_before_its_barrier_is_let_go() -> None:
    s = Sending(0)
    s.emit(*range(10))
    s.barrier(1)
    s.emit(*range(10, 13))
    s.emit("there", to=THERE)
    held = s.disk.held
    s.box.complete(1)
    s.check()
    assert 0 < s.disk.held < held
    s.replaced()
    assert s.came() == [10, 11, 12]
    s.barrier(2)
    s.box.complete(2)
    assert (s.disk.held, s.disk.stored, s.keeping.memory) == (0, {}, 0)


def test_a_barrier_of_a_checkpoint_that_was_given_up_does_not_come_again() -> None:
    s = Sending(0)
    s.emit("a")
    assert s.barrier(1) == [Barrier(CutRequest(1))]
    s.emit("b")
    s.replaced()
    assert s.came() == ["a", "b"]


def test_of_a_channel_that_was_read_to_its_end_before_the_cut_nothing_is_left() -> None:
    s = Sending(0)
    s.emit("a", "b")
    s.box.end()
    s.came()
    assert s.disk.held > 0
    s.box.complete(1)
    s.check()
    assert s.disk.stored == {}


def test_what_was_made_again_has_the_digest_of_what_came_wherever_it_is_kept() -> None:
    digests = []
    for budget in (0, 150, 1 << 20):
        s = Sending(budget)
        s.emit("a", "b")
        s.box.watermark(s.outputs[HERE], 5)
        s.barrier(1)
        s.emit("c")
        digests.append([s.box.made_again(HERE, count).value for count in range(6)])
        assert s.box.made_again(HERE, 9).count == 4, "two records, a watermark, and a record"
    assert digests[0] == digests[1] == digests[2]
    assert digests[0][0] == Digest().value and len(set(digests[0])) == 5


def test_closing_lets_go_of_everything() -> None:
    s = Sending(0)
    s.emit(*range(5))
    s.keeping.close()
    assert (s.disk.stored, s.keeping.memory, s.keeping.spilled) == ({}, 0, 0)


def test_what_is_counted_otherwise_than_it_is_held_is_an_error() -> None:
    s = Sending(0)
    s.emit("a", "b")
    s.keeping.release(s.box.kept_items()[0])
    with pytest.raises(InternalError, match="O4"):
        s.check()


def test_it_comes_from_the_storage_of_checkpoints_as_it_does_from_a_disk(tmp_path: Path) -> None:
    spill = StoredSpill(LocalFolder(str(tmp_path)), kept_prefix(1, 0, 1), WHAT, part_bytes=500)
    s = Sending(0, spill=spill)
    values = [f"record {n}" for n in range(100)]
    s.emit(*values)
    s.barrier(1)
    s.emit(*values[:50])
    s.box.complete(1)
    s.replaced(came=7)
    assert s.came() == values[7:50]
    s.keeping.close()
    spill.settle()
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == []


def without_barriers(elements: list[Any]) -> list[Any]:
    return [one for one in elements if not isinstance(one, Barrier)]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_in_whatever_order_a_new_reader_has_what_came_behind_the_checkpoint(seed: int) -> None:
    """Records, checkpoints and losses by chance, with a reader that is slow."""
    chance = random.Random(seed)
    s = Sending(chance.choice([0, 60, 500, 5_000]), window=chance.choice([50, 400, 3_000]))
    given: list[Any] = []  # behind the newest complete checkpoint
    got: list[Any] = []  # of these, what the reader has
    for n in range(1, 300):
        match chance.choice(["emit", "emit", "emit", "barrier", "complete", "replaced", "read"]):
            case "emit":
                given.append((n, "x" * chance.randrange(60)))
                s.box.emit(s.outputs[HERE], Rows([given[-1]]))
                s.box.flush()
            case "barrier":
                given.append(Barrier(CutRequest(n)))
                s.box.barrier(CutRequest(n))
            case "complete":
                barriers = [one for one in got if isinstance(one, Barrier)]
                if barriers:
                    s.box.complete(barriers[-1].checkpoint)
                    behind = got.index(barriers[-1]) + 1
                    given, got = given[behind:], got[behind:]
            case "replaced":
                s.replaced()
                given, got = without_barriers(given), []
            case "read":
                got += s.came(chance.choice([1, 3, 10]))
        s.check()
        assert got == given[: len(got)]
    while more := s.came():
        got += more
    assert got == given


class Sizes(Observer):
    """Looks at what the workers of a job keep."""

    def __init__(self, world: Simulation) -> None:
        self.world, self.seen = world, dict[int, list[Keeps]]()
        world.watch(self)

    def on_line(self, line: str) -> None:
        for process in self.world.processes.values():
            if isinstance(process.machine.slice, ReplayableSlice):
                self.seen.setdefault(process.slot, []).append(process.machine.slice.keeps)


def test_a_slice_tells_what_it_keeps_which_is_less_when_a_checkpoint_is_complete() -> None:
    env = tr.Environment(
        parallelism=2,
        debug=True,
        checkpoint=tr.CheckpointConfig("memory", interval=0.01),
        standby=tr.StandbyConfig(replicas=0, spill=tr.Spill(memory_bytes=700)),
    )
    source = tr.sources.Generator(lambda n: (n % 7, "x" * 90), count=600, rate=6_000)
    env.from_source(source, parallelism=1).key_by(lambda r: r[0]).count().sink_to(tr.sinks.Collect())
    world = prepared_simulation(env, name="keeps", seed=1, conditions=tr.testing.Conditions.calm())
    sizes = Sizes(world)
    world.run()
    seen = [one for one in sizes.seen[0] if one.entries]
    assert 0 < max(one.memory for one in seen) <= 700 < max(one.spilled for one in seen)
    assert all(one.history > one.entries for one in seen)
    let_go = [(before, after) for before, after in pairwise(seen) if after.entries < before.entries]
    assert len(let_go) > 5
    assert all(b.history < a.history and b.spilled + b.memory <= a.spilled + a.memory for a, b in let_go)
    assert all(slot == 0 or one.spilled == one.memory == 0 for slot, all_ in sizes.seen.items() for one in all_)


def test_what_nobody_wants_any_more_is_let_go_a_little_at_a_time() -> None:
    """At a complete checkpoint there may be tens of thousands of frames of a channel, and a worker has records to take."""
    s = Sending(1 << 20, window=1 << 20)
    s.emit(*range(3_000))
    s.barrier(1)
    s.emit("behind")
    before = len(s.box.kept_items())
    s.box.complete(1)
    assert before - len(s.box.kept_items()) == AT_LEAST
    s.emit(*range(100))
    assert before - len(s.box.kept_items()) == AT_LEAST + 100 * AT_ONCE - 100
    s.emit(*range(300))
    assert len(s.box.kept_items()) == 401, "all that is behind the barrier"
    s.replaced()
    assert s.came() == ["behind", *range(100), *range(300)]


def test_what_nobody_wants_any_more_is_let_go_before_anything_is_spilled() -> None:
    s = Sending(200_000, window=1 << 20)
    s.emit(*range(1_500))
    s.barrier(1)
    s.box.complete(1)
    assert len(s.box.kept_items()) > 900
    s.emit("x" * 150_000)
    assert s.disk.appended == 0 and len(s.box.kept_items()) == 1
