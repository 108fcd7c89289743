"""Several requests at once, also where no thread can be started."""

import threading
from typing import Any

import pytest

from tailrace.storage.parallel import AT_ONCE, at_once


def test_results_come_in_order_from_several_threads() -> None:
    names: set[str] = set()
    together = threading.Barrier(4, timeout=10)

    def square(n: int) -> int:
        together.wait()
        names.add(threading.current_thread().name)
        return n * n

    assert at_once(square, [1, 2, 3, 4], "squares") == [1, 4, 9, 16]
    assert len(names) == 4 <= AT_ONCE and all(name.startswith("squares") for name in names)


def test_an_error_passes_through_once_the_others_have_ended() -> None:
    done: list[int] = []

    def work(n: int) -> None:
        if n == 1:
            raise OSError("out of reach")
        done.append(n)

    with pytest.raises(OSError, match="out of reach"):
        at_once(work, [1, 2, 3], "work")
    assert sorted(done) == [2, 3]


def test_where_no_thread_can_be_started_it_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on no thread starts while the exit of the interpreter waits for a job: each commit failed that looks
    into several folders of a remote store."""

    def refuse(self: Any) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert at_once(abs, [-1, -2, -3], "abs") == [1, 2, 3]
