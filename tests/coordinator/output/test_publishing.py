"""The publishing of output: what is sent to the publisher, what of it is visible, marked and settled."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.actions import Delete, MarkPublished
from tailrace.coordinator.decisions import Tell
from tailrace.coordinator.durability.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.output.parts import PART_BYTES, publish_messages
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import Publish, Published, Settled
from tailrace.protocol.snapshot import Ack, Transaction
from tailrace.state.format import Placed
from tailrace.state.manifest import Manifest, Prepared, decode_manifest


def placed(size: int, file: str = "1/chk-1/w0-1.state") -> Placed:
    return Placed(file, 8, size, 0)


def test_a_publication_is_parted_by_what_its_parts_hold() -> None:
    """What lies in files counts as well: a worker holds one part of each sink in memory. Leftovers are removed by a part of
    their own, which comes last."""
    third = PART_BYTES // 3
    prepared = [Prepared("a", bytes(third)), Prepared("b", placed(2 * third)), Prepared("a", b"x"), Prepared("b", b"y")]
    prepared += [Prepared("a", placed(5 * PART_BYTES)), Prepared("b", b"z")]
    prepared += [Prepared("b", placed(third))]
    found = publish_messages(7, prepared, ["run"], "elsewhere")
    assert [(slot, one.number, one.recover, one.folder, one.part) for slot, one in found] == [
        *((0, 7, [], "elsewhere", part) for part in range(4)),
        (0, 7, ["run"], "elsewhere", 4),
    ]
    assert [one.prepared for _, one in found] == [
        [("a", [bytes(third), b"x"])],
        [("a", [placed(5 * PART_BYTES)])],
        [("b", [placed(2 * third), b"y", b"z"])],
        [("b", [placed(third)])],
        [],
    ]


def test_leftovers_are_removed_with_the_last_part_where_one_worker_publishes_for_one_sink() -> None:
    assert publish_messages(0, [], ["run"]) == [(0, Publish([], 0, ["run"]))]
    assert publish_messages(0, [Prepared("a", b"x")], ["run"]) == [(0, Publish([("a", [b"x"])], 0, ["run"]))]
    elsewhere = publish_messages(0, [Prepared("a", b"x", 1)], ["run"], slots=2)
    assert elsewhere == [(1, Publish([("a", [b"x"])])), (0, Publish([], 0, ["run"]))]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(-1, 6), st.integers(0, PART_BYTES)), max_size=20),
    st.integers(1, 4),
)
def test_each_subtask_has_one_publisher_and_its_output_stays_in_order(
    drawn: list[tuple[str, int, int]], slots: int
) -> None:
    """The publisher is one where the run before had more subtasks, or none that published by themselves, too."""
    prepared = [Prepared(uid, placed(size, str(at)), subtask) for at, (uid, subtask, size) in enumerate(drawn)]
    of: dict[tuple[int, str], list[Any]] = {}
    names = set()
    for slot, message in publish_messages(3, prepared, slots=slots):
        [(uid, several)] = message.prepared
        of.setdefault((slot, uid), []).extend(several)
        names.add((slot, message.part))
        assert 0 <= slot < slots and (len(several) == 1 or sum(one.length for one in several) <= PART_BYTES)  # type: ignore[union-attr]
    for uid in "ab":
        for subtask in range(-1, 7):
            own = [one.data for one in prepared if (one.uid, one.subtask) == (uid, subtask)]
            slot = 0 if subtask < 0 else subtask % slots
            assert [one for one in of.get((slot, uid), []) if one in own] == own
    assert sum(map(len, of.values())) == len(prepared)
    assert len(names) == len(publish_messages(3, prepared, slots=slots))


class Lane:
    """A book of a run with two slots, and the workers that publish."""

    def __init__(self) -> None:
        self.book = JobOutput("job", "run", "", slots=2)
        self.sent: list[tuple[int | None, Any]] = []

    def carry_out(self, decided: Any) -> list[tuple[int | None, Any]]:
        found = [(one.slot, one.message) for one in decided if isinstance(one, Tell)]
        self.sent += found
        return found


def test_leftovers_are_removed_when_all_workers_have_published_what_was_restored() -> None:
    lane = Lane()
    restored = Manifest("job", "run", 1, 3, 0, 128, 2, [], prepared=[Prepared("a", b"x", 0), Prepared("a", b"y", 1)])
    lane.book.restore(restored, "1/3.manifest")
    found = lane.carry_out(lane.book.begin(True, 0))
    assert [(slot, one.prepared) for slot, one in found] == [(0, [("a", [b"x"])]), (1, [("a", [b"y"])])]
    lane.book.restore(None, "")
    lane.book.anew()
    lane.book.restore(restored, "1/3.manifest")
    lane.book._abandoned = {"gone"}
    lane.carry_out(lane.book.begin(True, 0))
    assert lane.carry_out(lane.book.publication_done(Published(0), 1, 0)) == []
    [(slot, last)] = lane.carry_out(lane.book.publication_done(Published(0), 0, 0))
    assert (slot, last.prepared, "gone" in last.recover) == (0, [], True) and lane.book.pending
    assert lane.book.publication_done(Published(0, part=last.part), 0, 0) is not None
    assert not lane.book.pending


def manifest(number: int, *prepared: bytes) -> Manifest:
    """The manifest of a checkpoint of the run; it has this output."""
    return Manifest("job", "run", 1, number, 0, 128, 1, [], prepared=[Prepared("a", one) for one in prepared])


def output(newest: int) -> JobOutput:
    """The book of a run with a complete checkpoint, without output."""
    book = JobOutput("job", "run", "")
    book.restore(manifest(newest), f"1/{newest}.manifest")
    return book


def test_what_is_visible_is_what_comes_before_all_that_is_under_way() -> None:
    book = output(newest=4)
    assert book.visible_through == 4
    book.begin(True, 0)
    for number in (5, 6):
        book.commit_done(number, manifest(number, b"x"), f"1/{number}.manifest", [Prepared("a", b"x")], 0)
    assert book.visible_through == -1
    assert book.publication_done(Published(6), 0, 0) is None, "it was not sent"
    for number, through in ((0, 4), (5, 5), (6, 6)):
        assert book.publication_done(Published(number), 0, 0) is not None
        assert book.publication_done(Published(number), 0, 0) is None
        assert book.visible_through == through


def settled(decided: Any) -> list[Settled]:
    return [one.message for one in decided if isinstance(one, Tell) and isinstance(one.message, Settled)]


def test_the_worker_learns_once_what_is_settled() -> None:
    book = JobOutput("job", "run", "")
    book.restore(manifest(3, b"x"), "1/3.manifest")
    book.begin(True, 0)
    assert book.publication_done(Published(0), 0, 0) == [MarkPublished("1/3.manifest")]
    assert settled(book.commit_done(4, manifest(4), "1/4.manifest", [], 0)) == []
    book.before_commit(5)
    assert settled(book.commit_done(5, manifest(5), "1/5.manifest", [], 0)) == [], "the restored one is not marked"
    book.mark_done("1/3.manifest")
    assert settled(book.commit_done(6, manifest(6), "1/6.manifest", [], 0)) == [], "only with the next commit"
    book.before_commit(7)
    assert settled(book.commit_done(7, manifest(7), "1/7.manifest", [], 0)) == [Settled(6, True)]
    assert settled(book.commit_done(8, manifest(8), "1/8.manifest", [], 0)) == []


class Store:
    """The books of a job with one worker, and a storage that carries out every request."""

    def __init__(self) -> None:
        checkpoints = Checkpoints(CheckpointSettings(keep=1), "job", "run", 1, 128)
        self.books = Durability("job", "run", 1, checkpoints)
        self.deleted: list[str] = []
        self.marks: list[str] = []
        """What was to be marked."""

    def complete(self, *prepared: Transaction) -> Manifest:
        """A checkpoint, from its trigger to its commit."""
        (found,) = self.books.trigger(0, CutKind.CHECKPOINT)
        number = found.message.checkpoint
        ack = Ack(number, f"1/chk-{number}/w0-1.state", 10, prepared=list(prepared))
        (commit,) = self.books.ack(0, ack, 0, running=True)
        self.told(self.books.commit_done(number, f"1/{number}.manifest", "url", 0, running=True)[0])
        return decode_manifest(commit.data, "manifest")

    def published(self, number: int) -> None:
        """The worker has published everything up to this checkpoint."""
        for one in range(1, number + 1):
            self.told(self.books.output.publication_done(Published(one), 0, 0) or [])

    def told(self, decided: list[Any]) -> None:
        self.marks += [one.path for one in decided if isinstance(one, MarkPublished)]
        self.deleted += [name for one in decided if isinstance(one, Delete) for name in one.names]


def test_a_file_with_prepared_output_stays_as_long_as_that_may_be_requested() -> None:
    """The first checkpoint's file holds what a sink prepared; it is not visible when the second manifest is made, which
    therefore names that file. With keep=1 both manifests go once they are marked, and so does the file."""
    store, file = Store(), "1/chk-1/w0-1.state"
    assert file not in store.complete(Transaction("sink", placed(70_000), 1)).older
    assert store.deleted == ["1/0.manifest"], "a pointer"
    assert file in store.complete().older
    store.published(2)
    for path in store.marks:
        store.told(store.books.mark_done(path, 0, running=True))
    assert file not in store.deleted
    assert file not in store.complete().older
    assert file in store.deleted


def test_a_manifest_that_is_not_marked_is_not_given_up() -> None:
    """A job that starts from it requests its output, and a manifest that is to be deleted may be there for long: as
    long as a checkpoint under way builds on it, or where the storage does not delete it. If it counted as deleted,
    sinks would forget that its output was visible, and a start from it would take files that readers have taken away
    for lost."""
    store = Store()
    books, pointer = store.books, ["1/0.manifest"]
    for number in (1, 2):
        store.complete(Transaction("sink", b"x", number))
    store.published(2)
    assert store.marks == ["1/1.manifest", "1/2.manifest"]
    store.told(books.mark_done("1/2.manifest", 0, running=True))
    books.output.not_marked("1/1.manifest")
    store.complete(Transaction("sink", b"x", 3))
    assert store.deleted == pointer and books.output.resolution.settled.number == 0
    store.published(3)
    assert store.marks[2:] == ["1/1.manifest", "1/3.manifest"]
    store.told(books.mark_done("1/1.manifest", 0, running=True))
    store.complete(Transaction("sink", b"x", 4))
    assert {"1/1.manifest", "1/2.manifest"} <= set(store.deleted) and books.output.resolution.settled.number == 2
