"""What may be published and what never again, beside plain models: of one state, and of the whole life of a run."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.coordinator.actions import MarkPublished, MarkSwept
from tailrace.coordinator.decisions import Tell
from tailrace.coordinator.output.origin import NOTHING, StartFrom
from tailrace.coordinator.output.publish_decision import HeldOutput, OutputState, resolve
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.protocol.deployment import NotPublished, Publish, Published, Settled
from tailrace.state.manifest import Manifest, Prepared, has_more

# One state.


@st.composite
def held(draw: Any, newest: int, own: bool) -> HeldOutput:
    checkpoint = draw(st.integers(1, newest)) if own else 0
    first = draw(st.integers(0, checkpoint)) if own else 0
    name = f"{1 if own else 0}/{draw(st.integers(0, 99))}.manifest" if own or draw(st.booleans()) else ""
    return HeldOutput(name, checkpoint, first, draw(st.booleans()), draw(st.booleans()))


@st.composite
def states(draw: Any) -> OutputState:
    newest = draw(st.integers(1, 6))
    own = draw(st.lists(held(newest, own=True), max_size=4))
    foreign = draw(st.lists(held(newest, own=False), max_size=2))
    restores_own = draw(st.booleans())
    return OutputState(
        newest,
        draw(st.sets(st.integers(0, newest))),
        [*foreign, *own],
        draw(st.sampled_from([None, *(own if restores_own else foreign)])),
        restores_own,
        draw(st.booleans()),
        draw(st.booleans()),
    )


def numbers(one: HeldOutput) -> set[int]:
    return set(range(one.first, one.checkpoint + 1))


@given(states())
@settings(max_examples=150)
def test_what_is_settled_marked_and_removed_is_what_a_plain_model_says(state: OutputState) -> None:
    """The model looks at each number by itself: it is settled if it is visible, and so is each below, and no manifest that
    has it can have it published again."""
    found = resolve(state)
    awaited = set(state.awaited)
    visible = [n for n in range(state.newest + 1) if not any(m <= n for m in awaited)]
    assert found.visible_through == max(visible, default=-1)

    unmarked = [one for one in state.manifests if not one.marked]
    own = [one for one in unmarked if one.checkpoint]
    for one in state.manifests:
        may = not one.marked and not one.requested and one.path != ""
        may = may and (set(range(one.checkpoint + 1)) <= set(visible) if one.checkpoint else state.origin_visible)
        assert (one.path in found.to_mark) >= may, "a name may be drawn twice"
    assert len(found.to_mark) <= len([one for one in unmarked if not one.requested])

    again = set().union(*map(numbers, own))
    settled = 0
    while settled + 1 in visible and settled + 1 not in again:
        settled += 1
    assert max(0, found.settled.number) == settled

    restored = state.restored
    if restored is None:
        assert not found.settled.restored
    elif state.restores_own:
        assert found.settled.restored is not any(one.checkpoint <= restored.checkpoint for one in own)
    else:
        assert found.settled.restored is (state.origin_ours and all(one.checkpoint for one in unmarked))
    if state.restores_own:
        has = numbers(restored) if restored is not None else set()
        newer = set(range(restored.checkpoint + 1, state.newest + 1)) if restored is not None else set()
        assert found.removable is all(numbers(one) <= has | newer for one in own)
    else:
        assert found.removable is state.origin_ours

    needed = not all(one.checkpoint for one in unmarked) or 0 in again or 0 not in visible
    assert found.origin_over is (state.origin_ours and not needed)


# The life of a run.

HERE = "file:///jobs/job"
SLOTS = 2


def _prepared(data: bytes, subtask: int) -> Prepared:
    """A piece of output, in whose bytes is the subtask that has prepared it; -1 where one worker publishes all."""
    return Prepared("sink", data + b" of %d" % subtask, subtask)


def _slot_of(data: bytes) -> int:
    """The slot that publishes a piece. One of the runs before is published as one of a run without publishers."""
    return max(0, int(data.rpartition(b" of ")[2])) % SLOTS if b" of " in data else 0


def _pieces(manifest: Manifest) -> set[bytes]:
    return {bytes(one.data) for one in manifest.prepared}  # type: ignore[arg-type]


@dataclass
class Stored:
    """A manifest in the storage, with the pieces of output in it."""

    manifest: Manifest
    marked: bool = False

    @property
    def pieces(self) -> set[bytes]:
        return _pieces(self.manifest)

    def read(self) -> Manifest:
        """The manifest as a claim reads it: the output of a marked one is not published again."""
        return msgspec.structs.replace(self.manifest, prepared=[]) if self.marked else self.manifest


@dataclass
class World:
    """A run, its publisher and its storage. The model knows each piece of output by itself."""

    book: JobOutput
    storage: dict[str, Stored]
    publications: dict[int, set[bytes]] = field(default_factory=dict)
    """What was sent in this attempt, by number."""
    awaited: dict[tuple[int, int, int], Publish] = field(default_factory=dict)
    """Part that a worker has to answer, by its number, slot and place."""
    lanes: dict[tuple[int, str], int] = field(default_factory=dict)
    """The newest number that a worker has received for a sink, in this attempt."""
    now: int = 0
    marking: list[str] = field(default_factory=list)
    visible: set[bytes] = field(default_factory=set)
    settled: set[bytes] = field(default_factory=set)
    traces: set[bytes] = field(default_factory=set)
    """Output of the run of the origin whose traces are there. A worker that is sent `Settled` may be lost before it removes
    any."""
    checkpoint: int = 0
    requested: Stored | None = None
    marked_before: set[str] = field(default_factory=set)
    """The manifests that were marked when the newest commit was requested."""

    @classmethod
    def of(cls, origin: StartFrom, others: Iterable[tuple[str, Manifest]]) -> World:
        found = {path: Stored(manifest) for path, manifest in others}
        if origin.manifest is not None:
            found[origin.path or "elsewhere"] = Stored(origin.manifest)
        world = cls(JobOutput("job", "run", HERE, origin, ["abandoned"], SLOTS), found)
        world.attempt(restarted=False)
        return world

    def attempt(self, restarted: bool) -> None:
        """All have deployed. The attempt runs when its restored output is published."""
        self.publications, self.awaited, self.marking, self.lanes = {}, {}, [], {}
        self.carry_out(self.book.begin(restarted, self.now))
        while self.awaited:
            self.report(min(self.awaited), done=True)

    def carry_out(self, decided: Any) -> None:
        for one in decided or []:
            match one:
                case MarkPublished():
                    assert self.storage[one.path].pieces <= self.visible, "some of it is not visible"
                    self.marking.append(one.path)
                case MarkSwept():
                    assert not (self.book._origin_is_here and self.traces), "the next start does not look for them (U6)"
                case Tell(Publish() as message, slot):
                    assert slot is not None
                    self.send(message, slot)
                case Tell(Settled() as message):
                    numbers = [n for n in self.publications if 0 < n <= message.number or (n == 0 and message.restored)]
                    self.settle(set().union(*(self.publications[n] for n in numbers)))

    def send(self, message: Publish, slot: int) -> None:
        pieces = {bytes(one) for _, several in message.prepared for one in several}  # type: ignore[arg-type]
        assert pieces <= set().union(*(one.pieces for one in self.storage.values())), "no manifest has it (J2)"
        assert not pieces & self.settled, "the publisher has forgotten it"
        earlier = {number: sent for number, sent in self.publications.items() if number != message.number}
        assert not pieces & set().union(*earlier.values()), "it was sent under another number (U1)"
        key = message.number, slot, message.part
        for uid, several in message.prepared:
            assert all(_slot_of(bytes(one)) == slot for one in several), "its own worker publishes it"  # type: ignore[arg-type]
            assert self.lanes.get((slot, uid), 0) <= message.number, "in order (U3)"
            self.lanes[slot, uid] = message.number
            busy = [one for one in self.awaited if one[1] == slot and one != key]
            assert uid not in [one for at in busy for one, _ in self.awaited[at].prepared], "one at a time (U3)"
        self.publications[message.number] = self.publications.get(message.number, set()) | pieces
        self.awaited[key] = message
        if message.recover:
            restored_pieces = set() if self.book.restored.manifest is None else _pieces(self.book.restored.manifest)
            assert restored_pieces - pieces <= self.visible, "it is published first"
        restored = self.book.restored.manifest
        for run in message.recover:
            kept = [one.read() for one in self.storage.values() if one.manifest.run_id == run]
            assert restored is not None or not any(one.prepared for one in kept)
            assert restored is None or not has_more(kept, restored), "a start from another one publishes it"

    def settle(self, pieces: set[bytes]) -> None:
        self.settled |= pieces
        for path, one in self.storage.items():
            assert path in self.marked_before or not pieces & one.pieces, f"{path} may ask for it again (U2)"

    # What happens.

    def request(self, fresh: int) -> None:
        """All have acked a checkpoint, with so many new pieces."""
        if self.requested is None:
            self.checkpoint += 1
            new = [_prepared(f"{self.checkpoint} {i}".encode(), (self.checkpoint + i) % 4 - 1) for i in range(fresh)]
            prepared = [*self.book.carried_output(), *new]
            self.requested = Stored(
                Manifest("job", "run", 1, self.checkpoint, 0, 128, 1, [], prepared=prepared, root=HERE)
            )
            self.marked_before = {path for path, one in self.storage.items() if one.marked}
            self.book.before_commit(self.checkpoint)

    def commit(self, keep: int) -> None:
        """The manifest exists, and older ones that are marked go."""
        if self.requested is not None:
            stored, self.requested = self.requested, None
            number = stored.manifest.checkpoint
            path = f"1/{number}.manifest"
            self.storage[path] = stored
            fresh = [one for one in stored.manifest.prepared if bytes(one.data).startswith(b"%d " % number)]  # type: ignore[arg-type]
            self.carry_out(self.book.commit_done(number, stored.manifest, path, fresh, self.now))
            ours = [path for path, one in self.storage.items() if one.manifest.run_id == "run"]
            for old in ours[:-keep]:
                if old in self.book.unmarked:
                    break
                assert self.storage[old].marked or not self.storage[old].pieces, "it may still ask for output"
                del self.storage[old]
            self.book.keep_only([path for path in ours if path in self.storage])

    def report(self, key: tuple[int, int, int], done: bool) -> None:
        """A worker answers for a part."""
        (number, slot, part), message = key, self.awaited.pop(key)
        if done:
            pieces = {bytes(one) for _, several in message.prepared for one in several}  # type: ignore[arg-type]
            self.visible |= pieces
            self.traces |= pieces if self.book.restored.is_origin and not number else set()
            if (
                "before" in message.recover
            ):  # what the sink itself has published in this attempt stays until it is settled
                self.traces &= self.publications.get(0, set()) - self.settled
            self.carry_out(self.book.publication_done(Published(number, part=part), slot, self.now))
        else:
            self.book.lanes.note_failure(NotPublished(number, message.tries, "away", part, "sink"), slot, self.now)

    def mark(self, which: int, done: bool) -> None:
        """The storage answers for a mark."""
        path = self.marking.pop(which)
        if done and path in self.storage:
            self.storage[path].marked = True
        (self.book.mark_done if done else self.book.not_marked)(path)

    def retry(self) -> None:
        """Sinks that were away are tried again."""
        self.now += 10_000_000
        self.carry_out(self.book.lanes.send_again(self.now))
        assert self.book.lanes.due_at is None

    def restart(self, existed: bool) -> None:
        """A new attempt. The manifest on its way came to exist, or not; and so did marks."""
        if self.requested is not None and existed:
            self.storage[f"1/{self.requested.manifest.checkpoint}.manifest"] = self.requested
        self.requested = None
        if existed:
            for path in self.marking:
                if path in self.storage:
                    self.storage[path].marked = True
        self.book.attempt_over()
        self.book.anew()
        origin = self.book.origin
        if origin.manifest is not None and origin.path in self.storage and self.storage[origin.path].marked:
            self.book.origin_published()
        ours = [(path, one) for path, one in self.storage.items() if one.manifest.run_id == "run"]
        path, newest = ours[-1] if ours else ("", None)
        self.book.restore(None if newest is None else newest.read(), path)
        self.attempt(restarted=True)


def _of_before(data: bytes) -> Prepared:
    return Prepared("sink", data) if data == b"a" else _prepared(data, 5)


def of_before(number: int, *pieces: bytes, root: str = HERE) -> Manifest:
    return Manifest("job", "before", 7, number, 0, 128, 1, [], prepared=[_of_before(one) for one in pieces], root=root)


ORIGINS = {
    "none": (NOTHING, []),
    "here": (StartFrom(of_before(5, b"a", b"b"), HERE, "0/5.manifest"), []),
    "with one before": (
        StartFrom(of_before(5, b"a", b"b"), HERE, "0/5.manifest", ["0/4.manifest"]),
        [("0/4.manifest", of_before(4, b"a"))],
    ),
    "before a later one": (
        StartFrom(of_before(5, b"a"), HERE, "0/5.manifest", [], spare=True),
        [("0/6.manifest", of_before(6, b"a", b"c"))],
    ),
    "elsewhere": (StartFrom(of_before(5, b"a"), "file:///jobs/other"), []),
    "in a copy": (StartFrom(of_before(5, b"a", root="file:///jobs/original"), HERE, "0/5.manifest"), []),
}


def happens(world: World, rng: random.Random) -> None:
    """One event of a run, drawn."""
    done = rng.random() < 0.7
    match rng.choice(
        ["checkpoint", "checkpoint", "request", "commit", "report", "report", "mark", "mark", "retry", "restart"]
    ):
        case "checkpoint":
            world.request(rng.randrange(3))
            world.commit(rng.randint(1, 3))
        case "request":
            world.request(rng.randrange(3))
        case "commit":
            world.commit(rng.randint(1, 3))
        case "report" if world.awaited:
            world.report(rng.choice(sorted(world.awaited)), done)
        case "mark" if world.marking:
            world.mark(rng.randrange(len(world.marking)), done)
        case "retry":
            world.retry()
        case "restart":
            world.restart(existed=done)


@pytest.mark.parametrize("kind", ORIGINS)
def test_whatever_happens_each_piece_is_published_and_forgotten_when_it_may_be(kind: str) -> None:
    for seed in range(200):
        origin, others = ORIGINS[kind]
        rng, world = random.Random(seed), World.of(origin, others)
        for _ in range(rng.randrange(40)):
            happens(world, rng)
        ends_well(world)


def ends_well(world: World) -> None:
    """Where nothing fails any more, all is published, marked and forgotten."""
    world.retry()
    for _ in range(3):
        world.request(0)
        world.commit(1)
        while world.awaited:
            world.report(min(world.awaited), done=True)
        while world.marking:
            world.mark(0, done=True)
    assert not world.book.pending and world.book.carried_output() == []
    ours = {path: one for path, one in world.storage.items() if one.manifest.run_id == "run"}
    assert all(one.pieces <= world.visible for one in ours.values())
    assert all(one.marked for one in ours.values() if one.pieces)
    assert world.book.resolution.settled.number == world.checkpoint
    origin = world.book.origin
    assert all(world.storage[path].marked for path in (origin.path, *origin.before) if path)
    sent = set().union(*(pieces for number, pieces in world.publications.items() if number))
    assert sent <= world.settled, "the publisher keeps it for ever"
    if world.book._origin_is_here and not origin.spare:
        assert not world.traces and world.book._swept, "they are left beside the output for ever (U6)"
