"""A local folder, and a bucket behind a real S3 server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.elements.frame_codec import ChannelName
from tailrace.state.format import (
    BlockRef,
    ChannelLog,
    Index,
    LogPiece,
    OperatorPart,
    TableInfo,
    checksum,
    header,
    tail,
)
from tailrace.state.manifest import Manifest, StateFile, encode_manifest
from tailrace.storage.store import Store


@pytest.fixture(params=["local", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for checkpoints."""
    if request.param == "local":
        return str(tmp_path / "checkpoints")
    return f"{request.getfixturevalue('s3_url')}/some/checkpoints"


def manifest_of(checkpoint: int, incarnation: int = 1, **more: Any) -> Manifest:
    """A manifest of a checkpoint without state."""
    fields: dict[str, Any] = {"job": "job", "run_id": "run", "timestamp": checkpoint, "max_parallelism": 8, "slots": 1}
    return Manifest(incarnation=incarnation, checkpoint=checkpoint, **(fields | {"files": []} | more))


@pytest.fixture
def manifest() -> Callable[..., Manifest]:
    return manifest_of


Blocks = list[tuple[str, int, int, bytes]]
"""(uid, table, key group, data) in the order in which they are written."""


class Maker:
    """Makes checkpoints: each with one file per slot."""

    def __init__(self, store: Store, incarnation: int) -> None:
        self.store, self.incarnation = store, incarnation
        self.number = 0

    def file(
        self,
        checkpoint: int,
        slot: int,
        blocks: Blocks,
        chains: dict[str, dict[int, list[str]]],
        logs: dict[ChannelName, list[bytes | tuple[str, LogPiece]]] | None = None,
    ) -> StateFile:
        """The file of one worker. Of `chains`, `.` is the file itself. Groups with a chain that begins here are full. Of
        `logs`, bytes are a frame of one record, and a piece is one of the file that is named."""
        name = f"{self.incarnation}/chk-{checkpoint}/w{slot}-0.state"
        index = Index("job", self.incarnation, checkpoint, slot, 8)
        tables = [TableInfo("sum", "reducing", "pickle", "int"), TableInfo("seen", "map", "msgspec", "dict[str, int]")]
        data = bytearray(header())
        parts = {uid: OperatorPart(uid, uid.title(), slot, 2, False, b"meta" + uid.encode(), tables) for uid in chains}
        for uid, table, group, block in blocks:
            ref = BlockRef(table, group, len(data), len(block), checksum(block), 1)
            parts[uid].blocks.append(ref)
            data += block
        for uid, part in parts.items():
            for group, files in chains[uid].items():
                names = [name if one == "." else one for one in files]
                index.files += [one for one in names if one not in index.files]
                part.chains[group] = [index.files.index(one) for one in names]
                if files[0] == ".":
                    part.full.append(group)
        for channel, pieces in (logs or {}).items():
            log = ChannelLog(channel, 2)
            for piece in pieces:
                if isinstance(piece, bytes):
                    log.pieces.append(LogPiece(len(data), len(piece), checksum(piece), 1))
                    data += piece
                else:
                    index.files += [piece[0]] if piece[0] not in index.files else []
                    log.pieces.append(msgspec.structs.replace(piece[1], file=index.files.index(piece[0])))
            index.logs.append(log)
        index.operators = list(parts.values())
        data += tail(index, len(data))
        writer = self.store.writer(name)
        writer.append(bytes(data))
        writer.close()
        return StateFile(slot, name, len(data))

    def commit(self, checkpoint: int, files: list[StateFile], **more: Any) -> str:
        """The manifest."""
        made = manifest_of(checkpoint, self.incarnation, files=files, slots=len(files), **more)
        self.number += 1
        return self.store.commit(self.incarnation, self.number - 1, self.number, encode_manifest(made))


@pytest.fixture
def maker() -> type[Maker]:
    return Maker
