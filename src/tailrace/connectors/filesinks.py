"""The base of sinks that write files: a writer makes one file per transaction, and the sink publishes it.

A writer writes under cover (`connectors.folders`) and begins a new file after each `prepare`. A published file has a plain
name. Names never repeat, so to publish twice is harmless. The name of a file has its run, sink and writer.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import msgspec

from tailrace.api.connectors import Sink, SinkContext, SinkWriter
from tailrace.connectors import folders, hidden
from tailrace.connectors.hidden import Columns, FileOrigin, Hidden, SinkFolder

_OF_AN_ATTEMPT = 1_000_000_000
"""Number of file numbers of one attempt: one each second for thirty years."""


class FileWriter(SinkWriter):
    """A writer that makes one file under cover per transaction, with the first record of the transaction."""

    suffix = ""

    def __init__(self, place: str | SinkFolder, ctx: SinkContext) -> None:
        self.folder = folders.folder_at(place) if isinstance(place, str) else place
        self.hidden: Hidden | None = None
        self._ctx = ctx
        # A worker that replaces a lost one works in its incarnation: the files of each attempt have numbers of their own.
        self._count = ctx.attempt * _OF_AN_ATTEMPT

    def _begin(self) -> Any:
        """The binary file of the current transaction, made if it is not there yet."""
        if self.hidden is None:
            ctx = self._ctx
            name = hidden.name_of(ctx.subtask, ctx.run_id, ctx.incarnation, ctx.uid, self._count, self.suffix)
            self._count += 1
            self.hidden = self.folder.create(name)
        return self.hidden.stream

    def _flush(self) -> None:
        """Makes the last writes of a transaction."""

    def prepare(self) -> bytes | None:
        if self.hidden is None:
            return None
        self._flush()
        token, self.hidden = self.hidden.finish(), None
        return token

    def took_over(self) -> None:
        ctx, whose = self._ctx, hidden.whose(self._ctx.uid)
        place = ctx.run_id, ctx.incarnation, whose, ctx.subtask
        first = ctx.attempt * _OF_AN_ATTEMPT

        def is_lost(of: FileOrigin) -> bool:
            return (of.run_id, of.incarnation, of.whose, of.subtask) == place and of.count < first

        with contextlib.suppress(OSError):  # files that stay are removed at the end of the run, or by the next start
            self.folder.sweep(is_lost, set(), traces=False)

    def close(self) -> None:
        if self.hidden is not None:
            self.hidden.discard()
            self.hidden = None


class Agreement:
    """The columns of a sink's published files, for each run and sink in the names of the files. It is not kept over a
    restore: restored writers go on with the columns that they had."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], tuple[Columns, str]] = {}
        """(run id, sink) -> the columns, and the first file that had them."""

    def check(self, prepared: Sequence[bytes]) -> None:
        """Raises `ValueError` if the columns of files differ."""
        found = dict(self._found)
        for token in prepared:
            columns = hidden.columns_in(token)
            name = hidden.plain_name(token).rpartition("/")[2]
            origin = hidden.origin_of(name)
            if columns is None or origin is None:
                continue
            first, where = found.setdefault((origin.run_id, origin.whose), (columns, name))
            if first != columns:
                raise ValueError(_disagreement(first, where, columns, name))
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
        botocore = sys.modules.get("botocore.exceptions")  # s3fs passes errors of botocore on as they are
        return (OSError,) if botocore is None else (OSError, botocore.BotoCoreError)

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
            self._folder(self.path).sweep(goes, {hidden.plain_name(one) for one in keep})


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
    places = set()
    for token in prepared:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
            places.add(hidden.plain_name(token).rpartition("/")[0])
    for place in places:
        folders.folder_at(place).sweep(lambda of: of.run_id in run_ids, set())
    return sorted(places)
