"""Records of asynchronous calls as state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tailrace.elements.timestamps import NO_TIME
from tailrace.state.memory_backend import MemoryBackend
from tailrace.task.operators.calls.pending import PendingRecords


def test_records_of_several_old_subtasks_keep_their_values_when_they_are_numbered_anew() -> None:
    """Without timestamps the new place of a record may be the old place of a later one of its key."""
    ctx: Any = SimpleNamespace(
        subtask=0, parallelism=1, watermark_time=NO_TIME, services=SimpleNamespace(max_parallelism=16)
    )
    pending = PendingRecords(MemoryBackend(), ctx)
    for key in "ab":  # two subtasks, with one key each
        pending.number = 0
        pending.add([key] * 4, [NO_TIME] * 4, [f"{key}{i}" for i in range(4)])
    pending.rebuild()
    assert [one.value for one in pending.by_number.values()] == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert [pending.pop(number).value[0] for number in list(pending.by_number)] == list("ab" * 4)
