"""The worker that publishes: in order, output in files read first, and remembered until no request for it can come."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import structs

import tailrace as tr
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.protocol.deployment import NotPublished, Publish, Published, Settled
from tailrace.state.format import Placed
from tailrace.task.channels.services import Services
from tailrace.task.worker.publishing import Awaited, Publisher


class Shelf(tr.Sink):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def writer(self, ctx: Any) -> Any: ...

    def publish(self, prepared: Any) -> None:
        if b"broken" in prepared:
            raise OSError("no route")
        self.told.append(("publish", list(prepared)))

    def settled(self, prepared: Any) -> None:
        self.told.append(("settled", list(prepared)))

    def recover(self, *args: Any) -> None:
        self.told.append(("recover", *args))


def publisher(allowed: bool | tuple[str, ...] = False) -> tuple[Publisher, list[Any]]:
    env = tr.Environment(parallelism=1)
    shelf = Shelf()
    env.from_collection([1]).sink_to(shelf, uid="shelf", name="shelf")
    services = Services(random.Random, incarnation=5, allow_dropped_state=allowed)
    return Publisher(0, env._plan(env._pending()), services), shelf.told


PLACES = [Placed("1/chk-1/w0-1.state", 8 + n, 1, n) for n in range(3)]


def test_what_lies_in_files_is_read_before_it_is_published_and_in_order() -> None:
    one, calls = publisher()
    first = Publish([("shelf", [b"a", PLACES[0], b"b", PLACES[1]])], 1, more=True)
    assert one.publish(first) == [Awaited("", tuple(PLACES[:2]))]
    assert one.publish(Publish([("shelf", [b"c"])], 1)) == [] and calls == [], "it waits for its turn"
    assert one.publish(Publish([("shelf", [PLACES[2]])], 2, ["run"], folder="elsewhere")) == []
    assert one.read([b"0", b"1"]) == [Published(1), Awaited("elsewhere", (PLACES[2],))]
    assert calls == [("publish", [b"a", b"0", b"b", b"1"]), ("publish", [b"c"])]
    assert one.read([b"2"]) == [Published(2)]
    assert calls[2:] == [("publish", [b"2"]), ("recover", ["run"], 5, "shelf")]


def test_what_is_settled_is_told_to_its_sink_once() -> None:
    one, calls = publisher()
    for number in (0, 1, 2, 3):
        one.publish(Publish([("shelf", [b"%d" % number])], number))
    calls.clear()
    one.settle(Settled(2))
    one.settle(Settled(2))
    assert calls == [("settled", [b"1", b"2"])]
    one.settle(Settled(2, True))
    one.settle(Settled(3, True))
    assert calls[1:] == [("settled", [b"0"]), ("settled", [b"3"])]


def test_what_no_sink_can_publish_is_reported_unless_it_was_given_up() -> None:
    one, calls = publisher()
    with pytest.raises(IncompatibleState, match="uid 'gone'"):
        one.publish(Publish([("gone", [b"x"])], 1))
    for allowed in (True, ("gone",)):
        one, calls = publisher(allowed)
        assert one.publish(Publish([("gone", [b"x"])], 1, more=True)) == []
        assert one.publish(Publish([("shelf", [b"a"])], 1)) == [Published(1, skipped=True)]
        assert calls == [("publish", [b"a"])]
        assert one.publish(Publish([("shelf", [b"b"])], 2)) == [Published(2)]


def test_what_a_sink_that_publishes_nothing_was_given_stays_under_cover() -> None:
    """It has the uid of one that did, and the user has given up what that one had prepared."""
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(tr.sinks.Print(), uid="shelf", name="shelf")
    services = Services(random.Random, incarnation=5, allow_dropped_state=("shelf",))
    one = Publisher(0, env._plan(env._pending()), services)
    assert one.publish(Publish([("shelf", [b"a"])], 0)) == [Published(0, skipped=True)]


def test_a_sink_that_raises_is_named() -> None:
    one, _ = publisher()
    with pytest.raises(UserCodeError, match="publishing raised OSError: no route"):
        one.publish(Publish([("shelf", [b"broken"])], 1))


class Far(Shelf):
    """Its place is out of reach for a while."""

    away = True

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        return (OSError,)

    def publish(self, prepared: Any) -> None:
        if self.away and b"b" in prepared:
            raise OSError(28, "No space left on device")
        super().publish(prepared)

    def settled(self, prepared: Any) -> None:
        if self.away:
            raise OSError("no route")
        super().settled(prepared)


def far(sink: Shelf) -> Publisher:
    env = tr.Environment(parallelism=1)
    env.from_collection([1]).sink_to(sink, uid="shelf", name="shelf")
    return Publisher(0, env._plan(env._pending()), Services(random.Random, incarnation=5))


def test_what_follows_of_a_publication_that_failed_counts_for_nothing_until_it_is_told_once_more() -> None:
    """Its last part was sent before the coordinator knew of the failure: an answer to it would report that all is
    visible."""
    sink = Far()
    one = far(sink)
    parts = [Publish([("shelf", [data])], 1, more=data != b"c") for data in (b"a", b"b", b"c")]
    assert one.publish(parts[0]) == []
    [failed] = one.publish(parts[1])
    what = "the sink 'shelf': publishing raised OSError: [Errno 28] No space left on device"
    assert failed == NotPublished(1, 0, what)
    assert one.publish(parts[2]) == []
    assert one.publish(Publish([("shelf", [b"x"])], 2)) == [Published(2)], "others go on"
    again = [structs.replace(part, tries=1) for part in parts]
    assert [answer for part in again[:2] for answer in one.publish(part)] == [NotPublished(1, 1, what)]
    sink.away = False
    again = [structs.replace(part, tries=2) for part in parts]
    assert [answer for part in again for answer in one.publish(part)] == [Published(1)]
    one.settle(Settled(2))
    assert sink.told[-1] == ("settled", [b"a", b"b", b"c", b"x"]) or sink.told[-1] == (
        "settled",
        [b"x", b"a", b"b", b"c"],
    )


def test_what_cannot_be_settled_is_settled_with_what_comes_next() -> None:
    sink = Far()
    one = far(sink)
    one.publish(Publish([("shelf", [b"a"])], 1))
    one.settle(Settled(1))
    sink.away = False
    one.publish(Publish([("shelf", [b"c"])], 2))
    one.settle(Settled(2))
    assert sink.told[-1] == ("settled", [b"a", b"c"])


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError("lost"), PermissionError("forbidden"), NotADirectoryError("a file"), ValueError("a record")],
    ids=lambda error: type(error).__name__,
)
def test_a_path_that_is_wrong_and_a_record_that_is_are_no_outage(error: Exception) -> None:
    class Wrong(Far):
        def publish(self, prepared: Any) -> None:
            raise error

    with pytest.raises(UserCodeError, match="publishing raised"):
        far(Wrong()).publish(Publish([("shelf", [b"a"])], 1))
