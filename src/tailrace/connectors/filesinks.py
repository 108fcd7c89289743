"""The base of sinks that write files: a writer makes one file per transaction, and the sink publishes it.

A writer writes under cover (`connectors.folders`) and begins a new file after each `prepare`. A published file has a plain
name. Names never repeat, so to publish twice is harmless. The name of a file has its run, sink and writer.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.connectors import folders, hidden
from tailrace.connectors.files.rolling import Roll
from tailrace.connectors.hidden import Columns, FileOrigin, Hidden, SinkFolder

_OF_AN_ATTEMPT = 1_000_000_000
"""Number of file numbers of one attempt: one each second for thirty years."""


class FileWriter(SinkWriter):
    """A writer that makes one file under cover per transaction, with the first record of the transaction."""

    suffix = ""

    def __init__(
        self, place: str | SinkFolder, ctx: SinkContext, roll: Roll | None = None, numbers: Iterator[int] | None = None
    ) -> None:
        self.folder = folders.folder_at(place) if isinstance(place, str) else place
        self.hidden: Hidden | None = None
        self._ctx = ctx
        self._roll = roll or Roll()
        self._numbers = file_numbers(ctx) if numbers is None else numbers
        self._begun_at = 0.0
        self._tokens: list[bytes] = []
        """Tokens of files of this transaction that have ended."""

    def _begin(self) -> Any:
        """The binary file of the current transaction, made if it is not there yet."""
        if self.hidden is None:
            ctx = self._ctx
            number = next(self._numbers)
            name = hidden.name_of(ctx.subtask, ctx.run_id, ctx.incarnation, ctx.uid, number, self.suffix)
            self.hidden, self._begun_at = self.folder.create(name), time.monotonic()
        return self.hidden.stream

    def _roll_by_time(self) -> None:
        """Ends the file if it is too old for another batch."""
        seconds = self._roll.seconds
        if seconds is not None and self.hidden is not None and time.monotonic() - self._begun_at >= seconds:
            self._end_file()

    def _roll_by_size(self) -> None:
        """Ends the file if it is large enough."""
        if self._roll.bytes is not None and self.hidden is not None and self.hidden.stream.tell() >= self._roll.bytes:
            self._end_file()

    def _end_file(self) -> None:
        """Makes the file whole, and durable."""
        if self.hidden is not None:
            self._flush()
            token, self.hidden = self.hidden.finish(), None
            self._tokens.append(self._token(token))

    def _token(self, token: bytes) -> bytes:
        """The token of a file, with more notes of it."""
        return token

    def _flush(self) -> None:
        """Makes the last writes of a transaction."""

    def prepare(self) -> bytes | None:
        self._end_file()
        tokens, self._tokens = self._tokens, []
        return hidden.group(tokens)

    def took_over(self) -> None:
        sweep_lost(self.folder, self._ctx)

    def close(self) -> None:
        if self.hidden is not None:
            self.hidden.discard()
            self.hidden = None


def file_numbers(ctx: SinkContext) -> Iterator[int]:
    """The numbers of the files of a writer. A worker that replaces a lost one works in its incarnation: the files of each
    attempt have numbers of their own."""
    return itertools.count(ctx.attempt * _OF_AN_ATTEMPT)


def sweep_lost(folder: SinkFolder, ctx: SinkContext) -> None:
    """Removes what the lost worker that this one replaces has left under cover."""
    place = ctx.run_id, ctx.incarnation, hidden.whose(ctx.uid), ctx.subtask
    first = ctx.attempt * _OF_AN_ATTEMPT

    def is_lost(of: FileOrigin) -> bool:
        return (of.run_id, of.incarnation, of.whose, of.subtask) == place and of.count < first

    with contextlib.suppress(OSError):  # files that stay are removed at the end of the run, or by the next start
        folder.sweep(is_lost, set(), traces=False)


class Agreement:
    """The columns of a sink's published files, for each run and sink in the names of the files. It is not kept over a
    restore: restored writers go on with the columns that they had."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[Columns, str]] = {}
        """(run id, sink) -> the columns, and the first file that had them."""

    def check(self, prepared: Sequence[bytes]) -> None:
        """Raises `ValueError` if the columns of files differ."""
        found = dict(self._found)
        for made in (made for token in prepared for made in hidden.files_in(token)):
            name = hidden.name_of_file(made).rpartition("/")[2]
            origin = hidden.origin_of(name)
            if made.columns is None or origin is None:
                continue
            first, where = found.setdefault((origin.run_id, origin.whose), (made.columns, name))
            if first != made.columns:
                raise ValueError(_disagreement(first, where, made.columns, name))
        self._found = found


def _disagreement(one: Columns, where: str, other: Columns, there: str) -> str:
    return (
        f"its subtasks received different columns: {_difference(dict(one), dict(other))} ({where}, {there}); no schema is "
        f"declared, so each subtask took the columns of its first batch. None of these files becomes visible: give the "
        f"sink a schema, or the stream one with to_columns(schema), and start anew, or from an earlier checkpoint"
    )


def _difference(one: dict[str, str], other: dict[str, str]) -> str:
    for name, kind in one.items():
        if name not in other:
            return f"column {name!r} is in one file and not in the other"
        if kind != other[name]:
            return f"column {name!r} is {kind} in one file and {other[name]} in the other"
    new = [name for name in other if name not in one]
    if new:
        return f"column {new[0]!r} is in one file and not in the other"
    return f"({', '.join(one)}) and ({', '.join(other)})"


class FileSink(Sink):
    """A sink whose writers are `FileWriter`s."""

    one_publisher = True
    same_columns = True
    """True if all files of the sink must have equal columns. Such a sink cannot go on from a checkpoint in which its
    subtasks had different columns, nor with columns other than there."""
    path: str | None = None
    """The folder, a path or URL; None until it is known."""
    _unsettled: frozenset[bytes] = frozenset()
    """Tokens of files that this object has published and may have to publish again: their traces stay."""
    _agreement: Agreement | None = None
    """The check of the columns of published files; None until the first publication."""

    @property
    def out_of_reach(self) -> tuple[type[Exception], ...]:
        # s3fs and adlfs pass errors of their clients on as they are.
        clients = (("botocore.exceptions", "BotoCoreError"), ("azure.core.exceptions", "AzureError"))
        found = [getattr(sys.modules[module], name) for module, name in clients if module in sys.modules]
        return (OSError, *found)

    @property
    def permanent(self) -> tuple[type[Exception], ...]:
        return (*super().permanent, ValueError, msgspec.DecodeError)

    @property
    def place(self) -> str | None:
        return self.path

    def publish(self, prepared: Sequence[bytes]) -> None:
        self._agreement = self._agreement or Agreement()
        self._agreement.check(prepared)
        self._make_visible(prepared)
        self._unsettled |= frozenset(prepared)

    def _make_visible(self, prepared: Sequence[bytes]) -> None:
        folders.publish_files(prepared)

    def settled(self, prepared: Sequence[bytes]) -> None:
        folders.settle_files(prepared)
        self._unsettled -= frozenset(prepared)

    def recover(self, run_ids: Sequence[str], incarnation: int, uid: str) -> None:
        whose = hidden.whose(uid)
        self._sweep(
            lambda of: of.run_id in run_ids and of.incarnation < incarnation and of.whose == whose,
            list(self._unsettled),
        )

    def _folder(self, path: str) -> SinkFolder:
        """The folder of the sink's files."""
        return folders.folder_at(path)

    def _sweep(self, goes: Callable[[FileOrigin], bool], keep: Sequence[bytes] = ()) -> None:
        if self.path is not None:
            self._folder(self.path).sweep(goes, hidden.names_in(keep))


def remove_unfinished(sink: Sink, run_id: str, uid: str | None = None, keep: Sequence[bytes] = ()) -> None:
    """Removes what an ended run left under cover: files of killed workers, prepared files that will never be published, and
    the traces of published files. `keep` is the output that sinks prepared for a checkpoint that stays: a later start
    publishes it, or needs to know that it was published. Without a `uid` it removes the files of all sinks of the run in
    that folder."""
    if isinstance(sink, FileSink):
        whose = None if uid is None else hidden.whose(uid)
        sink._sweep(lambda of: of.run_id == run_id and whose in (None, of.whose), keep)


def remove_given_up(prepared: Iterable[bytes], run_ids: Collection[str]) -> list[str]:
    """Removes all that these runs have left under cover in the folders of their prepared files, which will not be published.
    Skips what sinks without files have prepared. Returns the folders."""
    places: set[str] = set()
    for token in prepared:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            places |= {hidden.folder_of(made) for made in hidden.files_in(token)}
    for place in places:
        folders.folder_at(place).sweep(lambda of: of.run_id in run_ids, set())
    return sorted(places)
