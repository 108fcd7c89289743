"""The folder in which the writers of a sink make segments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tailrace.connectors import hidden
from tailrace.connectors.hidden import CoveredFile, FileOrigin, Hidden, SinkFolder, files_in, origin_of
from tailrace.connectors.segments.log import SEGMENTS, OutputSegment, SegmentLog
from tailrace.connectors.travelling import Writing, folder_of, split_of


class SegmentFolder(SinkFolder):
    """The segments of a log. A segment has its name from the start: it is published when the log names it."""

    def __init__(self, log: SegmentLog) -> None:
        self.log = log

    def create(self, name: str) -> Hidden:
        return _SegmentFile(self.log, f"{SEGMENTS}/{name}")

    def sweep(self, goes: Callable[[FileOrigin], bool], keep: set[str], *, traces: bool = True) -> None:
        """Removes segments of chosen origins that were not published. There are no traces in this kind of folder."""
        names = [entry.name.rpartition("/")[2] for entry in self.log.folder.entries(SEGMENTS)]
        of_them = [name for name in names if (origin := origin_of(name)) is not None and goes(origin)]
        gone = self.log.above_marks([name for name in of_them if name not in keep])
        self.log.folder.delete([f"{SEGMENTS}/{name}" for name in gone])


class _SegmentFile(Hidden):
    """A segment, being written."""

    def __init__(self, log: SegmentLog, name: str) -> None:
        self._url = log.folder.url_of(name)
        self.stream = Writing(log.folder.writer(name))

    def finish(self) -> bytes:
        self.stream.complete()
        return msgspec.json.encode(CoveredFile(self._url, self._url, size=self.stream.tell()))

    def discard(self) -> None:
        self.stream.discard()


def segment_token(token: bytes, rows: int) -> bytes:
    """The token of a segment, with the number of its rows."""
    [made] = files_in(token)
    return msgspec.json.encode(msgspec.structs.replace(made, rows=rows))


def publish_segments(prepared: Sequence[bytes], logs: dict[str, SegmentLog], options: Mapping[str, Any] | None) -> None:
    """Adds finished segments to the logs in whose folders they are, one entry for each log. `logs` has the logs that are
    open, by URL; what a checkpoint of another job had prepared is in that job's log."""
    found: dict[str, list[OutputSegment]] = {}
    for made in (made for token in prepared for made in files_in(token)):
        place, name = split_of(hidden.name_of_file(made))
        assert isinstance(made, CoveredFile)
        found.setdefault(split_of(place)[0], []).append(OutputSegment(name, made.rows, made.size))
    for url, segments in found.items():
        if url not in logs:
            logs[url] = SegmentLog(folder_of(url, options))
        logs[url].append(segments)
