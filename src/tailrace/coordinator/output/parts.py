"""The parts of a publication: the messages that fit, each for one worker and one sink."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.protocol.deployment import Publish
from tailrace.state.format import Placed
from tailrace.state.manifest import Prepared

PART_BYTES = 16 << 20
"""The size of the parts in which output is published, about; bytes that lie in files count, too. A worker holds one part
for each sink in memory."""
FIRST = 0
"""The slot whose worker publishes for sinks that have one publisher, and removes what was not published."""


def publish_messages(
    number: int, prepared: Sequence[Prepared], recover: Sequence[str] = (), folder: str = "", slots: int = 1
) -> list[tuple[int, Publish]]:
    """The messages that publish all of this, each with its slot. Those of one slot and sink are in the order in which the
    output was prepared. Where one sink in one slot publishes everything, its last message removes what the runs in
    `recover` have left; else a message of its own does, which comes last and has no output."""
    lanes: dict[tuple[int, str], list[Prepared]] = {}
    for one in prepared:
        lanes.setdefault((publisher_of(one, slots), one.uid), []).append(one)
    found: list[tuple[int, Publish]] = []
    counts: dict[int, int] = {}
    for (slot, uid), several in sorted(lanes.items()):
        for part in _in_parts(several):
            at = counts[slot] = counts.get(slot, -1) + 1
            found.append((slot, Publish([(uid, [one.data for one in part])], number, [], folder, part=at)))
    if recover and len(lanes) == 1 and found[-1][0] == FIRST:
        found[-1] = FIRST, msgspec.structs.replace(found[-1][1], recover=list(recover))
    elif recover:
        found.append((FIRST, Publish([], number, list(recover), folder, part=counts.get(FIRST, -1) + 1)))
    return found


def publisher_of(one: Prepared, slots: int) -> int:
    """The slot whose worker publishes this: that of the subtask that has prepared it, as far as there are so many slots. A
    start with fewer slots deals out what the others had."""
    return FIRST if one.subtask < 0 else one.subtask % slots


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
