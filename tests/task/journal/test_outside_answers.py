"""Answers of the world outside to user code are kept, and are there again in a replay."""

from __future__ import annotations

import pickle
import threading
from email.message import Message
from io import BytesIO
from typing import Any
from urllib.error import HTTPError

import pytest

from tailrace.elements.batches import Rows
from tailrace.errors import InternalError
from tailrace.task.contract.outside import Outside, Take, Taken, TakenParts
from tailrace.task.journal.outside_answers import Gave, Raised, Recorder, ReplayedAnswers


def again(recorder: Recorder) -> ReplayedAnswers:
    """A replay of what a recorder has kept since the last call."""
    replayed = ReplayedAnswers()
    replayed.give(recorder.take())
    return replayed


def of(*records: Any, lost: int = 0) -> Take:
    """A reader that has these records."""
    left = list(records)

    def take(limit: int, later: float = 0.0) -> Taken:
        found, left[:] = left[:limit], left[limit:]
        return Rows(found), lost

    return take


def never(*args: Any) -> Any:
    raise AssertionError("the world is asked in a replay")


def test_in_life_the_world_is_asked() -> None:
    found: list[str] = []
    assert Outside().request(lambda: 7) == 7
    Outside().act(lambda: found.append("done"))
    assert found == ["done"]
    batch, lost = Outside().read(of(1, 2, 3, lost=5), 2)
    assert batch is not None and (len(batch), lost) == (2, 5)


def test_a_value_is_the_same_again_and_nobody_is_asked() -> None:
    recorder = Recorder()
    assert recorder.request(lambda: {"a": [1, 2]}) == {"a": [1, 2]}
    recorder.act(lambda: object())
    replayed = again(recorder)
    assert replayed.request(never) == {"a": [1, 2]}
    replayed.act(never)
    assert replayed.remaining == 0 and recorder.take() == []


class Refused(Exception):
    def __init__(self, code: int, text: str) -> None:  # so it cannot be unpickled
        super().__init__(f"{code}: {text}")


@pytest.mark.parametrize("error", [OSError("no route"), Refused(503, "busy")], ids=lambda e: type(e).__name__)
def test_what_was_raised_is_raised_again_by_name_and_text(error: Exception) -> None:
    recorder = Recorder()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        recorder.request(fail)
    with pytest.raises(Exception, match=str(error)) as raised:
        again(recorder).act(never)
    assert type(raised.value).__name__ == type(error).__name__


def test_a_value_is_in_life_what_its_bytes_give() -> None:
    grown = {one * 61 for one in range(100)}
    for one in sorted(grown)[6:]:
        grown.discard(one)
    recorder, shared = Recorder(), [1]
    assert list(pickle.loads(pickle.dumps(grown))) != list(grown)
    found, first = recorder.request(lambda: grown), recorder.request(lambda: shared)
    shared.append(2)  # what is not the user's changes later
    replayed = again(recorder)
    assert list(found) == list(replayed.request(never))
    assert first == replayed.request(never) == [1]


class Unreachable(OSError):
    def __init__(self, host: str, link: Any) -> None:
        super().__init__(113, f"no way to {host}")
        self.host, self.link = host, link


@pytest.mark.parametrize(
    "error",
    [
        Refused(503, "busy"),
        Unreachable("db", threading.Lock()),
        HTTPError("http://here", 404, "gone", Message(), BytesIO()),
    ],
    ids=lambda e: type(e).__name__,
)
def test_an_exception_that_pickle_does_not_bring_back_is_of_its_class_again(error: Exception) -> None:
    recorder = Recorder()

    def fail() -> None:
        raise error

    with pytest.raises(type(error)):
        recorder.request(fail)
    with pytest.raises(type(error)) as raised:  # so it comes into the same branch of the user's code
        again(recorder).request(never)
    assert str(raised.value) == str(error)
    kept = {name: one for name, one in vars(error).items() if isinstance(one, str | int)}
    assert kept.items() <= vars(raised.value).items()


def test_a_reader_is_asked_for_as_many_records_as_it_gave() -> None:
    recorder, records = Recorder(), of(1, 2, 3, lost=4)
    recorder.read(records, 10)
    recorder.read(records, 10)
    answers = recorder.take()
    assert answers == [Gave(3, 4), Gave(0, 4)]
    replayed = ReplayedAnswers()
    replayed.give(answers)
    batch, lost = replayed.read(of(1, 2, 3, 4, 5), 10)
    assert isinstance(batch, Rows) and (batch.values, lost) == ([1, 2, 3], 4)
    nothing, _ = replayed.read(never, 10)
    assert nothing is not None and len(nothing) == 0


def test_the_end_of_a_split_is_its_end_again_and_the_reader_is_not_asked() -> None:
    recorder = Recorder()
    assert recorder.read(lambda limit: (None, 0), 5) == (None, 0)
    assert again(recorder).read(never, 5) == (None, 0)


def test_a_reader_may_give_its_records_in_other_portions_and_pauses() -> None:
    portions: list[list[int]] = [[], [1], [], [], [2, 3]]

    def take(limit: int, later: float = 0.0) -> Taken:
        return Rows(portions.pop(0), split=6), 0

    replayed = ReplayedAnswers()
    replayed.give([Gave(3)])
    batch, _ = replayed.read(take, 100)
    assert isinstance(batch, Rows) and (batch.values, batch.split) == ([1, 2, 3], 6)


def test_a_reader_of_many_splits_gives_each_its_records_in_whatever_order_it_has_them_now() -> None:
    recorder = Recorder()
    parts = [(3, Rows([31, 32])), (1, Rows([11])), (3, Rows([33])), (2, Rows([])), (4, None)]
    assert recorder.read_parts(lambda limit, later=0.0, only=None: (parts, 5), 10) == (parts, 5)
    left = {1: [11, 12], 3: [31, 32, 33, 34]}
    read: list[int | None] = []

    def take(limit: int, later: float = 0.0, only: int | None = None) -> TakenParts:
        read.append(only)
        assert only is not None, "all others are paused"
        found, left[only] = left[only][: min(limit, 1)], left[only][min(limit, 1) :]
        return [(only, Rows(found, split=only))], 0

    again_, lost = again(recorder).read_parts(take, 10)
    given = [(split, None if batch is None else batch.to_rows().values) for split, batch in again_]
    assert given == [(3, [31, 32]), (1, [11]), (3, [33]), (2, []), (4, None)] and lost == 5
    assert left == {1: [12], 3: [34]}, "what came later is still there"
    assert read == [3, 3, 1, 3], "splits that had nothing, or were at their end, are not read"


def test_a_reader_that_does_not_give_what_it_gave_is_reported() -> None:
    replayed = ReplayedAnswers()
    replayed.give([Gave(3)])
    with pytest.raises(InternalError, match="K3: a source gave 2 records where it had given 3 before"):
        replayed.read(of(1, 2), 5)


def test_an_answer_that_was_not_requested_before_is_reported() -> None:
    replayed = ReplayedAnswers()
    replayed.give([Gave(1)])
    with pytest.raises(InternalError, match="requests a value, and the log has a number of records"):
        replayed.request(never)
    with pytest.raises(InternalError, match="requests an answer that it had not requested before"):
        replayed.request(never)
    replayed.give([Raised(b"", "OSError", "gone")])
    assert replayed.remaining == 1
