"""What every system computes, and the answer it must reach.

Record `i` is the tuple `(id, key, value)`; `rows` and `columns` make a range of records in the two
forms. MAP, KEEP and HALVE are the three stateless steps. All values are multiples of one half and
stay far below 2**52, so float sums are exact in every order and results are compared with `==`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa

KEYS = 10_000
WINDOW = 1_000_000
"""Records of a window, each a microsecond behind the one before."""
GAP = WINDOW // 2
"""Gap of sessions in microseconds, far longer than it ever takes until a key comes again."""
STRIDE = 1 << 15
"""Where there are windows, workers generate so many records in turn: time goes on for all of them together."""
CHUNK = 1 << 20

Record = tuple[int, int, float]


def rows(start: int, end: int) -> list[Record]:
    return [(i, (i ^ i >> 7) * 7919 % 10_000, i % 1009 * 0.5) for i in range(start, end)]


def arrays(start: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    i = np.arange(start, end, dtype=np.int64)
    return i, (i ^ i >> 7) * 7919 % KEYS, i % 1009 * 0.5


def columns(start: int, end: int) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([pa.array(a) for a in arrays(start, end)], names=["id", "key", "value"])


def session_micros(i: np.ndarray) -> np.ndarray:
    """Times of records with a pause of `WINDOW` microseconds behind each window: sessions hold what windows hold."""
    return i + i // WINDOW * WINDOW


def session_rows(start: int, end: int) -> list[Record]:
    return [(i + i // WINDOW * WINDOW, key, value) for i, key, value in rows(start, end)]


def session_columns(start: int, end: int) -> pa.RecordBatch:
    import pyarrow as pa

    i, key, value = arrays(start, end)
    made = map(pa.array, (session_micros(i), key, value))
    return _timed(*made)


def timed_columns(start: int, end: int) -> pa.RecordBatch:
    import pyarrow as pa

    return _timed(*map(pa.array, arrays(start, end)))


def _timed(micros: pa.Array, key: pa.Array, value: pa.Array) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([micros.view(pa.timestamp("us")), key, value], names=["time", "key", "value"])


# The three steps in rows: ordinary functions, handed to every system as they are.


def shift(record: Record) -> Record:
    return (record[0], record[1], record[2] + 100.0)


def keep(record: Record) -> bool:
    return record[2] < 550.0


def halve(record: Record) -> Record:
    return (record[0], record[1], record[2] * 0.5 + 1.0)


# The same steps in columns.


def shift_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.set_column(2, "value", pc.add(batch.column(2), 100.0))


def keep_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.filter(pc.less(batch.column(2), 550.0))


def halve_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow.compute as pc

    return batch.set_column(2, "value", pc.add(pc.multiply(batch.column(2), 0.5), 1.0))


def share(records: int, index: int, parallelism: int) -> tuple[int, int]:
    """The contiguous range of records that worker `index` generates."""
    return records * index // parallelism, records * (index + 1) // parallelism


first_of = itemgetter(0)
value_of = itemgetter(2)


@dataclass
class Tally:
    """What the sink of one worker saw, and when. Tallies of all workers add up to the result.

    *chain* counts records and sums their values; *keyed* counts outputs and remembers the last
    output of each key; *windows* counts outputs and adds up those of each key, the n-th window n times.
    """

    first: float = float("inf")  # time.time() when the first record was about to be generated
    last: float = float("-inf")  # time.time() after the last result
    count: int = 0
    total: float = 0.0
    latest: dict[Any, tuple[float, float]] = field(default_factory=dict)
    cpu: float = 0.0  # ours: CPU seconds of the workers, from the opening of the sinks on
    notes: dict[str, Any] = field(default_factory=dict)  # further figures to report

    def add(self, other: Tally) -> None:
        clash = self.latest.keys() & other.latest.keys()
        if clash:
            raise AssertionError(f"{len(clash)} keys were processed by two workers")
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.cpu += other.cpu
        self.count += other.count
        self.total += other.total
        self.latest.update(other.latest)


@lru_cache
def expected(workload: str, records: int) -> Tally:
    """The result, from the definition above by vectorised numpy, in chunks."""
    if workload == "windows":
        return expected_windows(records)
    tally = Tally()
    counts = np.zeros(KEYS, dtype=np.int64)
    sums = np.zeros(KEYS)
    for start in range(0, records, CHUNK):
        key, value = kept_values(start, min(start + CHUNK, records))
        tally.count += len(key)
        if workload == "chain":
            tally.total += float(value.sum())
        else:
            counts += np.bincount(key, minlength=KEYS)
            sums += np.bincount(key, weights=value, minlength=KEYS)
    if workload == "keyed":
        tally.latest = {k: (int(counts[k]), float(sums[k])) for k in np.flatnonzero(counts).tolist()}
    return tally


def kept_values(start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """The keys and values of a range of records, behind the three steps."""
    _, key, value = arrays(start, end)
    value = value + 100.0
    kept = value < 550.0
    return key[kept], value[kept] * 0.5 + 1.0


def expected_windows(records: int) -> Tally:
    tally = Tally()
    found = np.zeros((2, KEYS))
    for n, start in enumerate(range(0, records, WINDOW)):
        key, value = kept_values(start, min(start + WINDOW, records))
        counts = np.bincount(key, minlength=KEYS)
        tally.count += int(np.count_nonzero(counts))
        found += (n + 1) * np.array([counts, np.bincount(key, weights=value, minlength=KEYS)])
    tally.latest = {k: (float(found[0, k]), float(found[1, k])) for k in np.flatnonzero(found[0]).tolist()}
    return tally


def verify(workload: str, records: int, result: Tally, one_output_per_record: bool = True) -> None:
    """Raise unless `result` is exactly right."""
    expected_tally = expected(workload, records)
    if one_output_per_record and result.count != expected_tally.count:
        raise AssertionError(f"{workload}: {result.count} outputs, expected {expected_tally.count}")
    if result.total != expected_tally.total:
        raise AssertionError(f"{workload}: checksum {result.total}, expected {expected_tally.total}")
    if result.latest != expected_tally.latest:
        wrong = sum(result.latest.get(k) != v for k, v in expected_tally.latest.items())
        raise AssertionError(f"{workload}: wrong result for {wrong} of {len(expected_tally.latest)} keys")
