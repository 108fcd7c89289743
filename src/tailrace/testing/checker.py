"""What a simulated job did to the world, and whether that is as if nothing had happened to it.

A `Ledger` is a sink that keeps books in memory: what was written, prepared, published, and removed as a leftover. A
`WatchedFiles` is a storage of checkpoints that knows when something is committed and what that needs. Both note every
breach at the moment at which it happens; `check` looks at what there is in the end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.errors import TailraceError
from tailrace.state.manifest import Manifest, Prepared, decode_manifest
from tailrace.storage.leftovers import SEAL, holds_manifest
from tailrace.storage.reading import load_index
from tailrace.testing.memorystore import MemoryFiles


@dataclass
class Book:
    """What happened to the records of one sink."""

    prepared: dict[bytes, list[Any]] = field(default_factory=dict)
    """By transaction, those that are neither published nor removed."""
    published: dict[bytes, list[Any]] = field(default_factory=dict)
    """In the order of publishing."""
    removed: set[bytes] = field(default_factory=set)
    recovered: set[str] = field(default_factory=set)
    """Runs whose leftovers a sink was told to remove."""
    settled: set[bytes] = field(default_factory=set)
    """Transactions that nobody is to ask for again."""
    incarnation: int = 0
    """The newest one under which somebody writes."""
    committed: set[bytes] | None = None
    """Transactions that a committed manifest has; None where there are no checkpoints."""
    wrong: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    def records(self) -> list[Any]:
        """Everything that is visible."""
        return [record for records in self.published.values() for record in records]


BOOKS: dict[str, Book] = {}
"""By name, so that pickled copies of a sink find theirs."""


class Ledger(Sink):
    """A transactional sink in memory. Its copies in the workers of a simulation share one book."""

    description = "ledger"

    def __init__(self, name: str) -> None:
        self.name = name
        self._incarnation = 0
        self._published: set[bytes] = set()
        """What this copy has published: that of one worker, in one attempt."""

    @property
    def book(self) -> Book:
        """What happened to its records."""
        return BOOKS[self.name]

    def writer(self, ctx: SinkContext) -> SinkWriter:
        self._incarnation = ctx.incarnation
        self.book.incarnation = max(self.book.incarnation, ctx.incarnation)
        return _Writer(self.book, f"{ctx.uid}|{ctx.run_id}|{ctx.incarnation}|{ctx.subtask}")

    def publish(self, prepared: Sequence[bytes]) -> None:
        book = self.book
        for token in prepared:
            if book.committed is not None and token not in book.committed:
                book.wrong.append(f"{token!r} was published, and no committed checkpoint has it")
            if token in self._published:
                book.wrong.append(f"{token!r} was published twice, and nothing had failed")
            if token in book.settled and self._incarnation == book.incarnation:  # who was overtaken may ask
                book.wrong.append(f"{token!r} is to be published, and was to be forgotten before")
            self._published.add(token)
            if token in book.published:
                book.counts["published again"] += 1
            elif token in book.prepared:
                book.published[token] = book.prepared.pop(token)
                book.counts["published"] += 1
            else:
                what = "was removed as a leftover before" if token in book.removed else "was never prepared"
                book.wrong.append(f"{token!r} is to be published, and {what}")

    def settled(self, prepared: Sequence[bytes]) -> None:
        book = self.book
        for token in prepared:
            if token not in book.published:
                book.wrong.append(f"{token!r} is to be forgotten, and was not published")
            book.settled.add(token)
            book.counts["settled"] += 1

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        book = self.book
        book.recovered.update(run_ids)
        for token in list(book.prepared):
            whose, run_id, made_in, _, _ = token.decode().split("|")
            if whose == uid and run_id in run_ids and int(made_in) < incarnation:
                del book.prepared[token]
                book.removed.add(token)
                book.counts["leftovers removed"] += 1


class _Writer(SinkWriter):
    def __init__(self, book: Book, place: str) -> None:
        self.book = book
        self.place = place
        self.count = 0
        self.records: list[Any] = []

    def write(self, batch: Any) -> None:
        self.records.extend(batch)

    def prepare(self) -> bytes | None:
        if not self.records:
            return None
        token = f"{self.place}|{self.count}".encode()
        self.count += 1
        book = self.book
        if token in book.prepared or token in book.published or token in book.removed:
            book.wrong.append(f"{token!r} is the name of two transactions")
        book.prepared[token] = self.records
        self.records = []
        return token


class WatchedFiles(MemoryFiles):
    """The storage of checkpoints of one job, under watch."""

    def __init__(self, books: Iterable[Book] = ()) -> None:
        super().__init__()
        self.books = list(books)
        for book in self.books:
            book.committed = set()
        self.wrong: list[str] = []
        self.commits = 0
        self.ended_early = 0
        """Checkpoints before the last one at which a subtask had already finished."""
        self.incremental = 0
        """Checkpoints that refer to files of earlier ones."""
        self.newest: tuple[tuple[int, int], Manifest] | None = None
        """The manifest that a driver would restore now, and its place."""

    def create(self, name: str, data: bytes) -> None:
        super().create(name, data)
        self._made(name, data)

    def _made(self, name: str, data: bytes) -> None:
        if not name.endswith(".manifest") or not holds_manifest(data):
            return
        manifest = decode_manifest(data, name)
        incarnation, _, rest = name.partition("/")
        place = (int(incarnation), int(rest.partition(".")[0]))
        self.commits += 1
        if self.newest is not None and self.newest[0] > place:
            self.wrong.append(f"{name} was committed when {self.newest[0]} had been")
        else:
            self.newest = (place, manifest)
        ended = any(any(operator.finished) for operator in manifest.operators)
        self.ended_early += ended and not manifest.final
        self.incremental += bool(manifest.older)
        self._all_there(name, manifest)
        for book in self.books:
            assert book.committed is not None
            book.committed.update(self._bytes(one) for one in manifest.prepared)

    def _bytes(self, one: Prepared) -> bytes:
        if isinstance(one.data, bytes):
            return one.data
        at = one.data
        return bytes(self.contents.get(at.file, b"")[at.offset : at.offset + at.length])

    def _all_there(self, name: str, manifest: Manifest) -> None:
        sizes = {file.name: file.size for file in manifest.files}
        for file in [*sizes, *manifest.older]:
            data = self.contents.get(file)
            if data is None:
                self.wrong.append(f"{name} needs {file}, which is not there")
                continue
            if file in sizes and len(data) != sizes[file]:
                self.wrong.append(f"{name} says that {file} has {sizes[file]} bytes, not {len(data)}")
                continue
            try:
                load_index(self, file)
            except TailraceError as error:
                self.wrong.append(f"{name} needs {file}, which cannot be read: {error}")

    def delete(self, names: Iterable[str]) -> None:
        names = list(names)
        if self.newest is not None:
            _, manifest = self.newest
            needed = {file.name for file in manifest.files} | set(manifest.older)
            for name in names:
                if name in needed and name in self.contents:
                    self.wrong.append(f"{name} was deleted, and checkpoint {manifest.checkpoint} needs it")
        super().delete(names)

    def leftovers(self, runs: Iterable[int], needed: Iterable[str]) -> list[str]:
        """State files and manifests under these incarnations that are not among those that are needed."""
        keep, found = set(needed), []
        for name, data in self.contents.items():
            incarnation, _, rest = name.partition("/")
            state = rest.startswith("chk-") or (rest.endswith(".manifest") and not bytes(data).startswith(SEAL))
            if int(incarnation) in set(runs) and state and name not in keep:
                found.append(name)
        return found


def check_leftovers(book: Book, last: str) -> list[str]:
    """Runs before the `last` one that have left output under cover, and no later start has said that it is to go. (Where one
    has, a worker whose end was late may have prepared something after that.)"""
    left = {token.decode().split("|")[1] for token in book.prepared} - book.recovered - {last}
    return [f"what run {run} has prepared stays under cover for ever" for run in sorted(left)]


def check_records(
    book: Book, expected: Counter[Any], order: Callable[[Any], Any] | None = None, *, partly: bool = False
) -> list[str]:
    """What is wrong with what was published: as a multiset, and in its order, where `order` gives (key, place) of a
    record. `partly`: not all of it need be there."""
    wrong = list(book.wrong)
    records = book.records()
    found = Counter(records)
    if found != expected:
        lost, more = expected - found, found - expected
        if lost and not partly:
            wrong.append(f"{lost.total()} records of {expected.total()} were lost, as {_some(lost)}")
        if more:
            wrong.append(f"{more.total()} records are too many, as {_some(more)}")
    if order is not None:
        last: dict[Any, Any] = {}
        for record in records:
            key, place = order(record)
            if key in last and place <= last[key]:
                wrong.append(f"of key {key!r}, {place!r} was published after {last[key]!r}")
                break
            last[key] = place
    return wrong


def _some(records: Counter[Any]) -> str:
    return ", ".join(map(repr, list(records)[:3]))
