"""The reading of the state of a checkpoint: which files, in which order, and only the parts that a caller requests.
Unpickles nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from tailrace.errors import CheckpointCorrupt, CheckpointNotFound, ConfigError
from tailrace.state.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    BlockRef,
    ChannelLog,
    Index,
    LogKind,
    LogPiece,
    OperatorPart,
    Placed,
    TableInfo,
    check_block,
    check_header,
    checksum,
    index_place,
    read_index,
)
from tailrace.state.manifest import InputFile, Manifest
from tailrace.state.parts import AnewOf, BlockOf, ChainsOf, LogOf, MetaOf, Part, ShapeOf, TablesOf
from tailrace.state.paths import state_place

_RANGE = 4 << 20
"""Approximate limit in bytes up to which blocks that lie next to each other are read together."""
_FOR_GOOD = (CheckpointCorrupt, CheckpointNotFound, ConfigError, FileNotFoundError)


class Readable(Protocol):
    """A store that files can be read from."""

    def size(self, name: str) -> int: ...
    def read_range(self, name: str, offset: int, length: int) -> bytes: ...


def unreadable_for_good(error: Exception) -> bool:
    """True if another reading would fail with the same error: the data is damaged or missing, or the configuration is
    wrong."""
    return isinstance(error, _FOR_GOOD)


def load_index(store: Readable, name: str) -> Index:
    """The index of a state file. Raises `CheckpointCorrupt`, also for a file that is missing or lies in another file's
    place."""
    try:
        size = store.size(name)
        check_header(store.read_range(name, 0, HEADER_SIZE), name)
        footer = store.read_range(name, max(0, size - FOOTER_SIZE), FOOTER_SIZE)
        offset, length, expected = index_place(footer, size, name)
        return _check_place(name, read_index(store.read_range(name, offset, length), expected, name))
    except FileNotFoundError as error:
        raise _missing(name) from error


def _missing(name: str) -> CheckpointCorrupt:
    return CheckpointCorrupt(
        f"{name} is missing, and the checkpoint needs it; put it back from a backup, or start from another checkpoint"
    )


def _check_place(name: str, index: Index) -> Index:
    """The index, if it belongs to the file with this name. A file in the place of another one usually has the same
    operators, and its checksums match, so a restore would take state of another moment. Raises `CheckpointCorrupt`."""
    place = state_place(name)
    written = (index.incarnation, index.checkpoint, index.slot)
    if place is not None and place[:3] != written:
        raise CheckpointCorrupt(
            f"{name} was written by worker {index.slot} for checkpoint {index.checkpoint} of incarnation "
            f"{index.incarnation}: somebody has renamed or copied it. Put the right file back from a backup"
        )
    return index


def own_indexes(store: Readable, manifest: Manifest) -> dict[str, Index]:
    """The indexes of the files that a checkpoint wrote itself. Raises `CheckpointCorrupt` for a file that is not this
    checkpoint's."""
    indexes = {}
    for file in manifest.files:
        index = indexes[file.name] = load_index(store, file.name)
        named = (manifest.deployed or manifest.incarnation, manifest.checkpoint)
        if (index.incarnation, index.checkpoint) != named:
            raise CheckpointCorrupt(
                f"{file.name} belongs to checkpoint {index.checkpoint} of incarnation {index.incarnation}, and the manifest "
                f"to checkpoint {named[1]} of incarnation {named[0]}"
            )
        if store.size(file.name) != file.size:
            raise CheckpointCorrupt(f"{file.name} has {store.size(file.name)} bytes; the manifest says {file.size}")
    return indexes


def check_input(store: Readable, file: InputFile) -> None:
    """Raises `CheckpointCorrupt` if an input of a savepoint is gone, or is of another size than it was."""
    try:
        size = store.size(file.name)
    except FileNotFoundError:
        raise CheckpointCorrupt(
            f"{file.name}, which source {file.uid!r} reads, is gone; put it back from a backup, or start from another one"
        ) from None
    if size != file.size:
        raise CheckpointCorrupt(f"{file.name}, which source {file.uid!r} reads, has {size} bytes, and had {file.size}")


def read_state(
    store: Readable,
    manifest: Manifest,
    required: Mapping[str, tuple[int, int]],
    *,
    tables: Collection[str] | None = None,
    held: Mapping[str, Mapping[int, tuple[str, ...]]] | None = None,
    worker: int | None = None,
) -> Iterator[Part]:
    """The parts of a checkpoint for these operators (uid -> key groups [first, last)), in the order in which a restore
    applies them. Holds one range of blocks in memory at a time. With `tables`, yields no blocks of other tables and no
    records in flight: for a caller that looks at state and restores nothing. `held` names the files that the caller has
    applied already, by uid and key group. If the chain of a group goes on from these files, only the files behind them
    are read; else `AnewOf` is yielded, and then all of the group. With `worker`, yields only records in flight in that
    worker's own channels: on their way to it, or waiting in it."""
    had = _Had({} if held is None else held)
    indexes = own_indexes(store, manifest)
    needed: dict[str, dict[str, set[int]]] = {}
    """File -> uid -> key groups of which the file holds a part."""
    first: dict[str, list[tuple[str, int]]] = {}
    """File -> key groups whose chain begins with it."""
    for file, index in list(indexes.items()):
        for log in index.logs if tables is None else ():
            if _is_required(log, required, worker):
                yield from _log(store, file, index, log)
                if log.shape:
                    yield ShapeOf(log.channel, log.kind, log.age, log.turn, log.shape)
        for part in index.operators:
            if part.uid in required:
                yield MetaOf(part.uid, part.subtask, part.parallelism, part.finished, part.meta)
                yield TablesOf(part.uid, part.tables)
                chains = _chains(index, part, required[part.uid])
                yield ChainsOf(part.uid, chains)
                for group, names in chains.items():
                    more = had.behind(part.uid, group, names)
                    if more == names:
                        first.setdefault(names[0], []).append((part.uid, group))
                    for name in more:
                        needed.setdefault(name, {}).setdefault(part.uid, set()).add(group)
    yield from had.anew()
    for name in needed:
        if name not in indexes:
            indexes[name] = load_index(store, name)
    for name, begun in first.items():
        full = {(part.uid, group) for part in indexes[name].operators for group in part.full}
        if not full.issuperset(begun):
            uid, group = next(one for one in begun if one not in full)
            raise CheckpointCorrupt(f"{name} is damaged: it lacks the whole of key group {group} of {uid!r}")
    # Chains are in order of time. Files are sorted by time, so one pass over them keeps the order of every chain.
    for name in sorted(needed, key=lambda n: (indexes[n].incarnation, indexes[n].checkpoint)):
        yield from _blocks(store, name, indexes[name], needed[name], tables)


class _Had:
    """Files that the caller holds already, and the check which of them still count."""

    def __init__(self, held: Mapping[str, Mapping[int, tuple[str, ...]]]) -> None:
        self._held = held
        self._stale = {(uid, group) for uid, groups in held.items() for group in groups}

    def behind(self, uid: str, group: int, chain: tuple[str, ...]) -> tuple[str, ...]:
        """The files of a chain that are to be read: the files behind the held ones, or the whole chain if it does not begin
        with the held ones."""
        held = self._held.get(uid, {}).get(group, ())
        if not held or chain[: len(held)] != held:
            return chain
        self._stale.discard((uid, group))
        return chain[len(held) :]

    def anew(self) -> Iterator[AnewOf]:
        """The held key groups whose chain does not go on from the held files, or that have no chain any more."""
        return (AnewOf(uid, group) for uid, group in sorted(self._stale))


def _is_required(log: ChannelLog, required: Mapping[str, tuple[int, int]], worker: int | None) -> bool:
    """True if the records of a log are to be read."""
    channel = log.channel
    if worker is None:
        return channel.target in required
    return worker == (channel.source_subtask if log.kind is LogKind.SENT else channel.target_subtask)


def _log(store: Readable, name: str, index: Index, log: ChannelLog) -> Iterator[LogOf]:
    """The records in flight in one channel. The operator that restores them picks its own among them."""
    read: tuple[str, int] | None = None
    data = b""
    for piece in log.pieces:
        file = _file_of(piece, name, index)
        if read != (file, piece.offset):  # several pieces may belong to one frame
            try:
                data = store.read_range(file, piece.offset, piece.length)
            except FileNotFoundError as error:
                raise _missing(file) from error
            read = file, piece.offset
        check_block(data, piece, file)
        yield LogOf(
            log.channel,
            log.parallelism,
            piece.count,
            memoryview(data),
            piece.start,
            piece.groups,
            piece.round,
            log.kind,
            log.age,
            log.turn,
            piece.stop,
            Placed(file, piece.offset, piece.length, piece.checksum),
        )


def _file_of(piece: LogPiece, name: str, index: Index) -> str:
    if piece.file >= len(index.files):
        raise CheckpointCorrupt(f"{name} is damaged: a log refers to file {piece.file} of {len(index.files)}")
    return name if piece.file < 0 else index.files[piece.file]


def _chains(index: Index, part: OperatorPart, groups: tuple[int, int]) -> dict[int, tuple[str, ...]]:
    first, last = groups
    return {
        group: tuple(index.files[i] for i in chain) for group, chain in part.chains.items() if first <= group < last
    }


def _blocks(
    store: Readable, name: str, index: Index, needed: dict[str, set[int]], tables: Collection[str] | None
) -> Iterator[Part]:
    chosen: list[tuple[OperatorPart, BlockRef]] = [
        (part, block)
        for part in index.operators
        if part.uid in needed
        for block in part.blocks
        if block.group in needed[part.uid] and (tables is None or _table(part, block, name).name in tables)
    ]
    chosen.sort(key=lambda pair: pair[1].offset)
    at = 0
    while at < len(chosen):
        run = at + 1
        start = chosen[at][1].offset
        end = start + chosen[at][1].length
        while run < len(chosen) and chosen[run][1].offset == end and end - start < _RANGE:
            end += chosen[run][1].length
            run += 1
        try:
            data = memoryview(store.read_range(name, start, end - start))
        except FileNotFoundError as error:
            raise _missing(name) from error
        for part, block in chosen[at:run]:
            piece = data[block.offset - start : block.offset - start + block.length]
            check_block(piece, block, name)
            yield BlockOf(part.uid, _table(part, block, name), block.group, block.count, piece)
        at = run


def _table(part: OperatorPart, block: BlockRef, name: str) -> TableInfo:
    if block.table >= len(part.tables):
        raise CheckpointCorrupt(f"{name} is damaged: it has no table {block.table} of {part.uid!r}")
    return part.tables[block.table]


def read_logs(store: Readable, name: str, index: Index) -> Iterator[LogOf]:
    """The records in flight that a file holds or refers to."""
    for log in index.logs:
        yield from _log(store, name, index, log)


def read_placed(store: Readable, placed: Placed) -> bytes:
    """Prepared output of a sink that a state file holds. Raises `CheckpointCorrupt`."""
    try:
        data = store.read_range(placed.file, placed.offset, placed.length)
    except FileNotFoundError as error:
        raise CheckpointCorrupt(f"{placed.file} is missing, and holds output that a sink has prepared") from error
    if len(data) != placed.length or checksum(data) != placed.checksum:
        raise CheckpointCorrupt(
            f"{placed.file} is damaged: the prepared output of a sink, {placed.length} bytes at {placed.offset}, does not "
            f"match its checksum"
        )
    return data


def verify(store: Readable, manifest: Manifest) -> None:
    """Reads every block that a restore of the whole checkpoint would read, and all prepared output of sinks, and looks
    whether all inputs are there. Raises `CheckpointCorrupt`."""
    everything = {
        part.uid: (0, manifest.max_parallelism)
        for index in own_indexes(store, manifest).values()
        for part in index.operators
    }
    for _ in read_state(store, manifest, everything):
        pass
    for one in manifest.prepared:
        if isinstance(one.data, Placed):
            read_placed(store, one.data)
    for file in manifest.inputs:
        check_input(store, file)
