"""Failed calls that are made again, from their capsules."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from tailrace.api.failure_options import FAIL
from tailrace.api.launch import launcher
from tailrace.elements.batches import Batch, Columns, Rows
from tailrace.elements.timestamps import NO_TIME
from tailrace.errors import ConfigError, TailraceError, UserCodeError
from tailrace.graph.graph import Graph, Node
from tailrace.graph.loops import names_of_loops
from tailrace.runtime.capsules.currentcode import take_current_code
from tailrace.state.backend import MetaPart
from tailrace.storage.opening import open_folder
from tailrace.task.channels.services import Services
from tailrace.task.contract.capsule import Capsule, decode_capsule
from tailrace.task.contract.outside import Outside, T
from tailrace.task.contract.usercode import raised_text
from tailrace.task.operators.base import OperatorTask
from tailrace.task.operators.columns.schemas import learn_schema
from tailrace.task.operators.context import OperatorContext
from tailrace.task.operators.failures.tasks import operator_task
from tailrace.task.operators.functions import FunctionTask
from tailrace.task.operators.timer_firing import TimedTask
from tailrace.task.subtask.chain import RUNTIME


def read_capsule(place: str | os.PathLike[str] | bytes) -> Capsule:
    """The capsule in a file (a path or URL), or in bytes. Raises `ConfigError` for what is none."""
    if isinstance(place, bytes):
        return decode_capsule(place, "this")
    path = os.fspath(place)
    folder, _, name = path.replace(os.sep, "/").rpartition("/")
    try:
        data = open_folder(folder or ".").read(name)
    except OSError as error:
        raise ConfigError(f"the capsule {path} cannot be read: {error.strerror or error}") from error
    return decode_capsule(data, path)


class _Answers(Outside):
    """The world outside during a call that is made again: it answers `ctx.call` as it did in the job."""

    def __init__(self, answers: list[tuple[bool, Any]]) -> None:
        self._answers = iter(answers)
        self.live = True
        """True while the function is opened: it then calls the world itself."""

    def request(self, call: Callable[[], T]) -> T:
        if self.live:
            return call()
        well, answer = next(self._answers, (None, None))
        if well is None:
            raise TailraceError("the capsule has no answer for this ctx.call, and a call that is made again makes none")
        if not well:
            assert isinstance(answer, Exception)
            raise answer
        return answer  # type: ignore[return-value]


class CapsuleHarness:
    """A failed call, with the operator in the state that it had before the call. Made by `harness`."""

    def __init__(self, capsule: Capsule, *, current: bool = True) -> None:
        """`current`: classes and functions of a script are as its file has them today. Those of modules always are. Raises
        `ConfigError` if the capsule lacks the program or the record."""
        self.capsule = capsule
        self.outputs: list[Any] = []
        """The records that came out."""
        if not capsule.plan:
            raise ConfigError(f"the capsule cannot be used to make the call again: {'; '.join(capsule.gaps)}")
        with self._as_program():
            spec = launcher().load_job(capsule.plan)
            if current:
                take_current_code()
            graph = spec.plan.graph
            found = [node for node in graph.nodes if node.uid == capsule.uid]
            self._parts = {name: capsule.part(name) for name in capsule.parts}
            self._program = sys.modules["__main__"]
        self._answers = _Answers(self._parts.get("answers", []))
        node = replace(found[0], on_error=FAIL)
        self.task = self._operator(node, graph)
        learn_schema(self.task, graph)

    def _operator(self, node: Node, graph: Graph) -> OperatorTask:
        capsule = self.capsule
        services = Services(
            random_factory=lambda seed: self._random(),
            job=capsule.job,
            incarnation=capsule.incarnation,
            run_id=capsule.run_id,
            max_parallelism=graph.max_parallelism,
            outside=self._answers,
            now=capsule.now,
        )
        where = capsule.subtask, capsule.parallelism, capsule.attempt
        place = node.scope, names_of_loops(graph).get(node.scope)
        ctx = OperatorContext(node.name, node.uid, *where, services, *place)
        task = operator_task(RUNTIME.get(type(node.operator)), [node], [ctx])
        task.out = lambda batch: self.outputs.extend(batch.to_rows().values)
        with self._as_program():
            state = capsule.part("state") if "state" in capsule.parts else {}  # the call changes its values
        for table in () if task.backend is None else task.backend.tables.values():
            for entry, value in state.get(table.name, ()):
                table[entry] = value
        if task.backend is not None:
            for restored in task.backend.after_restore:
                restored()
        if capsule.own_state is not None:
            task.restore([MetaPart(capsule.subtask, capsule.parallelism, False, capsule.own_state)])
        return task

    def _random(self) -> random.Random:
        made = random.Random(self.capsule.seed)
        if "random" in self._parts:
            made.setstate(self._parts["random"])
        return made

    @contextmanager
    def _as_program(self) -> Iterator[None]:
        """A context in which the program of the job is the module `__main__`."""
        before = sys.modules["__main__"]
        sys.modules["__main__"] = getattr(self, "_program", before)
        try:
            yield
        finally:
            sys.modules["__main__"] = before

    @property
    def state(self) -> dict[str, Any]:
        """The state of the key: name -> value."""
        return {name: next(value for _, value in entries) for name, entries in self._parts.get("state", {}).items()}

    def rerun(self) -> list[Any]:
        """Opens the function and makes the call. Returns the records that came out. Raises `UserCodeError` as the job
        did."""
        self.open()
        return self.call()

    def open(self) -> None:
        """Opens the function, if that is not the call itself."""
        if self.capsule.what != "open":
            with self._as_program():
                self.task.open()

    def call(self) -> list[Any]:
        """Makes the call once the function is open, and returns the records that came out."""
        capsule, task = self.capsule, self.task
        with self._as_program():
            if capsule.what == "open":
                task.open()
                return self.outputs
            self._answers.live = False
            task.ctx.watermark_time, task.ctx.round = capsule.watermark, capsule.round
            if capsule.what == "finish":
                task.input_ended()
                task.finish()
            elif capsule.what == "timer":
                self._fire(task)
            else:
                self._process(task)
        return self.outputs

    def hold_key(self) -> None:
        """Sets the key of the call once more, behind it, so that state can be looked at."""
        if "key" in self._parts:
            self.task.ctx.current_key = self._parts["key"]

    def _fire(self, task: OperatorTask) -> None:
        assert isinstance(task, TimedTask) and self.capsule.timer is not None
        timers = task.event_timers if self.capsule.domain == "event" else task.processing_timers
        timers.set(self._parts["key"], self.capsule.timer)
        task._fire(timers, self.capsule.timer, 1, self.capsule.domain)

    def _process(self, task: OperatorTask) -> None:
        capsule = self.capsule
        if "batch" not in self._parts:
            raise ConfigError(f"the capsule has no record: {'; '.join(capsule.gaps)}")
        batch = _batch_of(*self._parts["batch"])
        if isinstance(task, FunctionTask) and ("key" in self._parts or getattr(task, "keys", None) is None):
            rows, names = batch.to_rows(), (("process",), ("process1", "process2"))[hasattr(task.gives, "process1")]
            keys = [self._parts["key"]] * len(rows) if "key" in self._parts else None
            task.input = capsule.port
            task.run(getattr(task.gives, names[capsule.port]), rows, keys)
        else:
            task.process(batch, capsule.port)


def same_error(error: UserCodeError, capsule: Capsule) -> bool:
    """True if an error is the one in the capsule."""
    return raised_text(error.__cause__ if error.__cause__ is not None else error) == capsule.error


def _batch_of(form: str, values: Any, times: list[int] | None) -> Batch:
    stamps = None if times is None or set(times) == {NO_TIME} else np.array(times, np.int64)
    return Columns(values, stamps) if form == "columns" else Rows(values, stamps)
