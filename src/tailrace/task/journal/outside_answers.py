"""The answers of the world outside to user code (`task.contract.outside`), kept so that a replay gets the same answers.

The *answers* of the world are a part of the event during which user code requested them. A recorder passes requests on,
and keeps the answers. A replay has the answers from the log, and requests only records from the world: exactly as many as
the first time.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tailrace.elements.batches import Batch, Rows, concat
from tailrace.errors import InternalError, message_of
from tailrace.task.contract.clock_access import READING, Book
from tailrace.task.contract.outside import Outside, T, Take, Taken, TakenParts, TakeParts
from tailrace.task.journal.clock_readings import GivenReadings, LiveReadings, Readings

_ENDED = -1
_LATER = (0.0, 1.0, 60.0, 3_600.0, 1e9)
"""Seconds to be added to the time, by number of empty reads in a row, when a reader in a replay has nothing. A reader may
keep a pace, which begins anew where it is opened."""
_EMPTY = 10_000
"""Limit for empty reads in a row. A reader that scans gives nothing for as long as it finds nothing, and the log has only
what it gave."""


class Gave(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An answer: a reader gave `count` records, or was at its end (-1), and had lost this many bytes."""

    count: int
    lost: int = 0


class GaveParts(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An answer: a reader of several splits gave records, as (number of a split, count; -1 at its end), and had lost this
    many bytes."""

    counts: list[tuple[int, int]]
    lost: int = 0


class Told(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An answer: a pickled value."""

    data: bytes


class Raised(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """An answer: a call raised an exception."""

    data: bytes
    """The pickled exception; empty if only its name and text are known."""
    name: str
    text: str


Answer = Gave | GaveParts | Told | Raised | Readings


class Recorder(Outside):
    """The world outside, with a record of its answers."""

    def __init__(self) -> None:
        self._answers: list[Answer] = []
        self.again: ReplayedAnswers | None = None
        """The answers of a replay, while one goes on: they are used instead of the world, and not recorded again."""
        self._live = LiveReadings()
        self.readings = self._live

    @property
    def repeats(self) -> bool:
        return self.again is not None

    def take(self) -> list[Answer]:
        """The answers since the last call."""
        answers, self._answers = self._answers, []
        return [*answers, *self._live.take()]

    def replay(self, answers: ReplayedAnswers) -> None:
        """Uses these answers from now on."""
        self.again, self.readings = answers, answers.given

    def go_live(self) -> None:
        """Uses the world again, behind a replay."""
        if self.again is not None:
            self._live.go_on_from(self.again.given.last)
        self.again, self.readings = None, self._live

    def request(self, call: Callable[[], T]) -> T:
        if self.again is not None:
            return self.again.request(call)
        data = pickle.dumps(self._record_error(lambda: self.apart(call)), 5)
        self._answers.append(Told(data))
        # User code gets the answer unpickled from its bytes, as in a replay: a set has another order then, and no object
        # is shared with the world, which may change it later.
        found: T = pickle.loads(data)
        return found

    def act(self, call: Callable[[], object]) -> None:
        if self.again is not None:
            self.again.act(call)
            return
        self._record_error(lambda: self.apart(call))
        self._answers.append(_NOTHING)

    def read(self, take: Take, limit: int) -> Taken:
        if self.again is not None:
            return self.again.read(take, limit)
        with _reading(self._live):
            batch, lost = self._record_error(lambda: take(limit))
        self._answers.append(Gave(_ENDED if batch is None else len(batch), lost))
        return batch, lost

    def read_parts(self, take: TakeParts, limit: int) -> TakenParts:
        if self.again is not None:
            return self.again.read_parts(take, limit)
        with _reading(self._live):
            parts, lost = self._record_error(lambda: take(limit))
        counts = [(split, _ENDED if batch is None else len(batch)) for split, batch in parts]
        self._answers.append(GaveParts(counts, lost))
        return parts, lost

    def _record_error(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except Exception as error:
            self._answers.append(_error_answer(error))
            raise


class ReplayedAnswers(Outside):
    """Answers from a log, event by event."""

    def __init__(self) -> None:
        self._answers: list[Gave | GaveParts | Told | Raised] = []
        self._at = 0
        self.readings = self.given = GivenReadings()

    def give(self, answers: Sequence[Answer]) -> None:
        """Sets the answers of the event that follows."""
        self._answers, self._at = [one for one in answers if not isinstance(one, Readings)], 0
        self.given.give(one for one in answers if isinstance(one, Readings))

    @property
    def remaining(self) -> int:
        """Number of the event's answers that were not requested yet."""
        return len(self._answers) - self._at + self.given.remaining

    @property
    def difference(self) -> str:
        """How the event that ends differs from the first time; empty where it does not."""
        return self.given.lacked or (f"{self.remaining} answers are left" if self.remaining else "")

    def request(self, call: Callable[[], T]) -> T:
        answer = self._next()
        if not isinstance(answer, Told):
            raise InternalError("K3: user code requests a value, and the log has a number of records", ())
        found: T = pickle.loads(answer.data)
        return found

    def act(self, call: Callable[[], object]) -> None:
        self._next()

    def read(self, take: Take, limit: int) -> Taken:
        answer = self._next()
        if not isinstance(answer, Gave):
            raise InternalError("K3: a source is read, and the log has another answer", ())
        if answer.count <= 0:
            return (None if answer.count == _ENDED else Rows([])), answer.lost
        with _reading(self.given):
            return _exactly(answer.count, take), answer.lost

    def read_parts(self, take: TakeParts, limit: int) -> TakenParts:
        answer = self._next()
        if not isinstance(answer, GaveParts):
            raise InternalError("K3: a source of several splits is read, and the log has another answer", ())
        with _reading(self.given):
            return [(split, _of_split(split, count, take)) for split, count in answer.counts], answer.lost

    def _next(self) -> Gave | GaveParts | Told:
        if self._at == len(self._answers):
            raise InternalError("K3: user code requests an answer that it had not requested before", ())
        answer = self._answers[self._at]
        self._at += 1
        if isinstance(answer, Raised):
            raise _error_of(answer)
        return answer


@contextlib.contextmanager
def _reading(book: Book) -> Iterator[None]:
    """Context of a reader that reads, and may read clocks as well."""
    book.phase = READING
    try:
        yield
    finally:
        book.phase = ""


def _of_split(split: int, count: int, take: TakeParts) -> Batch | None:
    """Exactly `count` records of one split. A reader of several splits gives them in another order than the first time, so
    it reads this one alone. Splits that were at their end, or had nothing, are not read."""
    if count <= 0:
        return None if count == _ENDED else Rows([])

    def take_of(limit: int, later: float = 0.0) -> Taken:
        parts, _ = take(limit, later, only=split)
        given = [batch for _, batch in parts if batch is not None]
        ended = len(given) < len(parts) and not any(map(len, given))
        whole = concat([batch for batch in given if len(batch)] or [Rows([])])
        whole.split = split
        return (None if ended else whole), 0

    return _exactly(count, take_of)


def _exactly(count: int, take: Take) -> Batch:
    """Exactly `count` records of a reader, in as many reads as it takes. The first time the reader gave them at once; now
    a read may give fewer records, or none for a while."""
    parts: list[Batch] = []
    missing, empty = count, 0
    while missing:
        batch, _ = take(missing, _LATER[min(empty, len(_LATER) - 1)])
        if batch is None or (not len(batch) and empty == _EMPTY):
            raise InternalError(f"K3: a source gave {count - missing} records where it had given {count} before", ())
        empty = 0 if len(batch) else empty + 1
        missing -= len(batch)
        parts += [batch] if len(batch) else []
    if len(parts) == 1:
        return parts[0]
    whole = concat(parts)
    whole.split = parts[0].split
    return whole


_NOTHING = Told(pickle.dumps(None, 5))


def _error_answer(error: Exception) -> Raised:
    text = message_of(error)
    for pickled in (_by_pickle, _by_fields):
        # a user's exception may raise when it is pickled: its name and text are kept in any case
        with contextlib.suppress(Exception):
            data = pickled(error)
            found = pickle.loads(data)
            if type(found) is type(error) and message_of(found) == text:
                return Raised(data, type(error).__name__, text)
    return Raised(b"", type(error).__name__, text)


def _by_pickle(error: Exception) -> bytes:
    """An exception pickled in the usual way."""
    return pickle.dumps(error, 5)


def _by_fields(error: Exception) -> bytes:
    """An exception pickled by its class, its arguments and its fields, without those that cannot be pickled (a
    connection, say). User code catches it by its class. It serves classes that pickle cannot rebuild from `args`."""
    args = tuple(one if _travels(one) else None for one in error.args)
    fields = {name: one for name, one in vars(error).items() if _travels(one)}
    return pickle.dumps(_Remade(type(error), args, fields), 5)


def _travels(value: Any) -> bool:
    """True if a value can be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(value, 5))
    except Exception:
        return False
    return True


class _Remade:
    """An exception in its parts; unpickled it is the exception."""

    def __init__(self, kind: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]) -> None:
        self.parts = kind, args, fields

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, self.parts


def _remade(kind: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]) -> Exception:
    error = kind.__new__(kind, *args)
    builtin: Any = next(one for one in kind.__mro__ if one.__module__ == "builtins")
    builtin.__init__(error, *args)  # the one of `OSError` keeps its number; users' classes may have other arguments
    vars(error).update(fields)
    return error


def _error_of(answer: Raised) -> Exception:
    if answer.data:
        found: Exception = pickle.loads(answer.data)
        return found
    made: Any = type(answer.name, (Exception,), {})
    error: Exception = made(answer.text)
    return error
