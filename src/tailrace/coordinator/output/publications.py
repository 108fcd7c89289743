"""What the workers were told to make visible: in parts that fit into messages, and what has been answered."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.protocol.deployment import Publish, Settled
from tailrace.state.format import Placed
from tailrace.state.manifest import Prepared

PART_BYTES = 16 << 20
"""What sinks prepared is told in parts of about so many bytes, those that lie in files counted: the worker that publishes
holds one part in memory."""


class Publications:
    """The bookkeeping of one attempt; what follows from it is for the coordinator to do.

    Invariant U1: in an attempt nothing that a sink prepared is told to be published twice.
    Invariant U2: `Settled` is said of a publication when every manifest that has something of it was marked as published
    before a commit that has succeeded. None is deleted before it is marked.
    """

    def __init__(self) -> None:
        self.open: dict[int, list[Publish]] = {}
        """What was told by its number, and not answered."""
        self.unpublished: set[int] = set()
        """Numbers of `open` that the worker could not make visible, and that are to be told once more."""
        self.restored_marked = False
        """Whether the restored checkpoint is marked as published, and every other manifest that may have the same output."""
        self._marked = (0, False)
        """Up to which number no manifest asks again for what was published, and whether that goes for the restored one, when
        the newest commit was asked for."""
        self._settled = (0, False)
        """The same, as the worker was told."""

    def tell(
        self, number: int, prepared: Sequence[Prepared], recover: Sequence[str], folder: str = ""
    ) -> list[Publish]:
        """The messages that have all of this published, and then removed what these runs have left."""
        parts = _in_parts(prepared) or [[]]
        last = len(parts) - 1
        told = self.open[number] = [
            Publish(_by_sink(part), number, list(recover) if i == last else [], i < last, folder)
            for i, part in enumerate(parts)
        ]
        return told

    def failed(self, number: int, tries: int) -> bool:
        """The worker could not make all of a number visible, when it was told for this time. False where it has been told
        once more since, or nobody waits for it."""
        if number not in self.open or self.open[number][0].tries != tries:
            return False
        self.unpublished.add(number)
        return True

    def was_tried(self, number: int) -> bool:
        """Whether the worker was told it before, and could not make it visible."""
        return number in self.open and self.open[number][0].tries > 0

    def once_more(self) -> list[Publish]:
        """What is to be told once more."""
        numbers, self.unpublished = sorted(self.unpublished), set()
        for number in numbers:
            told = self.open[number]
            self.open[number] = [msgspec.structs.replace(one, tries=one.tries + 1) for one in told]
        return [one for number in numbers for one in self.open[number]]

    def again(self) -> list[Publish | Settled]:
        """Another worker publishes from now on: what is to be told to it. It may publish what the one before had published,
        and not said."""
        self.unpublished = set()
        told: list[Publish | Settled] = [one for number in sorted(self.open) for one in self.open[number]]
        return [*told, Settled(*self._settled)] if self._settled != (0, False) else told

    def answered(self, number: int) -> bool:
        """All of a number is visible. False where nobody waits for it."""
        self.unpublished.discard(number)
        return self.open.pop(number, None) is not None

    def visible_through(self, newest: int) -> int:
        """Up to which checkpoint everything is visible, where `newest` is the newest complete one; below 0 while what the
        restored one had prepared is not."""
        return min(self.open, default=newest + 1) - 1

    def before_commit(self, number: int) -> None:
        """A commit is asked for; up to `number` all manifests are marked."""
        self._marked = (number, self.restored_marked)

    def settle(self) -> Settled | None:
        """It has succeeded: what to tell the worker, if that is anything new."""
        before, self._settled = self._settled, max(self._settled, self._marked)
        return Settled(*self._settled) if self._settled != before else None


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
