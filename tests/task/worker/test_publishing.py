"""The part of a worker in publishing: sinks are called beside its steps, output in files is read first, and what is
published is remembered until no request for it can come."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from msgspec import structs

import tailrace as tr
from tailrace.errors import IncompatibleState, UserCodeError
from tailrace.protocol.deployment import NotPublished, Publish, Published, Settled
from tailrace.state.format import Placed
from tailrace.task.channels.services import Services
from tailrace.task.contract.actions import CallSink, ReadPlaced, ToCoordinator
from tailrace.task.contract.sinkcalls import call_sink
from tailrace.task.worker.publishing import PREPARED, Publisher, with_one_publisher


class Shelf(tr.Sink):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def writer(self, ctx: Any) -> Any: ...

    def publish(self, prepared: Any) -> None:
        if b"broken" in prepared:
            raise PermissionError("no entry")
        self.told.append(("publish", list(prepared)))

    def settled(self, prepared: Any) -> None:
        self.told.append(("settled", list(prepared)))

    def recover(self, *args: Any) -> None:
        self.told.append(("recover", *args))


class Driven:
    """A publisher whose calls are made when the test has them made."""

    def __init__(self, sink: tr.Sink, allowed: bool | tuple[str, ...] = False) -> None:
        env = tr.Environment(parallelism=1)
        env.from_collection([1]).sink_to(sink, uid="shelf", name="shelf")
        services = Services(random.Random, incarnation=5, allow_dropped_state=allowed)
        self.publisher = Publisher(0, env._plan(env._pending()), services, itertools.count(1))
        self.waiting: list[CallSink] = []
        self.reads: list[ReadPlaced] = []

    def take(self, actions: list[Any]) -> list[Any]:
        """Messages to the coordinator; calls and reads wait."""
        self.waiting += [one for one in actions if isinstance(one, CallSink)]
        self.reads += [one for one in actions if isinstance(one, ReadPlaced)]
        return [one.message for one in actions if isinstance(one, ToCoordinator)]

    def call(self) -> list[Any]:
        """Makes the calls that wait, and those that follow."""
        found = []
        while self.waiting:
            found += self.take(self.publisher.take_answer(call_sink(self.waiting.pop(0))))
        return found

    def publish(self, *messages: Publish) -> list[Any]:
        """Has these published at once."""
        return [answer for one in messages for answer in [*self.take(self.publisher.publish(one)), *self.call()]]

    def settle(self, message: Settled) -> None:
        assert self.take(self.publisher.settle(message)) == [] and self.call() == []


def publisher(allowed: bool | tuple[str, ...] = False) -> tuple[Driven, list[Any]]:
    shelf = Shelf()
    return Driven(shelf, allowed), shelf.told


PLACES = [Placed("1/chk-1/w0-1.state", 8 + n, 1, n) for n in range(3)]


def test_sinks_are_called_by_the_driver_and_the_worker_reports_when_they_have_come_back() -> None:
    one, calls = publisher()
    assert one.take(one.publisher.publish(Publish([("shelf", [b"a"])], 7, ["run"], part=3))) == [] and calls == []
    [call] = one.waiting
    assert (call.uid, call.method, call.args) == ("shelf", "publish", ([b"a"],))
    assert one.call() == [Published(7, part=3)]
    assert calls == [("publish", [b"a"]), ("recover", ["run"], 5, "shelf")]
    assert one.publisher.take_answer(call_sink(call)) == [], "an answer counts once"


def test_what_lies_in_files_is_read_before_it_is_published_and_holds_nothing_else_back() -> None:
    one, calls = publisher()
    first = Publish([("shelf", [b"a", PLACES[0], b"b", PLACES[1]])], 1)
    assert one.publish(first) == []
    assert one.publish(Publish([("shelf", [PLACES[2]])], 2, ["run"], folder="elsewhere")) == []
    assert [(read.what, read.folder, read.required) for read in one.reads] == [
        (PREPARED, "", tuple(PLACES[:2])),
        (PREPARED, "elsewhere", (PLACES[2],)),
    ]
    assert one.publish(Publish([("shelf", [b"c"])], 3)) == [Published(3)]
    for read, data in zip(one.reads, ([b"0", b"1"], [b"2"]), strict=True):
        assert one.publisher.awaits(read.number)
        one.take(one.publisher.read(read.number, data))
        assert not one.publisher.awaits(read.number)
    assert one.call() == [Published(1), Published(2)]
    assert calls == [
        ("publish", [b"c"]),
        ("publish", [b"a", b"0", b"b", b"1"]),
        ("publish", [b"2"]),
        ("recover", ["run"], 5, "shelf"),
    ]


def test_what_is_settled_is_told_to_its_sink_once() -> None:
    one, calls = publisher()
    one.publish(*(Publish([("shelf", [b"%d" % number])], number) for number in (0, 1, 2, 3)))
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
        assert one.publish(Publish([("gone", [b"x"]), ("shelf", [b"a"])], 1)) == [Published(1, skipped=True)]
        assert calls == [("publish", [b"a"])]
        assert one.publish(Publish([("shelf", [b"b"])], 2)) == [Published(2)]


def test_what_a_sink_that_publishes_nothing_was_given_stays_under_cover() -> None:
    """The sink has the uid of one that did, and the user has given up what that one had prepared."""
    one = Driven(tr.sinks.Print(), ("shelf",))
    assert one.publish(Publish([("shelf", [b"a"])], 0)) == [Published(0, skipped=True)]


def test_a_sink_that_raises_for_good_is_named() -> None:
    one, _ = publisher()
    with pytest.raises(UserCodeError, match="publishing raised PermissionError: no entry") as raised:
        one.publish(Publish([("shelf", [b"broken"])], 1))
    assert (raised.value.operator, raised.value.subtask) == ("shelf", 0)
    assert "test_publishing.py" in raised.value.user_traceback


class Far(Shelf):
    """A sink whose server is away for a while."""

    away = True

    def publish(self, prepared: Any) -> None:
        if self.away and b"b" in prepared:
            raise ConnectionError("no route")
        super().publish(prepared)

    def settled(self, prepared: Any) -> None:
        if self.away:
            raise ConnectionError("no route")
        super().settled(prepared)

    def recover(self, *args: Any) -> None:
        if self.away:
            raise ConnectionError("no route")
        super().recover(*args)


def test_a_part_that_fails_is_published_when_it_is_sent_once_more() -> None:
    sink = Far()
    one = Driven(sink)
    what = "the sink 'shelf': publishing raised ConnectionError: no route"
    for tries in (0, 1):
        message = Publish([("shelf", [b"b"])], 1, tries=tries, part=2)
        [report] = one.publish(message)
        assert report == NotPublished(1, tries, what, 2, "shelf", report.traceback)
        assert 'raise ConnectionError("no route")' in report.traceback
        assert one.publish(Publish([("shelf", [b"x"])], 2 + tries)) == [Published(2 + tries)], "others go on"
    sink.away = False
    assert one.publish(structs.replace(message, tries=2)) == [Published(1, part=2)]
    one.settle(Settled(3))
    assert sink.told[-1][0] == "settled" and sorted(sink.told[-1][1]) == [b"b", b"x", b"x"]


def test_what_was_published_and_comes_again_with_what_failed_is_forgotten_once() -> None:
    """The removal of leftovers failed behind it."""
    sink = Far()
    one = Driven(sink)
    message = Publish([("shelf", [b"a"])], 0, ["run"])
    what = "the sink 'shelf': removing what was not published raised ConnectionError: no route"
    [report] = one.publish(message)
    assert report == NotPublished(0, 0, what, 0, "shelf", report.traceback)
    sink.away = False
    assert one.publish(structs.replace(message, tries=1)) == [Published(0)]
    one.settle(Settled(0, True))
    assert sink.told[-1] == ("settled", [b"a"])


def test_what_cannot_be_settled_is_settled_with_what_comes_next() -> None:
    sink = Far()
    one = Driven(sink)
    one.publish(Publish([("shelf", [b"a"])], 1))
    one.settle(Settled(1))
    sink.away = False
    one.publish(Publish([("shelf", [b"c"])], 2))
    one.settle(Settled(2))
    assert sink.told[-1] == ("settled", [b"a", b"c"])


class Strict(Far):
    """A sink that names an error of its server that no other try would mend."""

    @property
    def permanent(self) -> tuple[type[Exception], ...]:
        return (KeyError,)


FOR_GOOD = [FileNotFoundError("lost"), PermissionError("forbidden"), tr.ConfigError("no such topic"), SystemExit(3)]
A_WHILE = [ConnectionError("refused"), TimeoutError("late"), OSError(28, "full"), ValueError("odd"), RuntimeError("?")]


@pytest.mark.parametrize("error", [*FOR_GOOD, *A_WHILE, TypeError("a bug"), KeyError("its own")], ids=repr)
def test_every_error_of_a_sink_is_tried_again_except_those_that_would_come_again(error: BaseException) -> None:
    for kind in (Shelf, Strict):

        def publish(self: Any, prepared: Any) -> None:
            raise error

        one = Driven(type("Wrong", (kind,), {"publish": publish})())
        theirs = KeyError if kind is Strict else TypeError
        if error in FOR_GOOD or isinstance(error, theirs):
            with pytest.raises(UserCodeError, match="publishing raised"):
                one.publish(Publish([("shelf", [b"a"])], 1))
        else:
            [found] = one.publish(Publish([("shelf", [b"a"])], 1))
            assert isinstance(found, NotPublished) and str(error.args[0]) in found.reason


def test_sinks_of_files_have_one_publisher_and_others_have_not() -> None:
    env = tr.Environment(parallelism=2)
    numbers = env.from_collection([1])
    numbers.sink_to(tr.sinks.TextFiles("out"), uid="files")
    numbers.sink_to(Shelf(), uid="shelf")
    assert with_one_publisher(env._plan(env._pending())) == {"files"}
