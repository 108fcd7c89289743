"""What is told to be published goes out in parts that fit into messages, whatever sinks have prepared."""

from __future__ import annotations

from tailrace.coordinator.checkpoints import Checkpoints, CheckpointSettings
from tailrace.coordinator.publishing import PART_BYTES, Publications
from tailrace.protocol.deployment import Publish, Settled
from tailrace.protocol.snapshot import Ack, Transaction
from tailrace.state.format import Placed
from tailrace.state.manifest import Prepared


def placed(size: int, file: str = "1/chk-1/w0-1.state") -> Placed:
    return Placed(file, 8, size, 0)


def test_a_publication_is_parted_by_what_its_parts_hold() -> None:
    """What lies in files counts as well: the worker that publishes holds one part in memory. Only the last part is to be
    answered, and only behind it leftovers are removed."""
    third = PART_BYTES // 3
    prepared = [Prepared("a", bytes(third)), Prepared("b", placed(2 * third)), Prepared("a", b"x"), Prepared("b", b"y")]
    prepared += [Prepared("a", placed(5 * PART_BYTES)), Prepared("b", b"z")]
    told = Publications().tell(7, prepared, ["run"], "elsewhere")
    assert [(one.number, one.recover, one.more, one.folder) for one in told] == [
        (7, [], True, "elsewhere"),
        (7, [], True, "elsewhere"),
        (7, [], True, "elsewhere"),
        (7, ["run"], False, "elsewhere"),
    ]
    assert [one.prepared for one in told] == [
        [("a", [bytes(third), b"x"]), ("b", [placed(2 * third)])],
        [("b", [b"y"])],
        [("a", [placed(5 * PART_BYTES)])],
        [("b", [b"z"])],
    ]


def test_to_remove_leftovers_only_is_one_message() -> None:
    assert Publications().tell(0, [], ["run"]) == [Publish([], 0, ["run"])]


def test_what_is_visible_is_what_comes_before_all_that_is_under_way() -> None:
    one = Publications()
    assert one.visible_through(4) == 4
    for number in (0, 5, 6):
        one.tell(number, [Prepared("a", b"x")], [])
    assert one.visible_through(6) == -1
    assert one.answered(0) and not one.answered(0) and one.answered(6)
    assert one.visible_through(6) == 4


def test_the_worker_is_told_once_what_is_settled() -> None:
    one = Publications()
    assert one.settle() is None
    one.before_commit(3)
    assert one.settle() == Settled(3) and one.settle() is None
    one.restored_marked = True
    assert one.settle() is None, "only with the next commit"
    one.before_commit(3)
    assert one.settle() == Settled(3, True)


def test_a_file_with_prepared_output_stays_as_long_as_that_may_be_asked_for() -> None:
    """The first checkpoint's file holds what a sink prepared; it is not visible when the second manifest is made, which
    therefore names that file. With keep=1 both manifests go once they are marked, and so does the file."""
    books = Checkpoints(CheckpointSettings(keep=1), "job", "run", 1, 128)
    file = "1/chk-1/w0-1.state"

    def complete(*prepared: Transaction) -> list[str]:
        number = books.trigger(0, 0, False)
        books.ack(0, Ack(number, f"1/chk-{number}/w0-1.state", 10, prepared=list(prepared)))
        ready = books.ready()
        assert ready is not None
        manifest = books.manifest(ready, 1)
        assert (file in manifest.older) == (number == 2)
        books.committed(number, manifest, f"1/{number}.manifest", "url", 0)
        return books.surplus()

    assert complete(Transaction("sink", placed(70_000), 1)) == ["1/0.manifest"], "a pointer"
    assert file not in complete()
    for path in books.published(2):
        books.marked(path)
    assert file in complete()


def test_a_manifest_that_is_not_marked_is_not_given_up() -> None:
    """Whoever starts from it asks for its output, and a manifest that is to be deleted may be there for long: as long as a
    checkpoint under way builds on it, or where the storage does not delete it. If it counted as deleted, sinks would forget
    that its output was visible, and a start from it would take files that readers have taken away for lost."""
    books = Checkpoints(CheckpointSettings(keep=1), "job", "run", 1, 128)

    def complete(number: int) -> list[str]:
        books.trigger(0, 0, False)
        books.ack(0, Ack(number, f"1/chk-{number}/w0-1.state", 10, prepared=[Transaction("sink", b"x", number)]))
        ready = books.ready()
        assert ready is not None
        books.committed(number, books.manifest(ready, 1), f"1/{number}.manifest", "url", 0)
        return [name for name in books.surplus() if name != "1/0.manifest"]  # a pointer

    assert complete(1) == [] and complete(2) == []
    assert books.published(2) == ["1/1.manifest", "1/2.manifest"]
    books.marked("1/2.manifest")
    books.not_marked("1/1.manifest")
    assert complete(3) == [] and books.settled(2) == 0
    assert books.published(3) == ["1/1.manifest", "1/3.manifest"]
    books.marked("1/1.manifest")
    assert {"1/1.manifest", "1/2.manifest"} <= set(complete(4)) and books.settled(2) == 2
