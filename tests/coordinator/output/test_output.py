"""The book of output: what is sent to the publisher, what of it is visible, marked and settled."""

from __future__ import annotations

from typing import Any

from tailrace.coordinator.actions import Delete, MarkPublished
from tailrace.coordinator.decisions import Tell
from tailrace.coordinator.durability.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.durability.durability import Durability
from tailrace.coordinator.output.output import JobOutput
from tailrace.coordinator.output.parts import PART_BYTES, publish_messages
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import Publish, Published, Settled
from tailrace.protocol.snapshot import Ack, Transaction
from tailrace.state.format import Placed
from tailrace.state.manifest import Manifest, Prepared, decode_manifest


def placed(size: int, file: str = "1/chk-1/w0-1.state") -> Placed:
    return Placed(file, 8, size, 0)


def test_a_publication_is_parted_by_what_its_parts_hold() -> None:
    """What lies in files counts as well: the worker that publishes holds one part in memory. Only the last part is to be
    answered, and only behind it leftovers are removed."""
    third = PART_BYTES // 3
    prepared = [Prepared("a", bytes(third)), Prepared("b", placed(2 * third)), Prepared("a", b"x"), Prepared("b", b"y")]
    prepared += [Prepared("a", placed(5 * PART_BYTES)), Prepared("b", b"z")]
    found = publish_messages(7, prepared, ["run"], "elsewhere")
    assert [(one.number, one.recover, one.more, one.folder) for one in found] == [
        (7, [], True, "elsewhere"),
        (7, [], True, "elsewhere"),
        (7, [], True, "elsewhere"),
        (7, ["run"], False, "elsewhere"),
    ]
    assert [one.prepared for one in found] == [
        [("a", [bytes(third), b"x"]), ("b", [placed(2 * third)])],
        [("b", [b"y"])],
        [("a", [placed(5 * PART_BYTES)])],
        [("b", [b"z"])],
    ]


def test_to_remove_leftovers_only_is_one_message() -> None:
    assert publish_messages(0, [], ["run"]) == [Publish([], 0, ["run"])]


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
    book.begin(restarted=True)
    for number in (5, 6):
        book.commit_done(number, manifest(number, b"x"), f"1/{number}.manifest", [Prepared("a", b"x")])
    assert book.visible_through == -1
    for number in (0, 6):
        assert book.publication_done(Published(number)) is not None and book.publication_done(Published(number)) is None
    assert book.visible_through == 4


def settled(decided: Any) -> list[Settled]:
    return [one.message for one in decided if isinstance(one, Tell) and isinstance(one.message, Settled)]


def test_the_worker_learns_once_what_is_settled() -> None:
    book = JobOutput("job", "run", "")
    book.restore(manifest(3, b"x"), "1/3.manifest")
    book.begin(restarted=True)
    assert book.publication_done(Published(0)) == [MarkPublished("1/3.manifest")]
    assert settled(book.commit_done(4, manifest(4), "1/4.manifest", [])) == []
    book.before_commit(5)
    assert settled(book.commit_done(5, manifest(5), "1/5.manifest", [])) == [], "the restored one is not marked"
    book.mark_done("1/3.manifest")
    assert settled(book.commit_done(6, manifest(6), "1/6.manifest", [])) == [], "only with the next commit"
    book.before_commit(7)
    assert settled(book.commit_done(7, manifest(7), "1/7.manifest", [])) == [Settled(6, True)]
    assert settled(book.commit_done(8, manifest(8), "1/8.manifest", [])) == []


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
            self.told(self.books.output.publication_done(Published(one)) or [])

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
