"""`tailrace inspect PATH`: shows the contents of a checkpoint or of one of its files. Nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from tailrace.cli.showing import echo
from tailrace.elements.byte_texts import size_text
from tailrace.errors import TailraceError
from tailrace.state.format import ChannelLog, Index
from tailrace.state.manifest import Manifest
from tailrace.state.paths import means_state_file
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.checkpoint_lookup import resolve
from tailrace.storage.opening import absolute, open_folder
from tailrace.storage.reading import load_index, own_indexes, verify
from tailrace.storage.store import Store

NOTHING = {"records": 0, "bytes": 0, "referred_bytes": 0}
_KINDS = ("name", "kind", "encoding", "type")


def inspect_command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="PATH", help="A checkpoint, a checkpoint folder, a job's folder in it, or a state file."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    every_byte: Annotated[bool, typer.Option("--verify", help="Read all state and check its checksums.")] = False,
) -> None:
    """Show what a checkpoint holds."""
    try:
        echo(inspect(path, as_json, every_byte))
    except (TailraceError, OSError) as error:
        echo(f"tailrace inspect: {error}", err=True)
        raise typer.Exit(1) from None


def inspect(path: str, as_json: bool = False, every_byte: bool = False) -> str:
    """The output of the command. `every_byte` reads all state and compares its checksums. Raises `CheckpointError`,
    `ConfigError` or `OSError` where the checkpoint cannot be read."""
    if means_state_file(path):
        folder, _, name = absolute(path).rpartition("/")
        index = load_index(open_folder(folder), name)
        report = {"file": absolute(path), **_of_file(index)}
        return json.dumps(report, indent=2) if as_json else "\n".join(_file_lines(report))
    store, name = resolve(path)
    manifest = store.manifest(name)
    if every_byte:
        verify(store, manifest)
    report = _of_checkpoint(store, name, manifest)
    return json.dumps(report, indent=2) if as_json else "\n".join(_checkpoint_lines(report))


def _of_checkpoint(store: Store, name: str, manifest: Manifest) -> dict[str, Any]:
    prepared: dict[str, int] = {}
    for one in manifest.prepared:
        prepared[one.uid] = prepared.get(one.uid, 0) + 1
    return {
        "path": store.url_of(name),
        "job": manifest.job,
        "run": manifest.run_id,
        "incarnation": manifest.incarnation,
        "checkpoint": manifest.checkpoint,
        "kind": manifest.kind,
        "final": manifest.final,
        "timestamp": manifest.timestamp,
        "time": _time(manifest.timestamp),
        "size": manifest.size,
        "max_parallelism": manifest.max_parallelism,
        "slots": manifest.slots,
        "operators": _operators(store, name, manifest),
        "files": [{"slot": file.slot, "name": file.name, "size": file.size} for file in manifest.files],
        "older": [{"name": older, "size": store.size(older)} for older in manifest.older],
        "prepared": prepared,
        "inputs": [{"uid": file.uid, "name": file.name, "size": file.size} for file in manifest.inputs],
    }


def _operators(store: Store, name: str, manifest: Manifest) -> list[dict[str, Any]]:
    """The operators, each with its tables and the entries and bytes that all of its subtasks hold in them. Deltas and
    deletions count, too."""
    held = StoredCheckpoint(store, name).sizes()
    indexes = list(own_indexes(store, manifest).values())
    around, overtaken = _records_in_flight(indexes, overtaken=False), _records_in_flight(indexes, overtaken=True)
    found = []
    for one in manifest.operators:
        tables = []
        for table in one.tables:
            entries, size = held.get((one.uid, table.name), (0, 0))
            tables.append({**{kind: getattr(table, kind) for kind in _KINDS}, "entries": entries, "bytes": size})
        found.append(
            {
                "uid": one.uid,
                "name": one.name,
                "parallelism": one.parallelism,
                "finished": sum(one.finished),
                "stateful": one.stateful,
                "tables": tables,
                "feedback": around.get(one.uid, NOTHING),
                "in_flight": overtaken.get(one.uid, NOTHING),
            }
        )
    return found


def _records_in_flight(indexes: Iterable[Index], *, overtaken: bool) -> dict[str, dict[str, int]]:
    """Counts of records in flight at the cut: the feedback, by the uid of the head of its loop; with `overtaken` the
    records that barriers had overtaken, by the uid of their reader."""
    found: dict[str, dict[str, int]] = {}
    seen: set[tuple[str | int, int]] = set()
    for index, log in [(of, log) for of in indexes for log in of.logs if log.overtaken is overtaken]:
        counted = found.setdefault(log.channel.target, dict(NOTHING))
        counted["records"] += sum(piece.count for piece in log.pieces)
        for piece in log.pieces:
            older = piece.file >= 0
            frame = (index.files[piece.file] if older else index.slot, piece.offset)
            if piece.count and frame not in seen:  # several pieces may be of one frame
                seen.add(frame)
                counted["bytes"] += piece.length
                counted["referred_bytes"] += piece.length if older else 0
    return found


def _of_file(index: Index) -> dict[str, Any]:
    """The contents of one file of one worker, without the files to which it refers."""
    operators, around, overtaken = (
        [],
        _records_in_flight([index], overtaken=False),
        _records_in_flight([index], overtaken=True),
    )
    for part in index.operators:
        tables = []
        for i, table in enumerate(part.tables):
            blocks = [block for block in part.blocks if block.table == i]
            counted = {"entries": sum(b.count for b in blocks), "bytes": sum(b.length for b in blocks)}
            tables.append({**{kind: getattr(table, kind) for kind in _KINDS}, **counted})
        operators.append(
            {
                "uid": part.uid,
                "name": part.name,
                "subtask": part.subtask,
                "parallelism": part.parallelism,
                "finished": part.finished,
                "meta_bytes": len(part.meta or b""),
                "full_groups": len(part.full),
                "tables": tables,
                "feedback": around.get(part.uid, NOTHING),
                "in_flight": overtaken.get(part.uid, NOTHING),
            }
        )
    return {
        "job": index.job,
        "incarnation": index.incarnation,
        "checkpoint": index.checkpoint,
        "slot": index.slot,
        "max_parallelism": index.max_parallelism,
        "refers_to": index.files,
        "operators": operators,
        "logs": [_of_log(log) for log in index.logs],
    }


def _of_log(log: ChannelLog) -> dict[str, Any]:
    """The records in flight in one channel."""
    return {
        "channel": str(log.channel),
        "records": sum(piece.count for piece in log.pieces),
        "bytes": sum(piece.length for piece in log.pieces),
        "pieces": len(log.pieces),
        "in_other_files": sum(piece.file >= 0 for piece in log.pieces),
    }


def _checkpoint_lines(report: dict[str, Any]) -> Iterator[str]:
    last = ", the last one of the job" if report["final"] else ""
    yield f"{report['path']}"
    yield f"  {report['kind']} {report['checkpoint']} of job {report['job']!r}{last}"
    yield f"  taken {report['time']} by run {report['run']}, incarnation {report['incarnation']}"
    yield f"  {size_text(report['size'])} written, {report['slots']} workers, {report['max_parallelism']} key groups"
    yield "operators"
    for operator in report["operators"]:
        finished = f", {operator['finished']} finished" if operator["finished"] else ""
        yield f"  {operator['uid']}  {operator['name']}, parallelism {operator['parallelism']}{finished}"
        yield from _table_lines(operator["tables"])
        yield from _in_flight_lines(operator)
    yield "files"
    for file in report["files"]:
        yield f"  worker {file['slot']}  {file['name']}  {size_text(file['size'])}"
    for older in report["older"]:
        yield f"  older     {older['name']}  {size_text(older['size'])}"
    for file in report["inputs"]:
        yield f"  of source {file['uid']}  {file['name']}  {size_text(file['size'])}"
    if report["prepared"]:
        yield "prepared by sinks"
        for uid, count in report["prepared"].items():
            yield f"  {uid}  {count}"


def _file_lines(report: dict[str, Any]) -> Iterator[str]:
    yield report["file"]
    yield f"  state of worker {report['slot']} in checkpoint {report['checkpoint']} of job {report['job']!r}"
    yield f"  incarnation {report['incarnation']}, {report['max_parallelism']} key groups"
    yield "operators"
    for operator in report["operators"]:
        finished = ", finished" if operator["finished"] else ""
        where = f"subtask {operator['subtask']} of {operator['parallelism']}"
        yield f"  {operator['uid']}  {operator['name']}, {where}{finished}, {size_text(operator['meta_bytes'])} not keyed"
        yield from _table_lines(operator["tables"])
        yield from _in_flight_lines(operator)
    if report["logs"]:
        yield "channels"
    for log in report["logs"]:
        older = f", {log['in_other_files']} of them in older files" if log["in_other_files"] else ""
        yield f"  {log['channel']}: {log['records']} records, {size_text(log['bytes'])}, {log['pieces']} pieces{older}"
    if report["refers_to"]:
        yield "refers to"
        yield from (f"  {name}" for name in report["refers_to"])


def _table_lines(tables: list[dict[str, Any]]) -> Iterator[str]:
    for table in tables:
        what = f"{table['kind']} {table['type']}".strip()
        yield f"    {table['name']}: {what}, {table['encoding']}, {table['entries']} entries, {size_text(table['bytes'])}"


def _in_flight_lines(operator: dict[str, Any]) -> Iterator[str]:
    for kind, where in (
        ("feedback", "on its way around the loop"),
        ("in_flight", "in flight to it, overtaken by barriers"),
    ):
        counted = operator[kind]
        if counted["records"]:
            older = (
                f", {size_text(counted['referred_bytes'])} of it in older files" if counted["referred_bytes"] else ""
            )
            yield f"    {where}: {counted['records']} records, {size_text(counted['bytes'])}{older}"


def _time(micros: int) -> str:
    return datetime.fromtimestamp(micros / 1e6, UTC).isoformat(sep=" ", timespec="seconds")
