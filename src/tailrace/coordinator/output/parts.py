"""The parts of a publication, which fit into messages."""

from __future__ import annotations

from collections.abc import Sequence

from tailrace.protocol.deployment import Publish
from tailrace.state.format import Placed
from tailrace.state.manifest import Prepared

PART_BYTES = 16 << 20
"""The size of the parts in which output is published, about; bytes that lie in files count, too. The worker that publishes
holds one part in memory."""


def publish_messages(
    number: int, prepared: Sequence[Prepared], recover: Sequence[str] = (), folder: str = ""
) -> list[Publish]:
    """The messages that publish all of this, and then remove what the runs in `recover` have left."""
    parts = _in_parts(prepared) or [[]]
    last = len(parts) - 1
    return [
        Publish(_by_sink(part), number, list(recover) if i == last else [], i < last, folder)
        for i, part in enumerate(parts)
    ]


def _in_parts(prepared: Sequence[Prepared]) -> list[list[Prepared]]:
    parts: list[list[Prepared]] = []
    size = 0
    for one in prepared:
        length = one.data.length if isinstance(one.data, Placed) else len(one.data)
        if not parts or size + length > PART_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(one)
        size += length
    return parts


def _by_sink(prepared: Sequence[Prepared]) -> list[tuple[str, list[bytes | Placed]]]:
    by_sink: dict[str, list[bytes | Placed]] = {}
    for one in prepared:
        by_sink.setdefault(one.uid, []).append(one.data)
    return sorted(by_sink.items())
