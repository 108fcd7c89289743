"""A coordinator on an executor, for a client of Spark Connect that executors cannot reach: its start, and the requests to
it (docs/decisions/0022-a-coordinator-on-an-executor.md).

Its Spark job has two tasks in a barrier stage. One is the coordinator's process (`runtime.outpost.outpost`). The other
task receives from Spark, within the stage, the address at which the coordinator listens. It returns this address and ends:
a server sends the result of the first of several tasks while the others run. Later requests to the coordinator are carried
by Spark jobs of one short task.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import queue
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pyarrow as pa
from pyspark import cloudpickle

from tailrace.errors import ConfigError, SlotsError
from tailrace.retries import Retries
from tailrace.runtime.network.tls import Tls
from tailrace.runtime.outpost.hosted_folder import (
    FileRequest,
    FileResponse,
    Host,
    Served,
    check_answer,
    fetch,
    represent,
    send_request,
)
from tailrace.runtime.outpost.job_follower import CoordinatorGone, CoordinatorNotStarted
from tailrace.runtime.outpost.mailbox import Letter
from tailrace.runtime.outpost.outpost import LETTER
from tailrace.spark.cluster.application import application
from tailrace.spark.data.places import FilePlace, space
from tailrace.spark.outpost.host import OutpostSettings
from tailrace.spark.shipping.arrival import looking
from tailrace.spark.shipping.delivery import bring, received_parcel
from tailrace.spark.shipping.missing_modules import answer_text, lacks_tailrace, unable
from tailrace.spark.shipping.parcel import Parcel, send
from tailrace.spark.shipping.spark_tasks import columns_of_one, with_tailrace
from tailrace.spark.slots.failure_texts import shortened_failure, was_cancelled
from tailrace.spark.slots.threads import SlotThreads

BESIDE = 2
"""The slots that a job takes here beside those of its workers: one for the coordinator, one for the tasks that carry
requests."""
WAIT_SECONDS = 1.0
"""Seconds that a task stays with a letter at the coordinator, for news to bring back."""
LETTERS, DIALS = Retries(within=300.0, tries=3, first=1.0), Retries(within=60.0, tries=2)
"""Retries of a Spark job that carries a letter, and of the connection that its task makes."""
CLOSE_SECONDS = 3.0
_LOOK_SECONDS = 5.0
_NEWS_SECONDS = 0.02
_met: set[str] = set()
"""The applications that are known to have executors."""


def outpost_task(settings: OutpostSettings, parcel: Parcel | None) -> Callable[[Any], Any]:
    """The two Spark tasks of an outpost. They travel by value, like a worker's task."""
    look, column, ours = looking(parcel), columns_of_one(), cloudpickle.dumps(settings)

    def work(batches: Any) -> Any:
        import json
        import pickle

        import pyarrow as pa
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        keeps, outpost, report = context.partitionId() == 1, None, ""
        if keeps:
            lacking = look()
            if lacking is not None:
                report = json.dumps({"lacking": lacking})
            else:
                from tailrace.spark.outpost.host import open_outpost

                outpost, report = open_outpost(pickle.loads(ours), context.getTaskInfos()[1].address)
        report = context.allGather(report)[1]
        if outpost is not None:
            report = outpost.stay()
        yield pa.RecordBatch.from_arrays([column(report)], names=["told"])

    return work


class FarPost:
    """An outpost, seen from the program: a `Post`, and a folder for rows on their way.

    Raises `SlotsError` where Spark does not start it within `patience` seconds, and `ConfigError` where no executor can
    run it.
    """

    def __init__(
        self, spark: Any, tag: str, name: str, ports: range, tls: Tls | None, patience: float, *, ship: bool
    ) -> None:
        self._spark, self._app, self._name = spark, application(spark), name
        self._tag, self._own_tag = tag, f"{tag}-coordinator-{secrets.token_hex(4)}"
        self._parcel = send(spark) if ship else received_parcel(spark)
        self._settings = OutpostSettings(secrets.token_bytes(32), ports, tls, space())
        self._over: str | None = None
        """Reason why the outpost's Spark job has ended, once it has."""
        self._ended = threading.Event()
        self._lost = True
        """True where the outpost is not open or is known to be gone: `close` does not wait for it then."""
        self._threads = SlotThreads(f"{name}-coordinator", 2)
        try:
            report = self._open(patience)
            if "lacking" in report and self._parcel is None and not self._app.is_local:
                self._parcel = bring(spark)
                report = self._open(patience)
            if "lacking" in report:
                raise ConfigError(answer_text(report["lacking"], self._parcel))
            if "at" not in report:
                raise ConfigError(f"job {name!r} cannot have its coordinator on an executor: {report['refused']}")
        except BaseException:
            self.close()
            raise
        self.host = Host((report["at"][0], report["at"][1]), self._settings.token, tls)
        self._lost = False
        represent(self.host, self.request)

    @property
    def place(self) -> FilePlace:
        """The folder of the outpost."""
        return FilePlace(self.host.url, host=self.host)

    def request(self, request: FileRequest, data: bytes) -> tuple[FileResponse, bytes]:
        """Sends a request for a file of the outpost's folder. Raises the error in the answer; `OSError` where the outpost
        cannot be reached."""
        if self._lost:
            raise OSError(f"the executor with {self.host.url} was lost")
        answer, found = self._carry_once(request, data, 0.0)
        check_answer(answer)
        return answer, found

    def fetch(self, urls: list[str], path: str) -> None:
        """Copies folders of the outpost into one of this machine. From then on, this machine answers requests for files of
        the outpost's folder. Raises `OSError`."""
        root = f"{self.host.url}/"
        fetch(self.request, [url.removeprefix(root) for url in urls], path)
        represent(self.host, Served(path, 0).answer)

    def exchange(self, letter: Letter) -> Letter:
        data = pickle.dumps(letter, 5)

        def once() -> Letter:
            answer, found = self._carry_once(FileRequest(LETTER), data, WAIT_SECONDS)
            check_answer(answer)
            found_letter: Letter = pickle.loads(found)
            return found_letter

        try:
            return LETTERS.call(
                once, lambda error: isinstance(error, OSError | ConfigError) and self._end_reason() is None
            )
        except (OSError, ConfigError) as error:
            self._lost, gone = True, self._end_reason()
            raise CoordinatorGone(gone or str(error), was_cancelled(gone or "")) from error

    def _end_reason(self) -> str | None:
        """The reason why the application or the outpost's Spark job has ended; None while both run."""
        found: str | None = self._app.over() or self._over
        return found

    def close(self) -> None:
        if not self._lost:
            self._ended.wait(CLOSE_SECONDS)  # the outpost has received that it may end, and tidies up
        if self._over is None:
            with contextlib.suppress(Exception):  # Spark is gone, and its jobs with it
                self._app.cancel(self._own_tag)
        self._threads.close(0)
        if hasattr(self, "host"):
            represent(self.host, None)

    # The outpost's own Spark job.

    def _open(self, patience: float) -> dict[str, Any]:
        report: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._over = None
        self._ended.clear()
        self._threads.run(lambda: self._keep(report))
        try:
            found = report.get(timeout=patience)
        except queue.Empty:
            raise SlotsError(
                f"job {self._name!r} has its coordinator on an executor, and Spark has not started that within "
                f"{patience:g} s; give Spark more free cores, lower the parallelism, or raise slot_timeout"
            ) from None
        if found is None:
            raise CoordinatorNotStarted(f"job {self._name!r} cannot have its coordinator on an executor: {self._over}")
        answer: dict[str, Any] = json.loads(found)
        if "at" not in answer:
            self._ended.wait(patience)  # the next job must not take the end of this one for its own
        return answer

    def _keep(self, report: queue.SimpleQueue[str | None]) -> Callable[[], object]:
        """Runs the outpost's Spark job to its end."""
        over = "its Spark task has ended"
        try:
            with self._app.with_tags([self._tag, self._own_tag], f"tailrace {self._name}: coordinator"):
                if self._app.id not in _met:  # Spark looks for the slots of a barrier stage only every 15 s
                    self._spark.range(0, 2, 1, 2).collect()
                    _met.add(self._app.id)
                task, two = outpost_task(self._settings, self._parcel), self._spark.range(0, 2, 1, 2)
                for row in two.mapInArrow(task, "told string", barrier=True).toLocalIterator():
                    report.put(row.told)
                    over = row.told
        except BaseException as failure:  # whatever Spark raises
            over = self._app.over() or unable(failure, self._parcel) or shortened_failure(failure)
        self._over = over
        self._ended.set()
        report.put(None)
        return lambda: None

    # Requests to the outpost.

    def _carry_once(self, request: FileRequest, data: bytes, seconds: float) -> tuple[FileResponse, bytes]:
        """Sends a request by a Spark task. Raises `OSError`."""
        found: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def carry() -> Callable[[], object]:
            try:
                with self._app.with_tags([self._tag], f"tailrace {self._name}: to the coordinator"):
                    found.put(self._carry(request, data, seconds))
            except BaseException as failure:  # whatever Spark raises
                found.put(failure)
            return lambda: None

        self._threads.run(carry)
        row: Any = None
        while row is None:
            try:
                row = found.get(timeout=_LOOK_SECONDS)
            except queue.Empty:
                gone = self._end_reason()
                if gone is not None:  # PySpark's client retries for minutes where the server is gone
                    raise OSError(gone) from None
        if isinstance(row, BaseException):
            raise OSError(f"no Spark task brings anything to it: {shortened_failure(row)}") from row
        if row.lost is not None:
            raise OSError(row.lost)
        return msgspec.msgpack.decode(bytes(row.answer), type=FileResponse), bytes(row.data)

    def _carry(self, request: FileRequest, data: bytes, seconds: float) -> Any:
        try:
            return self._carry_with(self._parcel, request, data, seconds)
        except Exception as failure:
            if self._parcel is not None or self._app.is_local or not lacks_tailrace(failure):
                raise
        self._parcel = bring(self._spark)
        return self._carry_with(self._parcel, request, data, seconds)

    def _carry_with(self, parcel: Parcel | None, request: FileRequest, data: bytes, seconds: float) -> Any:
        work = with_tailrace(carrier(self.host, request, data, seconds), parcel)
        [row] = self._spark.range(0, 1, 1, 1).mapInArrow(work, "answer binary, data binary, lost string").collect()
        return row


def carrier(host: Host, request: FileRequest, data: bytes, seconds: float) -> Callable[[Any], Any]:
    """The Spark task that brings a request to an outpost, and the answer back. Where a letter has no news in its answer,
    the task sends it again, for up to `seconds`."""
    column = columns_of_one()

    def work(batches: Any) -> Any:
        for _ in batches:
            pass
        answer, found, lost = FileResponse(), b"", None
        deadline = time.monotonic() + seconds
        try:
            answer, found = send_request(host, request, data, retries=DIALS)
            while not answer.number and not answer.error and time.monotonic() < deadline:
                time.sleep(_NEWS_SECONDS)
                answer, found = send_request(host, request, data, retries=DIALS)
        except OSError as error:
            lost = f"{error} (from {socket.gethostname()})"
        columns = [column(msgspec.msgpack.encode(answer)), column(found), column(lost)]
        yield pa.RecordBatch.from_arrays(columns, names=["answer", "data", "lost"])

    return work
