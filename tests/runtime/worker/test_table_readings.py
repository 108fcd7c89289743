"""Readings of a table in a thread: one at a time, each result once, however long one takes."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from tailrace.runtime.worker import table_readings
from tailrace.runtime.worker.table_readings import TableReadings


def test_a_slow_reading_is_the_result_of_a_later_call_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_readings, "PATIENCE", 0.001)
    go, begun, threads = threading.Event(), list[int](), set[str]()

    def read() -> int:
        begun.append(len(begun))
        threads.add(threading.current_thread().name)
        assert go.wait(60)
        return begun[-1]

    async def story() -> list[Any]:
        one = TableReadings(read, 10_000_000)
        found = [await one.call(100.0 + i) for i in range(100)]
        assert begun == [0]
        go.set()
        monkeypatch.setattr(table_readings, "PATIENCE", 60.0)
        found += await asyncio.gather(one.call(201.0), one.call(202.0))
        assert begun == [0]
        return [*found, await one.call(203.0), await one.call(204.0), await one.call(213.5)]

    found = asyncio.run(story())
    assert threading.current_thread().name not in threads
    assert found[60] == (160.0, ("failed", "a reading that began 60 s ago has not ended"))
    assert [one for one in found[:100] if one is not None] == [found[60]]
    assert sorted(map(repr, found[100:102])) == ["(100.0, 0)", "None"]
    assert found[102:] == [(203.0, 1), None, (213.5, 2)]
