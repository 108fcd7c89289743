"""The source of the batches of a streaming query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.api.connectors import Reader, Source, SourceContext, SplitReader
from tailrace.connectors.streaming.batches import BatchFolder
from tailrace.connectors.streaming.lanes import MARK, LaneReader
from tailrace.connectors.travelling import check_sign, is_local
from tailrace.elements.batches import Form
from tailrace.errors import ConfigError


class StreamingBatches(Source):
    """A source of the batches of a streaming query, from the folder that the launcher has given it. Its splits are lanes, as
    many as the subtasks that the source had when the stream began.

    - `schema`: the columns of the records.
    - `event_time`: the name of the column whose latest value marks at the end of each batch have (see `LaneReader`).
    """

    description = "streaming query"
    position_format = "streaming query"

    def __init__(self, schema: pa.Schema, form: Form, event_time: str | None, bounded: bool) -> None:
        self.form, self.event_time, self.bounded = form, event_time, bounded
        self.columns = tuple(schema.names)
        if event_time is not None:
            self.form, self.columns = "columns", (*self.columns, MARK)
        self.fields = schema
        """Columns of the records, without marks."""
        self.written: list[str] = []
        """Names of these columns in the files."""
        self.folder: str | None = None
        """Path or URL of the folder of the batches of a stream that begins."""
        self.options: Mapping[str, Any] | None = None
        """Options of its filesystem."""
        self.shared = False
        """True if the folder is one that other machines must see as well."""
        self.keep = 1
        """Number of checkpoints that the job keeps: it may go on from each of them."""

    @property
    def marks(self) -> str | None:
        """The name of the column that is true in marks; None for a stream without event time."""
        return None if self.event_time is None else MARK

    @property
    def is_data(self) -> pc.Expression:
        """An expression that is true for records, and false for marks."""
        return ~pc.field(MARK)

    def splits(self, parallelism: int) -> Sequence[dict[str, Any]]:
        if self.folder is None:
            raise ConfigError(
                "from_streaming: streaming queries are Spark's, so the job must run on Spark: env.execute()"
            )
        return [{"folder": self.folder, "lane": lane, "of": parallelism} for lane in range(parallelism)]

    def reader(self, split: Any, position: Any = None) -> Reader:
        raise NotImplementedError("lanes have one reader for each subtask: split_reader")

    def split_reader(self, ctx: SourceContext) -> SplitReader:
        return LaneReader(
            self._open_folder,
            self.form,
            self.fields,
            self.event_time,
            ends=self.bounded,
            keep=self.keep,
            written=self.written,
        )

    def _open_folder(self, url: str) -> BatchFolder:
        """The folder of batches. Raises `ConfigError` in a worker that does not see the driver's: it would wait for ever."""
        if self.shared and is_local(url):
            check_sign(url)
        return BatchFolder(url, self.options)
