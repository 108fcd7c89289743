"""The trace of the latency benchmark names the slowest records, one for each pause, and what threads did meanwhile."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("benchmarks.tracing")

from benchmarks.tracing import Looks, Pieces, Threads, Trace, apart

SECOND = 1e9  # nanoseconds


def test_a_pause_that_delays_many_records_is_shown_by_the_slowest_of_them() -> None:
    due = np.array([0.0, 1.0, 1.1, 1.2, 5.0])
    came = np.array([0.1, 2.0, 2.0, 2.0, 5.5])
    assert apart(due, came, 100) == [1, 4, 0]
    assert apart(due, came, 2) == [1, 4]


def workers() -> list[dict[str, Any]]:
    """Two workers: the first one reads the even numbers at second 10, and is in a step of 300 ms then."""
    names = ("kinds", "begun", "took", "ran")
    about = [json.dumps({"pid": 7 + i, "thread": 70 + i, "names": {str(70 + i): "MainThread"}}) for i in (0, 1)]
    read = [{"read_at": np.array([10.0 + i]), "splits": np.array([i]), "read_to": np.array([100 + i])} for i in (0, 1)]
    pieces = [[np.array([0]), np.array([9.9]), np.array([0.3]), np.array([0.1])], [np.array([])] * 4]
    return [{"about": np.array(about[i]), **read[i], **dict(zip(names, pieces[i], strict=True))} for i in (0, 1)]


def looks() -> dict[str, Any]:
    """Looks at second 9 and 19: the thread of the first worker ran for half of the time, and waited for a tenth of it."""
    return {
        "threads": np.array(json.dumps([(7, 70, "python/python"), (8, 71, "python/python")])),
        "at": np.array([9.0, 9.0, 19.0, 19.0]),
        "of": np.array([0, 1, 0, 1]),
        "ran": np.array([0, 0, 5 * SECOND, 0]),
        "waited": np.array([0, 0, SECOND, 0]),
    }


def test_a_line_says_who_read_the_record_and_what_threads_did_until_it_came() -> None:
    seen = [{"number": np.array([2, 1]), "latency": np.array([1.0, 0.1]), "due": np.array([9.5, 9.0])}, {}]
    seen[1] = {name: value[:0] for name, value in seen[0].items()}
    trace = Trace(seen, 2, workers(), Threads(looks(), workers()))
    line, means = trace.lines()
    assert (line["record"], line["reader"], line["sink"]) == (2, 0, 0), "record 1 was of the warm-up"
    assert (line["latency_ms"], line["until_read_ms"], line["from_read_ms"]) == (1000.0, 500.0, 500.0)
    assert line["reader_until_then"] == {"ran": 250.0, "waited": 50.0, "slept": 200.0}
    assert line["threads"] == {"worker 0: MainThread": {"ran": 500.0, "waited": 100.0, "slept": 400.0}}
    assert line["pieces"]["worker 0"] == [{"what": "step", "after_ms": 400.0, "took_ms": 300.0, "ran_ms": 100.0}]
    assert (means["traced"], means["sink_from_then"]) == (1, {"ran": 250.0, "waited": 50.0, "slept": 200.0})


def test_threads_of_a_session_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, own = Looks(os.getsid(0)), (os.getpid(), threading.get_native_id())
    monkeypatch.setattr("benchmarks.tracing.os.getpid", lambda: 0)  # who looks does not look at itself
    looks.find()
    monkeypatch.undo()
    looks.look(jvms=True)
    looks.look(jvms=True)
    looks.save(str(tmp_path / "looks.npz"))
    pieces = Pieces()
    pieces.thread = own[1]
    pieces.save(str(tmp_path), 0)
    threads = Threads(np.load(tmp_path / "looks.npz"), [np.load(tmp_path / "pieces-0.npz")])
    assert threads.names[own] == "worker 0: its own thread"
    assert threads.spent(own, looks.at[0], looks.at[-1]).ran >= 0.0
