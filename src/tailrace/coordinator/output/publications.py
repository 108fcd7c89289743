"""The publications that were sent to the worker: their parts, which fit into messages, and the answers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailrace.protocol.deployment import Publish, Settled
from tailrace.state.format import Placed
from tailrace.state.manifest import Prepared

PART_BYTES = 16 << 20
"""The size of the parts in which output is published, about; bytes that lie in files count, too. The worker that publishes
holds one part in memory."""


class Publications:
    """The bookkeeping of one attempt's publications; the coordinator carries out what follows.

    Invariant U1: in an attempt no prepared output is published under two numbers.
    Invariant U2: `Settled` is sent for a publication when every manifest that has something of it was marked as published
    before a commit that has succeeded. None is deleted before it is marked.
    """

    def __init__(self) -> None:
        self.open: dict[int, list[Publish]] = {}
        """Publications that were sent and are not answered, by number."""
        self.unpublished: set[int] = set()
        """Numbers of `open` that the worker could not make visible, and that are to be sent once more."""
        self.restored_marked = False
        """True if the restored checkpoint is marked as published, and so is every other manifest that may have the same
        output."""
        self._marked = (0, False)
        """(n, restored): when the newest commit was requested, output up to number n could not be published again by any
        manifest; neither could the restored one's output, if `restored`."""
        self._settled = (0, False)
        """The newest (n, restored) that was sent to the worker in `Settled`."""

    def tell(
        self, number: int, prepared: Sequence[Prepared], recover: Sequence[str], folder: str = ""
    ) -> list[Publish]:
        """The messages that publish all of this, and then remove what the runs in `recover` have left."""
        parts = _in_parts(prepared) or [[]]
        last = len(parts) - 1
        told = self.open[number] = [
            Publish(_by_sink(part), number, list(recover) if i == last else [], i < last, folder)
            for i, part in enumerate(parts)
        ]
        return told

    def failed(self, number: int, tries: int) -> bool:
        """Notes that the worker could not make all of a number visible, in this of its `tries`. False where the number has
        been sent once more since, or is not awaited."""
        if number not in self.open or self.open[number][0].tries != tries:
            return False
        self.unpublished.add(number)
        return True

    def was_tried(self, number: int) -> bool:
        """True if a number was sent before, and the worker could not make it visible."""
        return number in self.open and self.open[number][0].tries > 0

    def once_more(self) -> list[Publish]:
        """The messages to send once more."""
        numbers, self.unpublished = sorted(self.unpublished), set()
        for number in numbers:
            told = self.open[number]
            self.open[number] = [msgspec.structs.replace(one, tries=one.tries + 1) for one in told]
        return [one for number in numbers for one in self.open[number]]

    def again(self) -> list[Publish | Settled]:
        """The messages to send to another worker that publishes from now on. It may publish again what the worker before
        had published and not reported."""
        self.unpublished = set()
        told: list[Publish | Settled] = [one for number in sorted(self.open) for one in self.open[number]]
        return [*told, Settled(*self._settled)] if self._settled != (0, False) else told

    def answered(self, number: int) -> bool:
        """Notes that all output of a number is visible. False where that is not awaited."""
        self.unpublished.discard(number)
        return self.open.pop(number, None) is not None

    def visible_through(self, newest: int) -> int:
        """The checkpoint up to which everything is visible, where `newest` is the newest complete one; below 0 while the
        restored one's output is not."""
        return min(self.open, default=newest + 1) - 1

    def before_commit(self, number: int) -> None:
        """Notes that a commit is requested while all manifests up to `number` are marked."""
        self._marked = (number, self.restored_marked)

    def settle(self) -> Settled | None:
        """The `Settled` message after a commit that has succeeded, if it has anything new."""
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
