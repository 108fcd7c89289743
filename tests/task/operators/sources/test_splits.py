"""Splits are dealt out on request, and wherever a job is cut, lost and restored, each is read exactly once."""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any

import pytest

import tailrace as tr
from tailrace.api.connectors import NOTHING_YET, Enumerator
from tailrace.errors import UserCodeError
from tailrace.graph.graph import Node
from tailrace.state.backend import MetaPart
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.sources import source as sources
from tailrace.task.operators.sources import splits as dealing
from tailrace.task.operators.sources.source import SourceTask
from tailrace.task.operators.sources.splits import Ask, Cuts, Deal, Dealer, decode_state, read_post


class Numbers(tr.Reader):
    """The records (split, 0), (split, 1), …; between two of them it may have nothing for a moment."""

    def __init__(self, split: tuple[int, int, bool], at: int) -> None:
        (self.name, self.size, self.slow), self.at, self.silent = split, at, False
        self.closed = False

    def read(self, limit: int, now: float) -> Any:
        if self.at >= self.size:
            return None
        if self.slow and not self.silent:
            self.silent = True
            return NOTHING_YET
        self.silent = False
        stop = min(self.size, self.at + min(limit, 2))
        taken = [(self.name, i) for i in range(self.at, stop)]
        self.at = stop
        return taken

    @property
    def position(self) -> int:
        return self.at

    def close(self) -> None:
        self.closed = True


class Listed(tr.Source):
    """Splits that are known from the start: (name, size, slow)."""

    def __init__(self, splits: list[tuple[int, int, bool]], bounded: bool = True) -> None:
        self.listed, self.bounded = splits, bounded
        self.times = 0

    def splits(self, parallelism: int) -> list[tuple[int, int, bool]]:
        self.times += 1
        assert self.times == 1, "the splits were listed anew"
        return self.listed

    def reader(self, split: tuple[int, int, bool], position: Any = None) -> tr.Reader:
        return Numbers(split, position or 0)


class Found(Listed):
    """Splits that are found a few at a time."""

    def splits(self, parallelism: int) -> Any:
        raise AssertionError("it has an enumerator")

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        return Finding(self.listed, position or 0)


class Finding(Enumerator):
    def __init__(self, splits: list[Any], at: int) -> None:
        self.splits, self.at = splits, at

    def discover(self, now: float) -> Any:
        if self.at >= len(self.splits):
            return None
        some = self.splits[self.at : self.at + 3]
        self.at += len(some)
        return some

    def next_at(self, now: float) -> float:
        return now

    @property
    def position(self) -> int:
        return self.at


class Together(tr.SplitReader):
    """The readers of some splits in one, which reads them by turns."""

    def __init__(self, source: tr.Source) -> None:
        self.source = source
        self.readers: dict[int, Any] = {}

    def assign(self, splits: Sequence[tr.AssignedSplit]) -> None:
        for number, split, position in splits:
            assert number not in self.readers
            self.readers[number] = self.source.reader(split, position)

    def revoke(self, splits: Sequence[int]) -> None:
        for number in splits:
            self.readers.pop(number).close()

    def pause(self, splits: Collection[int]) -> None:
        assert not splits, "no split is ahead of another"

    def read(self, limit: int, now: float) -> Any:
        return [(number, reader.read(1, now)) for number, reader in list(self.readers.items())[:limit]]

    def position(self, split: int) -> Any:
        return self.readers[split].position


class Shared(Listed):
    """Splits that are read by one reader in each subtask."""

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return Together(self)


class SharedAndFound(Found):
    """Splits that are found, and read by one reader in each subtask."""

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return Together(self)


class Leaving(Found):
    """Splits that are found; then each fourth one goes, and the one behind it moves."""

    def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
        return Shifting(self.listed, *(position or (0, False)))


class LeavingAndShared(Leaving):
    """Splits that go and move, read by one reader in each subtask."""

    def split_reader(self, ctx: tr.SourceContext) -> tr.SplitReader:
        return Together(self)


class Shifting(Finding):
    def __init__(self, splits: list[Any], at: int, changed: bool) -> None:
        super().__init__(splits, at)
        self.changed = changed

    def discover(self, now: float) -> Any:
        if self.at < len(self.splits) or self.changed:
            return super().discover(now)
        self.changed = True
        moved = [(split, (*split[:2], not split[2])) for split in self.splits[1::4]]
        return tr.SplitsChange(gone=self.splits[::4], moved=moved)

    @property
    def position(self) -> Any:
        return self.at, self.changed


def task_of(
    source: tr.Source, subtask: int, parallelism: int, parts: list[MetaPart] | None = None, all_at_once: bool = False
) -> SourceTask:
    services = Services(random.Random, checkpointing=True)
    node = _node(source)
    task = SourceTask(node, OperatorContext("numbers", "numbers", subtask, parallelism, 0, services))
    task.too_far = set if all_at_once else None
    if parts is not None:
        task.restore(parts)
    return task


def _node(source: tr.Source) -> Node:
    env = tr.Environment(parallelism=1)
    env.from_source(source, name="numbers").sink_to(tr.sinks.Collect())
    return env._plan(env._pending()).graph.nodes[0]


class World:
    """The subtasks of one source: their links, what they have read, and which checkpoints each knows of."""

    def __init__(
        self,
        source: tr.Source,
        parallelism: int,
        rng: random.Random,
        parts: list[MetaPart] | None = None,
        all_at_once: bool = False,
    ) -> None:
        self.rng = rng
        self.parallelism = parallelism
        self.links: dict[tuple[int, int], deque[bytes]] = {}
        self.told: list[deque[tuple[str, int]]] = [deque() for _ in range(parallelism)]
        self.read: list[list[Any]] = [[] for _ in range(parallelism)]
        self.parts: dict[int, dict[int, tuple[MetaPart, int]]] = {}
        """By checkpoint and subtask: its state, and how much it had read."""
        self.complete: list[int] = []
        self.aborted: set[int] = set()
        self.checkpoint = 0
        self.now = 0
        self.tasks = [task_of(source, i, parallelism, parts, all_at_once) for i in range(parallelism)]
        same = parts is not None and len(parts) == parallelism
        for i, task in enumerate(self.tasks):
            task.finished = parts is not None and (parts[i].finished if same else all(p.finished for p in parts))
            task.out = lambda batch, i=i: self.read[i].extend(batch.values)
            task.open()
            self.carry(i)

    def carry(self, i: int) -> None:
        events, self.tasks[i].events = self.tasks[i].events, []
        for target, payload in events:
            self.links.setdefault((i, target), deque()).append(payload)

    @property
    def over(self) -> bool:
        return all(task.ended for task in self.tasks)

    def turn(self) -> None:
        """One thing happens."""
        choices: list[Any] = [link for link, queue in self.links.items() if queue]
        choices += [("told", i) for i, queue in enumerate(self.told) if queue]
        choices += [("step", i) for i, task in enumerate(self.tasks) if not task.ended and task.ready(self.now)]
        self.now += 10_000
        if not choices:
            waiting = [task.wake_at() for task in self.tasks if not task.ended]
            assert any(time is not None for time in waiting), "it stands still"
            return
        what, i = self.rng.choice(choices)
        task = self.tasks[i]
        if what == "told":
            self.hear(i, *self.told[i].popleft())
        elif what == "step":
            task.read(self.rng.randint(1, 3), self.now)
            task.opened_splits.clear()
            task.ended_splits.clear()
        else:
            task.event(what, self.links[what, i].popleft())
        self.carry(i)

    def hear(self, i: int, what: str, n: int) -> None:
        task = self.tasks[i]
        if what == "cut" and n not in self.aborted:
            part = MetaPart(i, self.parallelism, task.ended, task.snapshot(n))
            self.parts.setdefault(n, {})[i] = (part, len(self.read[i]))
        elif what == "cut":
            pass  # its abort is under way
        elif what == "confirm":
            task.confirm(n)
        else:
            task.abort(n)

    def tell(self, what: str, n: int) -> None:
        for queue in self.told:
            queue.append((what, n))

    def coordinate(self) -> None:
        """The coordinator may take, complete or abort a checkpoint."""
        open_ = [n for n in range(1, self.checkpoint + 1) if n not in self.complete and n not in self.aborted]
        chance = self.rng.random()
        if chance < 0.05 and len(open_) < 3:
            self.checkpoint += 1
            self.tell("cut", self.checkpoint)
        elif open_ and chance < 0.06:
            n = self.rng.choice(open_)
            self.aborted.add(n)
            self.tell("abort", n)
        elif open_ and chance < 0.3:
            n = open_[0]
            if len(self.parts.get(n, {})) == self.parallelism:
                self.complete.append(n)
                self.tell("confirm", n)


def splits(count: int, rng: random.Random) -> list[tuple[int, int, bool]]:
    return [(i, rng.randint(0, 5), rng.random() < 0.3) for i in range(count)]


def expected(listed: list[tuple[int, int, bool]]) -> Counter[Any]:
    return Counter((name, i) for name, size, _ in listed for i in range(size))


KINDS = {
    "one at a time": lambda listed: (Listed(listed), False),
    "event time": lambda listed: (Listed(listed), True),
    "unbounded": lambda listed: (Listed(listed, bounded=False), False),
    "found one at a time": lambda listed: (Found(listed), False),
    "found and event time": lambda listed: (Found(listed), True),
    "one reader": lambda listed: (Shared(listed), False),
    "one reader, found and event time": lambda listed: (SharedAndFound(listed), True),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_record_counts_once_however_often_the_job_is_lost(kind: str) -> None:
    """Any order of messages, steps, cuts, confirmations and aborts; the job is lost at any moment, and goes on from its
    newest complete checkpoint at another parallelism, again and again."""
    for seed in range(120):
        rng = random.Random(f"{kind} {seed}")
        listed = splits(rng.randint(0, 12), rng)
        assert Counter(counted_in(KINDS[kind], listed, rng)) == expected(listed), (kind, seed)


@pytest.mark.parametrize("kind", [Leaving, LeavingAndShared])
def test_a_split_that_is_gone_ends_where_it_is_and_one_that_has_moved_is_read_on(kind: type[Leaving]) -> None:
    """Whoever holds it, however often the job is lost. What is gone would have had records without end."""
    for seed in range(60):
        rng = random.Random(f"{kind.__name__} {seed}")
        listed = splits(rng.randint(0, 12), rng)
        listed[::4] = [(name, 1_000_000_000, slow) for name, _, slow in listed[::4]]
        counted = Counter(counted_in(lambda listed: (kind(listed), False), listed, rng))
        gone = {name for name, _, _ in listed[::4]}
        kept = [split for split in listed if split[0] not in gone]
        assert Counter({one: count for one, count in counted.items() if one[0] not in gone}) == expected(kept), seed
        for name in gone:
            read = sorted(i for other, i in counted.elements() if other == name)
            assert read == list(range(len(read))), (seed, name)


def test_a_split_that_moved_while_its_reader_was_at_its_cut_is_read_where_it_is_now() -> None:
    """The message about the move is in no checkpoint."""
    listed = [(0, 9, False), (1, 9, False)]
    enumerator, reader = (task_of(Leaving(listed), i, 2, all_at_once=True) for i in (0, 1))
    enumerator.out = reader.out = lambda batch: None
    enumerator.open()
    reader.open()
    enumerator.event(1, reader.events.pop()[1])
    enumerator.read(1, 0)  # finds both
    reader.event(0, next(payload for target, payload in enumerator.events if target == 1))
    reader.read(1, 0)
    enumerator.events.clear()
    enumerator.read(1, 0)  # finds that the first has gone and the second has moved
    assert enumerator.events, "the reader gets the message behind its cut"
    parts = [MetaPart(i, 2, False, task.snapshot(1)) for i, task in enumerate((enumerator, reader))]
    again = task_of(Leaving(listed), 1, 2, parts, all_at_once=True)
    again.open()
    assert [pickle.loads(split.held.split) for split in again.splits] == [(1, 9, True)]
    assert reader.splits[0].held.split != again.splits[0].held.split
    reader.event(0, enumerator.events[0][1])
    reader.read(1, 0)
    assert [pickle.loads(split.held.split) for split in reader.splits] == [(1, 9, True)]
    moved = reader.splits[0].reader
    assert isinstance(moved, Numbers) and moved.slow and moved.position == 1


def counted_in(make: Callable[[list[Any]], tuple[tr.Source, bool]], listed: list[Any], rng: random.Random) -> list[Any]:
    """The records that count, of a job that is lost again and again."""
    counted: list[Any] = []
    parts: list[MetaPart] | None = None
    source, all_at_once = make(listed)
    for life in range(6):
        parallelism = rng.choice([1, 2, 3, 4])
        if parts is None:
            source, all_at_once = make(listed)
        world = World(source, parallelism, rng, parts, all_at_once)
        last = rng.randint(0, 200) if life < 5 else 100_000
        for _ in range(last):
            if world.over:
                break
            world.turn()
            world.coordinate()
        if world.over:
            return counted + [one for read in world.read for one in read]
        if world.complete:
            newest = world.parts[world.complete[-1]]
            parts = [newest[i][0] for i in sorted(newest)]
            counted += [one for i, (_, at) in newest.items() for one in world.read[i][:at]]
    raise AssertionError("the last life has no end")


@pytest.mark.parametrize("old", [1, 2, 3, 4])
@pytest.mark.parametrize("new", [1, 2, 3, 4])
def test_positions_survive_a_change_of_parallelism(old: int, new: int) -> None:
    rng = random.Random(f"{old} {new}")
    listed = [(i, 7, False) for i in range(9)]
    source = Listed(listed)
    world = World(source, old, rng)
    for _ in range(25):
        world.turn()
    parts = [MetaPart(i, old, task.ended, task.snapshot(1)) for i, task in enumerate(world.tasks)]
    again = World(source, new, rng, parts)  # which does not list the splits anew
    if old == new:
        for before, after in zip(world.tasks, again.tasks, strict=True):
            mine = [split.index for split in before.splits]
            assert [split.index for split in after.splits][: len(mine)] == mine
    while not again.over:
        again.turn()
    both = [one for read in (*world.read, *again.read) for one in read]
    assert Counter(both) == expected(listed)


# Who gets which.


def test_with_as_many_splits_as_subtasks_each_reads_its_own() -> None:
    for seed in range(20):
        world = World(Listed([(i, 3, False) for i in range(4)]), 4, random.Random(seed))
        while not world.over:
            world.turn()
        assert [{name for name, _ in read} for read in world.read] == [{0}, {1}, {2}, {3}]


def test_who_is_slow_gets_fewer() -> None:
    """Subtask 1 is stepped once in ten times: the other reads most of the splits, and nobody waits for anybody."""
    source = Listed([(i, 4, False) for i in range(40)])
    world = World(source, 2, random.Random(0))
    for turn in range(10_000):
        for i, task in enumerate(world.tasks):
            if not task.ended and (i == 0 or turn % 10 == 0):
                task.read(2, 0)
                world.carry(i)
        for (source_, target), queue in list(world.links.items()):
            while queue:
                world.tasks[target].event(source_, queue.popleft())
                world.carry(target)
        if world.over:
            break
    assert world.over
    assert len({name for name, _ in world.read[0]}) > 30
    assert len({name for name, _ in world.read[1]}) >= 2


def test_a_split_that_has_nothing_at_the_moment_holds_nobody_up() -> None:
    class Silent(tr.Reader):
        position = None

        def read(self, limit: int, now: float) -> Any:
            return NOTHING_YET

        def next_at(self, now: float) -> float:
            return now + 100

    class Mixed(Listed):
        def reader(self, split: Any, position: Any = None) -> tr.Reader:
            return Silent() if split[0] == 0 else super().reader(split, position)

    task = task_of(Mixed([(0, 0, False), (1, 3, False)]), 0, 1)
    read: list[Any] = []
    task.out = lambda batch: read.extend(batch.values)
    task.open()
    while task.ready(0):
        task.read(10, 0)
    assert read == [(1, 0), (1, 1), (1, 2)]
    assert not task.ended and task.wake_at() == 100_000_000


def test_for_event_time_all_splits_are_open_from_the_start() -> None:
    task = task_of(Listed([(i, 2, False) for i in range(5)]), 0, 1, all_at_once=True)
    task.out = lambda batch: None
    task.open()
    assert [split.index for split in task.splits] == [0, 1, 2, 3, 4]
    unbounded = task_of(Listed([(i, 2, False) for i in range(5)], bounded=False), 0, 1)
    unbounded.open()
    assert len(unbounded.splits) == 5
    one = task_of(Listed([(i, 2, False) for i in range(5)]), 0, 1)
    one.open()
    assert len(one.splits) == 1


def test_a_reader_that_waits_for_an_answer_is_not_ready_and_not_ended() -> None:
    task = task_of(Listed([(0, 1, False)]), 1, 2)
    task.open()
    assert [target for target, _ in task.events] == [0]
    assert not task.ready(10**18) and task.wake_at() is None and not task.ended and not task.starved
    assert task.read(10, 0) == 0
    task.event(0, Cuts().stamp(Deal(last=True)))
    assert task.ended and not task.starved


def test_a_reader_for_which_there_is_nothing_at_the_moment_knows_it() -> None:
    """A reader without splits must not hold event time back; nor may it be taken for idle before it was looked for
    splits."""
    source = Found([(i, 3, False) for i in range(4)])
    enumerator, reader = (task_of(source, i, 4, all_at_once=True) for i in (0, 3))
    enumerator.out = lambda batch: None
    enumerator.open()
    reader.open()
    enumerator.event(3, reader.events.pop()[1])
    assert enumerator.events == [] and not reader.starved
    enumerator.read(1, 0)  # finds three splits, none of which is for subtask 3
    [answer] = [payload for target, payload in enumerator.events if target == 3]
    enumerator.events.clear()
    reader.event(0, answer)
    assert reader.starved and not reader.ended
    enumerator.read(1, 0)
    [answer] = [payload for target, payload in enumerator.events if target == 3]
    reader.event(0, answer)
    assert not reader.starved and len(reader.splits) == 1


def test_who_is_open_first_is_answered_once_the_others_are() -> None:
    enumerator, reader = (task_of(Listed([(i, 3, False) for i in range(2)]), i, 2) for i in (0, 1))
    reader.open()
    [(_, ask)] = reader.events
    enumerator.event(1, ask)
    assert enumerator.events == []
    enumerator.open()
    [(target, answer)] = enumerator.events
    assert target == 1
    reader.event(0, answer)
    assert [split.index for split in reader.splits] == [1]


def test_what_was_sent_behind_a_cut_waits_for_that_cut() -> None:
    """Without this rule a split that is found after the cut could be held in a checkpoint whose enumerator has not found
    it, and would be found, and read, again."""
    enumerator, reader = (task_of(Found([(0, 3, False)]), i, 2, all_at_once=True) for i in (0, 1))
    reader.out = lambda batch: None
    enumerator.open()
    reader.open()
    [(_, ask)] = reader.events
    enumerator.snapshot(7)
    enumerator.event(1, ask)
    found = pickle.dumps((1, 3, False))
    behind = Cuts()
    behind.note_cut(7)
    reader.event(0, behind.stamp(Deal([(1, found)])))
    assert reader.splits == []
    reader.abort(6)
    assert reader.splits == []
    reader.snapshot(7)
    assert [split.index for split in reader.splits] == [1]
    behind.note_cut(8)
    reader.event(0, behind.stamp(Deal([(3, found)])))
    assert len(reader.splits) == 1
    reader.abort(8)
    assert len(reader.splits) == 2


def test_cuts_that_are_over_need_no_waiting() -> None:
    cuts = Cuts()
    for n in (1, 2, 3):
        cuts.note_cut(n)
    cuts.abort(2)
    assert read_post(cuts.stamp(Ask(True))).cuts == [1, 3]
    cuts.complete(1)
    assert read_post(cuts.stamp(Ask(True))).cuts == [3]
    cuts.complete(3)
    assert read_post(cuts.stamp(Ask(True))).cuts == []


def test_what_has_ended_is_forgotten() -> None:
    """The state of a source that reads many splits one after the other does not grow."""
    for p in (1, 3):
        world = World(Found([(i, 1, False) for i in range(300)]), p, random.Random(p))
        sizes = []
        while not world.over:
            for _ in range(40):
                world.turn() if not world.over else None
            states = [decode_state(task.snapshot(world.checkpoint + 1) or b"") for task in world.tasks]
            world.checkpoint += 1
            world.tell("confirm", world.checkpoint)
            known = states[0].known
            assert known is not None
            sizes.append(len(known.splits) + sum(len(state.ended) for state in states))
        assert sizes[-1] <= 3 * p + 3, sizes


def test_a_dealer_keeps_a_split_for_its_own_subtask_until_it_asked_once() -> None:
    dealer = Dealer(3, everything=False)
    dealer.add([b"0", b"1", b"2", b"3"])
    dealer.over = True
    assert dealer.answer(2, Ask(True)) == [(2, Deal([(2, b"2")]))]
    assert dealer.answer(2, Ask(True)) == [(2, Deal([(3, b"3")], last=True))], "the others are kept for others"
    assert dealer.answer(2, Ask(True)) == []  # it was under way when that was reported
    assert dealer.answer(0, Ask(True)) == [(0, Deal([(0, b"0")], last=True))]
    assert dealer.answer(1, Ask(True)) == [(1, Deal([(1, b"1")], last=True))]
    assert dealer.answer(1, Ask(True)) == []


def test_a_subtask_that_had_finished_takes_nothing_more_and_still_answers() -> None:
    """Subtask 0 has finished, and the split that it dealt to subtask 1 was under way at the cut."""
    enumerator, reader = (task_of(Listed([(i, 3, False) for i in range(2)]), i, 2) for i in (0, 1))
    enumerator.out = lambda batch: None
    enumerator.open()
    while not enumerator.ended:
        enumerator.read(10, 0)
    reader.open()
    enumerator.event(1, reader.events.pop()[1])
    assert enumerator.events  # under way
    parts = [MetaPart(i, 2, i == 0, task.snapshot(1)) for i, task in enumerate((enumerator, reader))]
    again = [task_of(Listed([]), i, 2, parts) for i in (0, 1)]
    again[0].finished = True
    for task in again:
        task.open()
    assert again[0].ended and not again[0].splits
    again[0].event(1, again[1].events.pop()[1])
    again[1].event(0, again[0].events.pop()[1])
    assert [split.index for split in again[1].splits] == [1]


# Errors of the user's.


def test_errors_of_a_source_name_what_was_asked_of_it() -> None:
    class Bad(Listed):
        def splits(self, parallelism: int) -> Any:
            return [lambda: 1]

    with pytest.raises(UserCodeError, match="pickling a split raised"):
        task_of(Bad([]), 0, 1).open()

    class Odd(Numbers):
        position = property(lambda self: (i for i in ()))  # type: ignore[assignment]

    class Worse(Listed):
        def reader(self, split: Any, position: Any = None) -> tr.Reader:
            return Odd(split, 0)

    task = task_of(Worse([(0, 9, False)]), 0, 1)
    task.out = lambda batch: None
    task.open()
    task.read(1, 0)
    with pytest.raises(UserCodeError, match="pickling the position of a split raised"):
        task.snapshot(1)


def test_open_readers_and_the_enumerator_are_closed() -> None:
    closed: list[str] = []

    class Closing(Finding):
        def close(self) -> None:
            closed.append("enumerator")

    class Source(Found):
        def enumerator(self, parallelism: int, position: Any = None) -> Enumerator:
            return Closing(self.listed, 0)

    task = task_of(Source([(0, 9, False), (1, 9, False)]), 0, 1, all_at_once=True)
    task.out = lambda batch: None
    task.open()
    for _ in range(4):
        task.read(1, 0)
    readers = [split.reader for split in task.splits]
    task.close()
    assert closed == ["enumerator"] and len(readers) == 2
    assert all(isinstance(reader, Numbers) and reader.closed for reader in readers)


def test_splits_that_are_dealt_out_together_travel_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a million files are dealt to one reader at once. They are more than a message holds. The reader waits until it
    has the last part: event time must not run ahead of splits that are still to come."""
    monkeypatch.setattr(dealing, "MESSAGE_BYTES", 10)
    dealt = [(n, b"12345") for n in range(5)]
    parts = dealing.in_messages(dealing.Deal(dealt, True, [7]))
    assert parts == [
        dealing.Deal(dealt[:2], more=True),
        dealing.Deal(dealt[2:4], more=True),
        dealing.Deal(dealt[4:], True, [7]),
    ]
    assert dealing.in_messages(dealing.Ask(True, [1])) == [dealing.Ask(True, [1])]
    assert dealing.in_messages(dealing.Deal([(1, bytes(99))])) == [dealing.Deal([(1, bytes(99))])]
    assert dealing.in_messages(dealing.Deal(last=True)) == [dealing.Deal(last=True)]


def test_a_split_that_holds_its_records_is_refused_where_it_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Whole(tr.Source):
        def splits(self, parallelism: int) -> Any:
            return [bytes(2 << 20)]

        def reader(self, split: Any, position: Any = None) -> tr.Reader:
            raise AssertionError("it is never opened")

    monkeypatch.setattr(sources, "LARGEST_SPLIT", 1 << 20)
    env = tr.Environment(parallelism=1)
    env.from_source(Whole(), name="whole").sink_to(tr.sinks.Collect())
    with pytest.raises(tr.JobFailed, match="a split of the source has 2 MiB, pickled, and at most 1 MiB travel"):
        tr.testing.run(env)


def test_nobody_is_told_that_there_is_no_split_before_it_was_looked_for_splits_anew() -> None:
    """A subtask that gets this answer counts as idle, and event time goes on without it: behind a checkpoint from
    before the first look, splits that are found at once would be late."""
    dealer = Dealer(2, everything=True)
    dealer.restore(dealing.EnumeratorState([], 0, over=False), set(), set())
    assert dealer.answer(0, Ask(True)) == dealer.answer(1, Ask(True)) == []
    dealer.add([b"a", b"b"])
    assert dict(dealer.deal()) == {0: Deal([(0, b"a")]), 1: Deal([(1, b"b")])}


def test_who_has_no_split_is_told_so_once_it_was_looked_for_splits_anew() -> None:
    dealer = Dealer(2, everything=True)
    dealer.restore(dealing.EnumeratorState([(0, b"a")], 1, over=False), {0}, set())
    assert dealer.answer(0, Ask(True)) == dealer.answer(1, Ask(True)) == []
    dealer.add([])
    assert dict(dealer.deal()) == {0: Deal(), 1: Deal()}


class Refilled(tr.Source):
    """A source whose readers give one list again and again."""

    def splits(self, parallelism: int) -> list[int]:
        return [*range(16)]

    def reader(self, split: int, position: int | None = None) -> tr.Reader:
        return Refilling(split, position or 0)


class Refilling(tr.Reader):
    def __init__(self, split: int, at: int) -> None:
        self.split, self.at, self.given = split, at, list[int]()

    def read(self, limit: int, now: float) -> Any:
        self.given.clear()
        if self.at == 6:
            return None
        self.given.append(self.split * 6 + self.at)
        self.at += 1
        return self.given

    @property
    def position(self) -> int:
        return self.at


@pytest.mark.parametrize("seed", range(3))
def test_a_reader_may_fill_the_list_anew_that_it_gave(seed: int) -> None:
    env = tr.Environment(parallelism=1)
    numbers = env.from_source(Refilled()).key_by(lambda n: n).map(lambda n: n).sink_to(tr.sinks.Collect())
    assert tr.testing.simulate(env, seed=seed).await_termination()
    assert sorted(numbers.result()) == [*range(96)]
