"""A savepoint that a user makes: its folder, the parts it takes over from a checkpoint, and the manifest that makes it real.

Parts that are taken over are copied block by block and not decoded, unless the savepoint has more key groups
(`key_group_split`). The keyed state of changed operators is written by `writing`; their state that is not keyed is taken
over, but for broadcast states that are made anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from tailrace.elements.valueclasses import Shapes, merge
from tailrace.errors import ConfigError, InternalError
from tailrace.state.format import ChannelLog, Index, OperatorPart, Placed, TableInfo
from tailrace.state.manifest import Manifest, OperatorRecord, Prepared, StateFile, encode_savepoint
from tailrace.state.paths import state_file
from tailrace.statedata.inputs import readers_of, unread_inputs
from tailrace.statedata.key_group_split import Dealing
from tailrace.statedata.listings import reading_within
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.statedata.writing import CHECKPOINT, INCARNATION, OperatorJob, kept_blocks
from tailrace.storage.opening import open_folder
from tailrace.storage.origins import origin_at
from tailrace.storage.reading import load_index, read_logs, read_placed
from tailrace.storage.savepoints import Located, begin, check_place, copy_inputs, seal
from tailrace.storage.store import Store
from tailrace.task.channels.channel_logs import restored_frame
from tailrace.task.subtask.snapshot import FileBuilder

_AT_ONCE = 64 << 20
"""Approximate number of bytes of state that are copied together."""


@dataclass(frozen=True)
class CheckpointPlan:
    """The content of a new savepoint."""

    job: str
    max_parallelism: int
    changed: Sequence[OperatorJob] = ()
    """The operators whose keyed state is written anew."""
    base: StoredCheckpoint | None = None
    """The checkpoint from which everything else is taken over."""
    dropped: Collection[str] = ()
    """The uids of operators of that checkpoint of which nothing is taken over."""

    def __post_init__(self) -> None:
        clashing = {one.uid for one in self.changed} & set(self.dropped)
        if clashing:
            raise InternalError(f"operators that are dropped and changed: {sorted(clashing)}")
        if self.base is not None:
            Dealing(self.base, self.max_parallelism).check(self.dropped)


def new_folder(
    path: str, job: str, options: Mapping[str, Any] | None = None, base: StoredCheckpoint | None = None
) -> Store:
    """The folder of a new savepoint, reserved for this writer. Raises `ConfigError` if it is not empty, or if it lies in the
    folder of the job of `base`."""
    store = Store(path, job, folder=open_folder(os.fspath(path), options))
    check_place(store.folder, None if base is None else base.store.url)
    store.make()
    begin(store.folder)
    return store


def check_alone(base: StoredCheckpoint, dropped: Collection[str] = ()) -> None:
    """Raises `ConfigError` if parts taken over from a checkpoint would be of no use without the folder of its job. The files
    of DataFrames are taken over."""
    needed = reading_within(base, [base.manifest.root, base.store.url]) - {*dropped, *readers_of(base.manifest)}
    if needed:
        uid = min(needed)
        raise ConfigError(
            f"source {uid!r} of {base.url} reads files in the folder of its job's checkpoints, as those of a streaming "
            f"query, which a savepoint does not hold: leave it out, drop({uid!r}), or have the job read files of your own"
        )


def complete(store: Store, plan: CheckpointPlan, written: Sequence[StateFile], now: int, run_id: str) -> str:
    """Writes the parts that are taken over, and the manifest. Returns the path of the folder. `written` are the files of the
    changed operators, and `now` is the time, int64 microseconds since 1970. Raises `ConfigError` if a file that was
    written is not visible to this process."""
    files = sorted(written, key=lambda file: file.slot)
    _check_seen(store, files)
    prepared: list[Prepared] = []
    inputs: list[Located] = []
    if plan.base is not None:
        inputs = unread_inputs(plan.base.store, plan.base.manifest, plan.dropped)
        copy_inputs(inputs, store.folder, plan.base.store.storage_options)
        taken, prepared = _take_over(store, plan, plan.base)
        files.insert(0, taken)
    manifest = Manifest(
        job=plan.job,
        run_id=run_id,
        incarnation=INCARNATION,
        checkpoint=CHECKPOINT,
        timestamp=now,
        max_parallelism=plan.max_parallelism,
        slots=len(files),
        files=files,
        operators=_with_classes(store, _records(plan), written),
        prepared=prepared,
        size=sum(file.size for file in files),
        in_flight={} if plan.base is None else _without(plan.base.manifest.in_flight, plan.dropped),
        channels=[]
        if plan.base is None
        else [one for one in plan.base.manifest.channels if one.target not in plan.dropped],
        kind="savepoint",
        inputs=[file for _, file in inputs],
    )
    names = {file.name for file in files}
    store.delete([one for one in store.names(INCARNATION) if one.endswith(".state") and one not in names])
    seal(store.folder, encode_savepoint(manifest, output=True))
    return store.url


def give_up(store: Store) -> None:
    """Deletes all files of a savepoint that will not be completed."""
    store.folder.delete([entry.name for entry in store.folder.walk()])


def _check_seen(store: Store, files: Sequence[StateFile]) -> None:
    for file in files:
        try:
            size = store.size(file.name)
        except FileNotFoundError:
            size = -1
        if size != file.size:
            raise ConfigError(
                f"{store.url_of(file.name)} was written by an executor and is not there for the driver: they do not share "
                f"this folder; name a path or URL that all of them reach"
            )


def _without(sizes: Mapping[str, int], dropped: Collection[str]) -> dict[str, int]:
    return {uid: size for uid, size in sizes.items() if uid not in dropped}


def _records(plan: CheckpointPlan) -> list[OperatorRecord]:
    changed = {one.uid: one for one in plan.changed}
    found = []
    for record in plan.base.manifest.operators if plan.base is not None else ():
        if record.uid in plan.dropped:
            continue
        job = changed.pop(record.uid, None)
        if job is not None:
            record = msgspec.structs.replace(record, tables=job.infos(), stateful=True, own=_own(record.own, job))
        found.append(record)
    for one in changed.values():
        found.append(OperatorRecord(one.uid, one.name, 1, [False], one.infos(), True, own=_own([], one)))
    return found


def _own(old: list[TableInfo], job: OperatorJob) -> list[TableInfo]:
    """The descriptions of what an operator has beside keyed state."""
    left = [one for one in old if one.name not in job.copies and one.name not in job.gone]
    return [*left, *(info for info, _ in job.copies.values())]


def _with_classes(store: Store, records: list[OperatorRecord], written: Sequence[StateFile]) -> list[OperatorRecord]:
    """The operators, with the classes of all values that were written."""
    found: dict[tuple[str, str], Shapes] = {}
    for file in written:
        for part in load_index(store, file.name).operators:
            for table in part.tables:
                found[part.uid, table.name] = merge(found.get((part.uid, table.name), ()), table.classes)
    return [
        msgspec.structs.replace(
            record,
            tables=[
                msgspec.structs.replace(one, classes=merge(one.classes, found.get((record.uid, one.name), ())))
                for one in record.tables
            ],
        )
        for record in records
    ]


# Parts that are taken over.


def _take_over(store: Store, plan: CheckpointPlan, base: StoredCheckpoint) -> tuple[StateFile, list[Prepared]]:
    name = state_file(INCARNATION, CHECKPOINT, 0, 0)
    index = Index(plan.job, INCARNATION, CHECKPOINT, 0, plan.max_parallelism)
    builder = FileBuilder(name, index)
    writer = store.writer(name)

    def send() -> None:
        for piece in builder.fresh:
            writer.append(piece)
        builder.fresh.clear()

    try:
        dealing = Dealing(base, plan.max_parallelism)
        _copy_logs(builder, plan, dealing, send)
        changed = {one.uid: one for one in plan.changed}
        for part in [part for one in base.indexes.values() for part in one.operators]:
            if part.uid not in plan.dropped:
                _copy_operator(builder, dealing, part, changed.get(part.uid), send)
        prepared = [Prepared(one.uid, _place(builder, base, one.data)) for one in _unpublished_output(plan, base)]
        builder.finish()
        send()
        writer.close()
    except BaseException:
        writer.discard()
        raise
    return StateFile(0, name, builder.offset), prepared


def _unpublished_output(plan: CheckpointPlan, base: StoredCheckpoint) -> list[Prepared]:
    """Prepared output that may not be visible, and that no other run may ever publish."""
    if origin_at(base.store, base.name).marked():
        return []
    return [one for one in base.manifest.prepared if one.uid not in plan.dropped]


def _place(builder: FileBuilder, base: StoredCheckpoint, data: bytes | Placed) -> bytes | Placed:
    return builder.add_prepared(read_placed(base.store, data)) if isinstance(data, Placed) else data


def _copy_logs(builder: FileBuilder, plan: CheckpointPlan, dealing: Dealing, send: Callable[[], None]) -> None:
    base, copies = dealing.base, dict[Any, ChannelLog]()
    for file, index in base.indexes.items():
        for one in read_logs(base.store, file, index):
            if one.uid in plan.dropped:
                continue
            place = one.channel, one.kind, one.age, one.turn
            if place not in copies:
                copies[place] = ChannelLog(one.channel, one.parallelism, [], one.kind, one.age, one.turn)
            frame = restored_frame(one, one.uid, one.channel.target_subtask, as_it_is=True)
            builder.add_frame(copies[place], dealing.frame(frame))
            send()


def _copy_operator(
    builder: FileBuilder, dealing: Dealing, part: OperatorPart, job: OperatorJob | None, send: Callable[[], None]
) -> None:
    """Copies the state of a subtask; of an operator that is changed, only the state that is not keyed."""
    base, part = dealing.base, msgspec.structs.replace(part, meta=dealing.meta(part))
    tables: list[TableInfo] = list(part.tables) if job is None else job.infos()
    meta = part.meta if job is None else job.meta(part)
    copy = msgspec.structs.replace(part, meta=meta, tables=tables, blocks=[], full=[], chains={}, feedback=[])
    full: list[int] = []
    if job is None and part.chains:
        names = {table.name for table in base.operator(part.uid).tables} | {table.name for table in tables}
        for groups in _together(base, part, names):
            found = kept_blocks(dealing, part.uid, groups, names, tables)
            for group in sorted(group for group in found if group % dealing.old in part.chains):
                for block in found[group]:
                    builder.add(copy, block)
                full.append(group)
            send()
    builder.close_part(copy, full, dict.fromkeys(full, (builder.name,)))


def _together(base: StoredCheckpoint, part: OperatorPart, names: Collection[str]) -> Iterator[range]:
    """The key groups whose chains are in a part, in ranges that are copied together."""
    weights = base.weights(part.uid, names)
    own = sorted(part.chains)
    first, taken = own[0], 0
    for i, group in enumerate(own):
        taken += weights.get(group, 0)
        if taken >= _AT_ONCE or i == len(own) - 1:
            yield range(first, group + 1)
            first, taken = group + 1, 0
