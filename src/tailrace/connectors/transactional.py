"""The base of sinks that write into a server: output travels through the checkpoint, and is written with a mark.

What a writer prepares are the records themselves, as bytes. `publish` has the server write them in one atomic unit together
with a *mark*: the counter of the transaction, in a *scope* (the run that prepared, the uid and the subtask). A transaction
whose counter is not above its mark is written already. So publishing twice, from two processes, after a crash at any point
or from an older checkpoint writes each transaction once.

Three choices make this right over restarts:

- The scope has the run that *prepared*, not the one that publishes: a start from an older checkpoint finds what that had
  prepared written, and writes its own output under a scope of its own. A job of an equal name has other runs.
- The counter is ordered by incarnation, then attempt, then the number of the transaction in its writer (`first_counter`).
  So it rises over restarts and replacements within a run, above all that may have been published, and needs no state
  (docs/decisions/0054-a-mark-belongs-to-the-run-that-prepared.md).
- A transaction names the one before it. If the server's mark is below that, the server has lost what it had committed, and
  the sink fails instead of going on (`OutputLost`).
"""

from __future__ import annotations

import contextlib
import struct
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import msgspec
import numpy as np

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.errors import OutputLost, TailraceError

ATTEMPT_BITS, NUMBER_BITS = 18, 27
_LIFE_BITS = ATTEMPT_BITS + NUMBER_BITS
LIMITS = {"incarnation": 1 << 63 - _LIFE_BITS, "attempt": 1 << ATTEMPT_BITS, "transaction": 1 << NUMBER_BITS}
"""Limits of the parts of a counter, which is a positive int64."""
OPEN_SCOPES = 16
"""Number of scopes whose connections stay open between publications."""
_LENGTH = struct.Struct("<I")


class Scope(NamedTuple):
    """The scope of a mark: the writers of one subtask of one sink in one run."""

    run_id: str
    """The run that prepared, which need not be the one that publishes."""
    uid: str
    subtask: int

    @property
    def name(self) -> str:
        """A name for keys of a server, `run/uid/subtask`. No other scope has it: a run id has no slash."""
        return f"{self.run_id}/{self.uid}/{self.subtask}"


class ServerTransaction(Protocol):
    """A connection to the server that writes the transactions of one scope, one after the other. The publishing thread
    makes it, keeps it for later publications, and closes it after an error."""

    def last(self) -> int | None:
        """The mark of the scope: the counter of its newest committed transaction. None if there is no mark."""

    def commit(self, counter: int, pieces: Sequence[bytes]) -> None:
        """Writes the pieces and the mark `counter` in one atomic unit of the server. Another process may do so for this
        scope at the same time: the server must write nothing, with an error or without one, where the mark is not below
        `counter`. An error may leave it open if the unit was committed; `last` is called before the next try."""

    def close(self) -> None:
        """Closes the connection. Must not raise."""


class TransactionalSink(Sink):
    """A sink that writes into a server exactly once. A subclass defines `encode`, and `transaction` for its server.

    With checkpoints, the encoded records go through the checkpoint, and each complete one is a transaction of the server
    for each subtask; a subtask holds what it has encoded since the last one in memory. Without checkpoints all is written
    once the job has succeeded.
    """

    description: ClassVar[str] = "transactional sink"
    marks_expire: bool = False
    """True if the server may remove a mark that is old: no mark is no sign of loss then."""
    lost_output: Literal["fail", "ignore"] = "fail"
    """What `publish` does if the server has lost committed output of the scope: raise `OutputLost`, or go on without
    it."""

    def encode(self, batch: Any) -> Iterable[bytes]:
        """The bytes of a batch, in pieces that `commit` receives: one for each record, or one for all. They depend on the
        batch alone, a list or a `pyarrow.RecordBatch` (see `form`)."""
        raise NotImplementedError

    def transaction(self, scope: Scope) -> ServerTransaction:
        """A connection for the transactions of a scope. Called in the publishing thread."""
        raise NotImplementedError

    def writer(self, ctx: SinkContext) -> SinkWriter:
        return TransactionWriter(self, ctx)

    def publish(self, prepared: Sequence[bytes]) -> None:
        by_scope: dict[Scope, list[PreparedTransaction]] = {}
        for one in map(PreparedTransaction.decode, prepared):
            by_scope.setdefault(one.scope, []).append(one)
        with self._lock:
            for scope, transactions in by_scope.items():
                with self._connection(scope) as connection:
                    self._write(connection, sorted(transactions, key=lambda one: one.counter))

    def _write(self, connection: ServerTransaction, transactions: Sequence[PreparedTransaction]) -> None:
        """Commits the transactions of one scope that are above its mark."""
        for one in unwritten(self, connection.last(), transactions):
            connection.commit(one.counter, one.pieces)

    def close(self) -> None:
        """Closes all connections. A later `publish` opens new ones."""
        with self._lock:
            while self._connections:
                self._connections.popitem()[1].close()

    @contextlib.contextmanager
    def _connection(self, scope: Scope) -> Iterator[ServerTransaction]:
        """The connection of a scope, which is closed if the block raises."""
        connection = self._connections.pop(scope, None) or self.transaction(scope)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self._connections[scope] = connection
        while len(self._connections) > OPEN_SCOPES:
            self._connections.pop(next(iter(self._connections))).close()

    @property
    def _lock(self) -> threading.RLock:
        return self.__dict__.setdefault("_publishing", threading.RLock())  # type: ignore[no-any-return]

    @property
    def _connections(self) -> dict[Scope, ServerTransaction]:
        """Open connections, the one that was used last at the end."""
        return self.__dict__.setdefault("_open", {})  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_publishing", "_open")}


def unwritten(
    sink: TransactionalSink, last: int | None, transactions: Iterable[PreparedTransaction]
) -> Iterator[PreparedTransaction]:
    """The transactions of one scope, in order, that are above its mark `last`. Each is written before the next one is
    requested. Raises `OutputLost` where the server has lost one."""
    for one in transactions:
        if last is not None and one.counter <= last:
            continue
        if sink.lost_output == "fail" and one.misses(last) and not (last is None and sink.marks_expire):
            raise OutputLost(_loss_text(sink, one, last))
        yield one
        last = one.counter


def first_counter(incarnation: int, attempt: int) -> int:
    """The counter below all transactions of a writer of this incarnation and attempt, and above all of earlier ones."""
    for what, value in (("incarnation", incarnation), ("attempt", attempt)):
        if value >= LIMITS[what]:
            raise TailraceError(
                f"{what} {value} of the sink's job is too high for marks of transactions (the limit is {LIMITS[what]}): "
                f"{'start the job under another name' if what == 'incarnation' else 'restart the job'}"
            )
    return (incarnation << ATTEMPT_BITS | attempt) << NUMBER_BITS


class TransactionWriter(SinkWriter):
    """A writer that keeps encoded records, and prepares them."""

    def __init__(self, sink: TransactionalSink, ctx: SinkContext) -> None:
        self._encode = sink.encode
        self._scope = Scope(ctx.run_id, ctx.uid, ctx.subtask)
        self._first = first_counter(ctx.incarnation, ctx.attempt)
        self._number = 0
        self._pieces: list[bytes] = []

    def write(self, batch: Any) -> None:
        try:
            self._pieces += self._encode(batch)
        except Exception:
            if isinstance(batch, list) and len(batch) > 1:
                for self.record in batch:
                    list(self._encode([self.record]))  # raises for the record that cannot be encoded
            raise

    def prepare(self) -> bytes | None:
        if not self._pieces:
            return None
        if self._number + 1 >= LIMITS["transaction"]:
            raise TailraceError("the sink has prepared as many transactions as marks can count: restart the job")
        counter = self._first + self._number + 1
        previous = counter - 1 if self._number else 0
        prepared = PreparedTransaction(self._scope, counter, previous, self._pieces).encode()
        self._number, self._pieces = self._number + 1, []
        return prepared


class _Header(msgspec.Struct, array_like=True):
    run_id: str
    uid: str
    subtask: int
    counter: int
    previous: int
    lengths: bytes
    """The length of each piece, as uint64 in little-endian order."""


class PreparedTransaction(NamedTuple):
    """A prepared transaction."""

    scope: Scope
    counter: int
    """Invariant U4: in a scope a transaction that is prepared later has a higher counter."""
    previous: int
    """The counter of the transaction that this writer had prepared before; 0 for its first one."""
    pieces: Sequence[bytes]

    def misses(self, last: int | None) -> bool:
        """True if the mark `last` of the server is below the transaction before this one. That one was published: output is
        published in order. The first transactions of a writer that replaced a lost one are an exception: what the lost
        one had prepared for the same checkpoint was published in place of them."""
        life = self.counter >> NUMBER_BITS
        replaced = life % LIMITS["attempt"] and (last is None or last >> NUMBER_BITS != life)
        return not replaced and (last or 0) < self.previous

    def encode(self) -> bytes:
        """The transaction as bytes."""
        lengths = np.fromiter(map(len, self.pieces), "<u8", len(self.pieces)).tobytes()
        header = msgspec.msgpack.encode(_Header(*self.scope, self.counter, self.previous, lengths))
        data = b"".join((_LENGTH.pack(len(header)), header, *self.pieces))
        if len(data) != _LENGTH.size + len(header) + sum(map(len, self.pieces)):
            raise TypeError("encode must give bytes; a memoryview of larger items has another length")
        return data

    @classmethod
    def decode(cls, data: bytes) -> PreparedTransaction:
        """The transaction in what `encode` returned."""
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        header = msgspec.msgpack.decode(memoryview(data)[_LENGTH.size : start], type=_Header)
        ends = start + np.cumsum(np.frombuffer(header.lengths, "<u8")).astype(np.int64)
        pieces = [data[begin:end] for begin, end in pairwise([start, *ends.tolist()])]
        return cls(Scope(header.run_id, header.uid, header.subtask), header.counter, header.previous, pieces)


def _loss_text(sink: TransactionalSink, one: PreparedTransaction, last: int | None) -> str:
    return (
        f"{sink!r} has lost output that it had committed: its mark of {one.scope.name} is {last}, and was {one.previous}. "
        f"The server has come back without its last writes or from a backup, or somebody has removed its marks. Nothing "
        f"more is written. To write again what is lost start the job from an older savepoint; to go on without it give the "
        f'sink lost_output="ignore"'
    )
