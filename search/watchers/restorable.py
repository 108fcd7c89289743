"""Checks that every checkpoint of a simulated job can be restored, not only the newest.

At each cut the keyed state of each operator is copied. When a manifest is committed, the whole checkpoint is read back
from its files, and must equal the copies. As long as it is kept, none of its files may be deleted.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from unittest import mock

import msgspec

from search.watchers.checker import Book, WatchedFiles
from search.watchers.tables import entries_of
from tailrace.coordinator.durability.checkpoints import Checkpoints
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import decode as decode_frame
from tailrace.elements.plainkeys import plain_key
from tailrace.errors import TailraceError
from tailrace.state.codecs import unpack
from tailrace.state.format import JOINED, TableInfo
from tailrace.state.layers import LayeredBackend
from tailrace.state.manifest import Manifest, decode_manifest
from tailrace.state.parts import BlockOf, LogOf, MetaOf
from tailrace.state.paths import manifest_place
from tailrace.state.ttl import plain_encoding, stamped_decoder
from tailrace.storage.manifest_slots import holds_manifest
from tailrace.storage.reading import own_indexes, read_state
from tailrace.task.operators.stores.chunks import BLOCK, read_block
from tailrace.task.subtask.snapshot import TaskSnapshot, read_meta

Entries = dict[Any, Any]
Place = tuple[str, str]
"""(uid, table)."""


class Restorable:
    """An observer of the checkpoints of one simulated job. Errors are in `wrong`."""

    def __init__(self, files: WatchedFiles, book: Book) -> None:
        self.files, self.book = files, book
        self.wrong: list[str] = []
        self.kept: dict[str, set[str]] = {}
        """Manifest -> the files that it needs, for manifests that have not been given up."""
        self._cuts: dict[tuple[int, int], dict[Place, dict[int, bytes]]] = {}
        """(incarnation, checkpoint) -> keyed state at the cut, by subtask."""
        self._incarnation = 0
        self._run_of: dict[str, str] = {}
        """Manifest -> its run."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[Restorable]:
        """A context in which it observes."""
        freeze, cut = LayeredBackend.freeze, TaskSnapshot._freeze
        surplus, give_up_all, claimed = Checkpoints.surplus, Checkpoints.give_up_all, Checkpoints.claim_done

        def cutting(snapshot: TaskSnapshot, operator: Any, reached: int, arrived: int) -> None:
            self._incarnation = operator.ctx.services.incarnation
            with mock.patch.object(LayeredBackend, "freeze", freezing):  # a replayed cut writes nothing
                cut(snapshot, operator, reached, arrived)

        def freezing(backend: LayeredBackend, request: CutRequest) -> None:
            self._copy(backend, request.number)
            freeze(backend, request)

        def giving_up(what: Callable[..., list[str]]) -> Callable[..., list[str]]:
            def given_up(checkpoints: Checkpoints, *unmarked: Any) -> list[str]:
                before = {one.path for one in checkpoints._kept}
                names = what(checkpoints, *unmarked)
                for path in before - {one.path for one in checkpoints._kept}:
                    self.kept.pop(path, None)
                return names

            return given_up

        def claiming(checkpoints: Checkpoints, manifest: Manifest | None, path: str) -> None:
            if (
                manifest is not None and not checkpoints._kept
            ):  # the successor of a lost coordinator knows the newest only
                run = self._run_of.get(path)
                for older in [one for one in self.kept if one != path and self._run_of[one] == run]:
                    del self.kept[older]
            claimed(checkpoints, manifest, path)

        with (
            mock.patch.object(TaskSnapshot, "_freeze", cutting),
            mock.patch.object(Checkpoints, "surplus", giving_up(surplus)),
            mock.patch.object(Checkpoints, "give_up_all", giving_up(give_up_all)),
            mock.patch.object(Checkpoints, "claim_done", claiming),
            mock.patch.object(self.files, "_make", self._make(self.files._make)),
            mock.patch.object(self.files, "delete", self._delete(self.files.delete)),
        ):
            yield self

    def errors(self) -> list[str]:
        """Errors since the last call."""
        wrong, self.wrong = self.wrong, []
        return wrong

    def _copy(self, backend: LayeredBackend, checkpoint: int) -> None:
        tables = self._cuts.setdefault((self._incarnation, checkpoint), {})
        for name, table in backend.tables.items():
            tables.setdefault((backend.uid, name), {})[backend.subtask] = pickle.dumps(dict(entries_of(table)))

    def _make(self, made: Callable[[str, bytes], None]) -> Callable[[str, bytes], None]:
        def create(name: str, data: bytes) -> None:
            made(name, data)
            if manifest_place(name) is not None and holds_manifest(data):
                self._commit(name, decode_manifest(data, name))

        return create

    def _delete(self, delete: Callable[[Iterable[str]], None]) -> Callable[[Iterable[str]], None]:
        def delete_all(names: Iterable[str]) -> None:
            listed = list(names)
            for manifest, needed in self.kept.items():
                for name in needed.intersection(listed):
                    if name in self.files.contents:
                        self.wrong.append(f"{name} was deleted, and {manifest}, which is kept, needs it")
            delete(listed)

        return delete_all

    def _commit(self, name: str, manifest: Manifest) -> None:
        self._run_of[name] = manifest.run_id
        self.kept[name] = {name, *(file.name for file in manifest.files), *manifest.older}
        try:
            found = content(self.files, manifest)
        except TailraceError as error:
            self.wrong.append(f"{name} was committed and cannot be restored: {type(error).__name__}: {error.args[0]}")
            return
        cut = self._cuts.pop((manifest.incarnation, manifest.checkpoint), {})
        for place, by_subtask in cut.items():
            held: Entries = {}
            for data in by_subtask.values():
                held |= pickle.loads(data)
            read = found.get(place, {})
            what = differs(held, read)
            if what and place[1] == JOINED.name:  # another worker, which follows this one, may have made other blocks
                what = differs(*kept_in_both(held, read))
            if what:
                self.wrong.append(f"{name}: state {place[1]!r} of {place[0]!r} is not that of the cut: {what}")


def content(files: WatchedFiles, manifest: Manifest) -> Mapping[Place, Entries]:
    """All keyed state of a checkpoint, as a restore reads it. Everything else in it is read, too. Raises
    `CheckpointCorrupt`."""
    found: dict[Place, Entries] = {}
    uids = {part.uid for index in own_indexes(files, manifest).values() for part in index.operators}
    for part in read_state(files, manifest, dict.fromkeys(sorted(uids), (0, manifest.max_parallelism))):
        if isinstance(part, BlockOf):
            entries = found.setdefault((part.uid, part.table.name), {})
            decode = _decoder(part.table)
            block = unpack(part.data)
            for key in block.deleted:
                entries.pop(plain_key(key), None)
            for key, value in zip(block.keys, block.values, strict=True):
                entries[plain_key(key)] = value
            for key, single in zip(block.single_keys, block.singles, strict=True):
                entries[plain_key(key)] = decode(single)
        elif isinstance(part, MetaOf) and part.data is not None:
            read_meta(part.data)
        elif isinstance(part, LogOf):
            decode_frame(bytes(part.data))
    return found


class Opaque:
    """A value that cannot be read without its declared type."""


def _decoder(table: TableInfo) -> Callable[[Any], Any]:
    plain = pickle.loads if plain_encoding(table.encoding) == "pickle" else _readable
    return stamped_decoder(table.kind, plain) if table.stamps else plain


def _readable(data: bytes | memoryview) -> Opaque:
    msgspec.msgpack.decode(data)
    return Opaque()


def kept_in_both(held: Entries, found: Entries) -> tuple[Entries, Entries]:
    """The records that two states of a join in columns have both, by input and number. Which blocks have them, and how long
    blocks have records that event time has passed, depends on the cuts that a worker has made and given up."""
    ours, theirs = map(_records, (held, found))
    both = ours.keys() & theirs.keys()
    return {key: ours[key] for key in both}, {key: theirs[key] for key in both}


def _records(entries: Entries) -> Entries:
    found: Entries = {}
    for place in entries:
        if place[3] == BLOCK:
            block = read_block(entries, place).without_gone()
            rows = zip(
                block.seqs.tolist(), block.times.tolist(), block.marks.tolist(), block.data.to_pylist(), strict=True
            )
            found |= {(place[1], number): one for number, *one in rows}
    return found


def differs(held: Entries, found: Entries) -> str:
    """Description of the differences of two states; empty where they are equal."""
    if held == found:
        return ""
    found = {key: held.get(key) if isinstance(value, Opaque) else value for key, value in found.items()}
    lost = [key for key in held if key not in found]
    more = [key for key in found if key not in held]
    other = [key for key in held if key in found and held[key] != found[key] and repr(held[key]) != repr(found[key])]
    kinds = [("lost", lost), ("too many", more), ("changed", other)]
    return ", ".join(f"{len(keys)} {what}, as {keys[0]!r}" for what, keys in kinds if keys)
