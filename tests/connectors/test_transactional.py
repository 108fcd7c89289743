"""A transactional sink writes each transaction once, whoever publishes, and sees that a server has lost output.

`tests/testing/test_check_sink.py` runs the battery, with processes that are killed; here one thing at a time."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import pyarrow as pa
import pytest

import tailrace as tr
from tailrace.connectors.transactional import (
    LIMITS,
    OPEN_SCOPES,
    PreparedTransaction,
    Scope,
    TransactionalSink,
    first_counter,
)
from tailrace.errors import OutputLost, TailraceError

RUN = "0b5c"


class Place(NamedTuple):
    """Where a writer works."""

    subtask: int = 0
    incarnation: int = 1
    attempt: int = 0
    run_id: str = RUN
    uid: str = "out"
    job: str = "job"
    parallelism: int = 4


class Server:
    """A server in memory: what was written, and marks."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.marks: dict[Scope, int] = {}
        self.opened: list[Scope] = []
        self.closed: list[Scope] = []
        self.fails = 0


class Connection:
    def __init__(self, server: Server, scope: Scope) -> None:
        self.server, self.scope = server, scope
        server.opened.append(scope)

    def last(self) -> int | None:
        return self.server.marks.get(self.scope)

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        if self.server.fails:
            self.server.fails -= 1
            raise ConnectionError("away")
        self.server.written += pieces
        self.server.marks[self.scope] = counter

    def close(self) -> None:
        self.server.closed.append(self.scope)


class ToServer(TransactionalSink):
    def __init__(self, server: Server) -> None:
        self.server = server

    def encode(self, batch: Any) -> Iterable[bytes]:
        return [str(100 // one).encode() for one in batch]

    def transaction(self, scope: Scope) -> Connection:
        return Connection(self.server, scope)


def transactions(sink: TransactionalSink, n: int, place: Place = Place()) -> list[bytes]:
    """What a writer prepares in `n` transactions of one record each."""
    writer = sink.writer(place)
    found = []
    for i in range(n):
        writer.write([i + 1])
        prepared = writer.prepare()
        assert prepared is not None
        found.append(prepared)
    return found


def test_what_was_encoded_comes_out_of_what_was_prepared() -> None:
    for pieces in ([b"a"], [b"", b"long" * 100, b""], [b"x"] * 1000):
        one = PreparedTransaction(Scope(RUN, "a/b", 3), 7, 6, pieces)
        assert PreparedTransaction.decode(one.encode()) == one
    with pytest.raises(TypeError, match="larger items"):
        PreparedTransaction(Scope(RUN, "a", 3), 7, 6, [memoryview(bytes(8)).cast("q")]).encode()  # type: ignore[list-item]


def test_a_transaction_without_records_is_none() -> None:
    writer = ToServer(Server()).writer(Place())
    assert writer.prepare() is None
    writer.write([4])
    assert writer.prepare() is not None
    assert writer.prepare() is None


def test_a_record_that_cannot_be_encoded_is_named() -> None:
    writer = ToServer(Server()).writer(Place())
    with pytest.raises(ZeroDivisionError):
        writer.write([1, 2, 0, 3])
    assert writer.record == 0


def test_publishing_again_whole_or_in_part_changes_nothing() -> None:
    sink = ToServer(Server())
    prepared = transactions(sink, 4)
    for again in (prepared[:2], prepared[:3], prepared, prepared[1:2], reversed(prepared), prepared):
        sink.publish(list(again))
    assert sink.server.written == [b"100", b"50", b"33", b"25"]


def test_transactions_of_one_call_are_written_in_order() -> None:
    sink = ToServer(Server())
    prepared = transactions(sink, 4)
    sink.publish([prepared[2], prepared[0], prepared[3], prepared[1]])
    assert sink.server.written == [b"100", b"50", b"33", b"25"]


@pytest.mark.parametrize(
    "place",
    [Place(subtask=1), Place(incarnation=2), Place(attempt=1), Place(run_id="0b5d"), Place(uid="other")],
    ids=lambda place: str(place[:5]),
)
def test_another_writer_writes_its_own(place: Place) -> None:
    sink = ToServer(Server())
    sink.publish(transactions(sink, 3))
    sink.publish(transactions(sink, 2, place))
    assert sink.server.written == [b"100", b"50", b"33", b"100", b"50"]


def test_counters_rise_over_attempts_and_incarnations() -> None:
    lives = [first_counter(*one) for one in ((0, 0), (0, 1), (0, LIMITS["attempt"] - 1), (1, 0), (9, 2), (10, 0))]
    assert all(earlier + LIMITS["transaction"] <= later for earlier, later in pairwise(lives))
    assert first_counter(LIMITS["incarnation"] - 1, LIMITS["attempt"] - 1) + LIMITS["transaction"] == 1 << 63


@pytest.mark.parametrize("what", ["incarnation", "attempt"])
def test_a_life_that_has_no_counter_is_refused(what: str) -> None:
    with pytest.raises(TailraceError, match=f"{what} {LIMITS[what]}"):
        ToServer(Server()).writer(Place()._replace(**{what: LIMITS[what]}))


def test_a_connection_is_kept_and_closed_after_an_error() -> None:
    sink = ToServer(Server())
    first, second, third = transactions(sink, 3)
    sink.publish([first])
    sink.server.fails = 1
    with pytest.raises(ConnectionError):
        sink.publish([second])
    assert (len(sink.server.opened), len(sink.server.closed)) == (1, 1)
    sink.publish([second])
    sink.publish([third])
    sink.close()
    assert sink.server.written == [b"100", b"50", b"33"]
    assert (len(sink.server.opened), len(sink.server.closed)) == (2, 2)


def test_old_scopes_do_not_keep_connections() -> None:
    sink = ToServer(Server())
    for run in range(OPEN_SCOPES + 3):
        sink.publish(transactions(sink, 1, Place(run_id=str(run))))
    assert [scope.run_id for scope in sink.server.closed] == ["0", "1", "2"]


def test_connections_do_not_travel() -> None:
    sink = ToServer(Server())
    sink.publish(transactions(sink, 1))
    assert set(vars(pickle.loads(pickle.dumps(sink)))) == {"server"}


@pytest.mark.parametrize("mark", [None, 1])
def test_a_server_that_has_lost_output_is_noticed(mark: int | None) -> None:
    sink = ToServer(Server())
    first, second, third = transactions(sink, 3)
    sink.publish([first, second])
    scope = Scope(RUN, "out", 0)
    if mark is None:
        del sink.server.marks[scope]
    else:
        sink.server.marks[scope] -= mark
    with pytest.raises(OutputLost, match=rf"{RUN}/out/0.*older savepoint.*lost_output"):
        sink.publish([third])
    assert sink.server.written == [b"100", b"50"]
    sink.lost_output = "ignore"
    sink.publish([third])
    assert sink.server.written == [b"100", b"50", b"33"]


def test_a_mark_that_may_expire_is_not_missed() -> None:
    sink = ToServer(Server())
    sink.marks_expire = True
    first, second, third = transactions(sink, 3)
    sink.publish([first])
    sink.server.marks.clear()
    sink.publish([second])
    sink.server.marks[Scope(RUN, "out", 0)] -= 1
    with pytest.raises(OutputLost):
        sink.publish([third])


def test_a_writer_in_place_of_a_lost_one_need_not_write_what_that_had() -> None:
    """The checkpoint has what the lost writer had prepared for it, in place of the replacement's first transaction."""
    sink = ToServer(Server())
    sink.publish(transactions(sink, 2))
    sink.publish(transactions(sink, 2, Place(attempt=1))[1:])
    assert sink.server.written == [b"100", b"50", b"50"]


def test_a_restarted_job_is_a_sign_of_loss_only_within_its_own_transactions() -> None:
    sink = ToServer(Server())
    sink.publish(transactions(sink, 2))
    restarted = transactions(sink, 3, Place(incarnation=2))
    sink.publish(restarted[:1])
    with pytest.raises(OutputLost):
        sink.publish(restarted[2:])


def test_a_job_writes_through_it() -> None:
    server = Server()

    class Column(ToServer):
        form = "columns"

        def encode(self, batch: pa.RecordBatch) -> Iterable[bytes]:
            return [repr(batch.to_pydict()).encode()]

        def __reduce__(self) -> Any:
            return lambda: self, ()

    env = tr.Environment(parallelism=1)
    env.from_collection([1, 2, 3]).to_columns("n long").sink_to(Column(server))
    tr.testing.run(env)
    assert server.written == [b"{'n': [1, 2, 3]}"]
    assert [scope.uid for scope in server.marks] and len(server.opened) == 1
    assert server.closed == server.opened
