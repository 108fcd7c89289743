"""Writing of records that wait before a checkpoint finds them: the "continuous" way of FLIP-76 to persist what is in
flight.

Between two checkpoints a worker writes what has come to wait in its channels into the file of the next one. The cut finds
most of it there, and its logs refer to it; only what has come since is still to be written. Records that are read before
the cut were written for nothing: that is the price.
"""

from __future__ import annotations

from tailrace.elements.frame_codec import ChannelId
from tailrace.task.channels.channel_logs import LogFrame
from tailrace.task.inflight.overtaken_records import InFlightRecording


class Ahead:
    """Records that wait in the channels of one task, and are not written yet.

    They are gathered like a log, by reference, in one portion after the other: `_seen` has the record of each channel up
    to which they are. What a cut finds does not depend on it: a log refers to what `task.channels.written_records` knows
    to be in a file, and nothing else.
    """

    def __init__(self, inflight: InFlightRecording) -> None:
        self._inflight = inflight
        self._recording = inflight.recording_of_its_own()
        self._seen: dict[ChannelId, int] = {}
        self._portion = 0

    @property
    def waits(self) -> bool:
        """True if something is to be written."""
        return self._recording.complete(self._portion) or self._inflight.has_more_than(self._seen)

    def encode(self, limit: int) -> list[LogFrame]:
        """About `limit` more records, without those that are in a file that a log may refer to, or were read meanwhile.
        Raises `UserCodeError` for a record that cannot be pickled."""
        if not self._recording.complete(self._portion):
            self._portion += 1
            log = self._recording.begin(self._portion)
            self._inflight.gather(self._recording, log, self._seen)
            self._recording.complete_logs(self._portion)
        self._recording.skip(self._portion, self._inflight.was_read)
        frames, done = self._recording.encode(self._portion, limit)
        if done:
            self._recording.discard(self._portion)
        return [frame for frame in frames if isinstance(frame, LogFrame)]

    def forget(self) -> None:
        """Forgets what was written, because it is lost: all that waits is to be written again."""
        self._recording.discard(self._portion)
        self._seen.clear()
