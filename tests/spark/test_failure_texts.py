"""The text of a Spark failure, for people."""

from __future__ import annotations

from tailrace.errors import OWN_FOLDER
from tailrace.spark.slots.failure_texts import shortened_failure, too_little_memory

JAVA = (
    "\n\n\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1143)\n"
    "\tat java.base/java.lang.Thread.run(Thread.java:840)\nCaused by: java.io.EOFException\n\t... 21 more\n"
)
ABORTED = (
    "An error occurred while calling o55.collectToPython.\n: org.apache.spark.SparkException: Job aborted due to stage "
    "failure: Task 0 in stage 0.0 failed 1 times, most recent failure: Lost task 0.0 in stage 0.0 (TID 0) (localhost "
    "executor driver): org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): "
)


def test_a_crash_tells_the_users_frames_of_the_thread_that_crashed() -> None:
    story = f"""Fatal Python error: Segmentation fault

Thread 0x00007f96b79ff6c0 (most recent call first):
  File "{OWN_FOLDER}runtime/worker/main_loop.py", line 435 in _beat
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f96cb5c2b80 (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/me/tailrace/flow.py", line 52 in parse
  File "<tailrace fused functions>", line 4 in plain
  File "{OWN_FOLDER}task/operators/stateless.py", line 51 in process

Extension modules: numpy (total: 61)
"""
    text = shortened_failure(Exception(ABORTED + story + JAVA))
    assert text.splitlines()[:2] == ["the Python worker's process crashed:", "Fatal Python error: Segmentation fault"]
    assert 'File "/home/me/tailrace/flow.py", line 52 in parse' in text
    assert "_beat" not in text and "fused" not in text and "numpy" not in text and "org.apache" not in text


def test_a_crash_without_a_story() -> None:
    assert "left no trace of why" in shortened_failure(Exception(ABORTED + JAVA))


def test_a_python_exception() -> None:
    raised = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "a.py", line 1, in f\n    g()\n    ^^^\nKeyError: 1\n\nDuring handling of the above exception, another '
        'exception occurred:\n\nTraceback (most recent call last):\n  File "b.py", line 2, in h\n    raise X\n'
        "mine.DialFailed: 10.0.0.1:7077: nobody listens\nsecond line\n"
    )
    assert shortened_failure(Exception(raised)) == "mine.DialFailed: 10.0.0.1:7077: nobody listens"


def test_an_exception_of_the_jvm() -> None:
    found = (
        ": org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled as part of cancellation of all jobs"
    )
    text = shortened_failure(Exception(f"An error occurred while calling o130.collectToPython.\n{found}{JAVA}"))
    assert text == "[SPARK_JOB_CANCELLED] Job 1 cancelled as part of cancellation of all jobs"


def test_nothing_to_tell() -> None:
    assert shortened_failure(ValueError()) == "ValueError"
    assert len(shortened_failure(Exception("x" * 10_000))) == 500


def test_a_worker_without_room_for_its_libraries_is_told_which_setting_left_it_none() -> None:
    loading = "ImportError: /usr/lib/lib-dynload/unicodedata.so: failed to map segment from shared object"
    found = too_little_memory(loading, "300m")
    assert found.startswith("; spark.executor.pyspark.memory is 300m") and "raise it" in found
    assert too_little_memory("MemoryError", "300m") == found
    assert too_little_memory("ValueError: no", "300m") == ""
