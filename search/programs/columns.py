"""Golden programs for the search over record batches with side outputs, and with feedback of other columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import tailrace as tr
from search.programs.loops import laps_of, looping, numbers

TRAIL = pa.schema([("id", pa.int64()), ("left", pa.int64()), ("laps", pa.int32())])


class Move(tr.MapBatchesFunction):
    """A function that moves each record one lap on; a record with no lap left goes to a side output."""

    def open(self, ctx: tr.Context) -> None:
        self.ctx = ctx

    def map_batches(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        left, laps = pc.subtract(batch["left"], 1), pc.add(batch["laps"], pa.scalar(1, pa.int32()))
        moved = pa.record_batch([batch["id"], left, laps], schema=TRAIL)
        over = pc.less(left, 0)
        self.ctx.emit("over", moved.filter(over))
        return moved.filter(pc.invert(over))


def set_aside(env: tr.Environment, n: int, rate: float | None) -> tr.DataStream:
    """A loop in columns whose feedback has a column more than its input, and whose output is a side output."""

    def body(both: tr.ConnectedStreams) -> Any:
        begun = both.first.with_columns(laps=pc.scalar(pa.scalar(0, pa.int32())))
        moved = begun.union(both.second).key_by("left").map_batches(Move())
        return moved, moved.side_output("over")

    hops = numbers(env, n, rate).map(lambda i: (i, laps_of(i))).to_columns("id long, left long")
    return hops.iterate_with_feedback(body, feedback_schema=TRAIL, **looping()).map(lambda r: (r.id, r.laps))
