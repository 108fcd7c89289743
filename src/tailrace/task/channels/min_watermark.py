"""Lowest event time on all channels of a task. The task requests it behind each marker, and a task of a large job has
thousands of channels: only channels are looked at that were lowest and are not any more."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from tailrace.task.channels.inputs import InputChannel


class Lowest:
    """Watermarks of some channels.

    Invariant G5: each channel that is neither idle nor ended is in the heap, once (`counted`), with a watermark that it
    has or had before; `live` is the number of channels that have not ended.
    """

    def __init__(self, channels: Iterable[InputChannel]) -> None:
        self._heap: list[tuple[int, int, InputChannel]] = []
        self._joined = 0
        self.live = 0
        for channel in channels:
            self.live += not channel.ended
            channel.counted = not channel.idle and not channel.ended
            if channel.counted:
                self._heap.append((channel.watermark, self._joined, channel))
                self._joined += 1
        heapify(self._heap)

    def wakes(self, channel: InputChannel) -> None:
        """Adds a channel that is not idle any more."""
        if not channel.counted:
            channel.counted = True
            heappush(self._heap, (channel.watermark, self._joined, channel))
            self._joined += 1

    def ends(self) -> None:
        """Counts the end of a channel."""
        self.live -= 1

    def watermark(self) -> int | None:
        """Lowest watermark of the channels that are neither idle nor ended; None if there is none."""
        heap = self._heap
        while heap:
            time, number, channel = heap[0]
            if channel.idle or channel.ended:
                heappop(heap)
                channel.counted = False
            elif channel.watermark == time:
                return time
            else:
                heapreplace(heap, (channel.watermark, number, channel))
        return None
