"""A worker sees in the threads of its executor's JVM that Spark has decommissioned the executor."""

from __future__ import annotations

from pathlib import Path

from tailrace.runtime.worker.executor_end import WAITS, ExecutorWatch


def process(folder: Path, pid: int, name: str, parent: int, *threads: str) -> None:
    """Adds a process to a folder like `/proc`."""
    (folder / str(pid) / "task").mkdir(parents=True, exist_ok=True)
    (folder / str(pid) / "comm").write_text(name + "\n")
    (folder / str(pid) / "status").write_text(f"Name:\t{name}\nPPid:\t{parent}\n")
    for number, thread in enumerate(threads):
        (folder / str(pid) / "task" / str(number)).mkdir(exist_ok=True)
        (folder / str(pid) / "task" / str(number) / "comm").write_text(thread + "\n")


def test_the_nearest_jvm_above_the_worker_is_watched(tmp_path: Path) -> None:
    process(tmp_path, 2, "java", 1, WAITS)
    process(tmp_path, 3, "java", 2, "main", "Executor task l")
    process(tmp_path, 4, "python", 3)
    process(tmp_path, 5, "python", 4)
    watch = ExecutorWatch(tmp_path, 5)
    assert [watch.look(), watch.look()] == [False, False]
    process(tmp_path, 3, "java", 2, "main", "Executor task l", WAITS)
    assert [watch.look(), watch.look()] == [True, True]


def test_a_thread_that_takes_its_name_late_is_seen(tmp_path: Path) -> None:
    process(tmp_path, 3, "java", 1, "main", "java")
    process(tmp_path, 4, "python", 3)
    watch = ExecutorWatch(tmp_path, 4)
    assert not watch.look()
    process(tmp_path, 3, "java", 1, "main", WAITS)
    assert watch.look()


def test_where_nothing_shows_threads_nothing_is_seen(tmp_path: Path) -> None:
    assert not ExecutorWatch(tmp_path, 4).look()
    process(tmp_path, 4, "python", 3)
    assert not ExecutorWatch(tmp_path, 4).look()
