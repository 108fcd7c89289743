"""Clocks and random bytes are read by way of a book, wherever user code has bound them, and only there."""

from __future__ import annotations

import asyncio
import copy
import datetime as dates
import functools
import gc
import importlib
import logging
import os
import pickle
import queue
import random
import secrets
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tailrace.errors import InternalError
from tailrace.runtime.worker import interception
from tailrace.task.contract.clock_access import OPENING
from tailrace.task.contract.outside import Outside
from tailrace.task.journal.clock_readings import Readings
from tailrace.task.journal.outside_answers import Recorder, ReplayedAnswers


@pytest.fixture(autouse=True, scope="module")
def _intercepted() -> Iterator[None]:
    with interception.with_stand_ins():
        yield


@contextmanager
def within(outside: Outside) -> Iterator[None]:
    interception.enter(outside)
    try:
        yield
    finally:
        interception.leave()


def read(call: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """What user code gets, and the answers that are recorded."""
    recorder = Recorder()
    with within(recorder):
        found = call()
    return found, recorder.take()


def given(call: Callable[[], Any], answers: list[Any]) -> Any:
    """What user code gets in a replay, in which it reads as often."""
    replayed = ReplayedAnswers()
    replayed.give(answers)
    with within(replayed):
        found = call()
    assert replayed.remaining == 0
    return found


class Moment(datetime):
    """A subclass, such as a library may have."""


ZONE = dates.timezone(dates.timedelta(hours=-7))
FORMS: list[Callable[[], Any]] = [
    lambda: time.time(),
    lambda: time.time_ns(),
    lambda: time.monotonic(),
    lambda: time.monotonic_ns(),
    lambda: time.perf_counter(),
    lambda: time.perf_counter_ns(),
    lambda: time.process_time(),
    lambda: time.thread_time_ns(),
    lambda: time.clock_gettime(time.CLOCK_REALTIME),
    lambda: (time.localtime(), time.gmtime(None), time.ctime(), time.asctime(), time.strftime("%c"), time.time()),
    lambda: datetime.now(),
    lambda: datetime.now(ZONE),
    lambda: datetime.now(tz=dates.UTC),
    lambda: datetime.utcnow(),
    lambda: datetime.today(),
    lambda: (date.today(), datetime.now()),
    lambda: Moment.now(),
    lambda: uuid.uuid1(),
    lambda: uuid.uuid1(node=5),
    lambda: uuid.uuid4(),
    lambda: (uuid.getnode(), uuid.uuid4()),
    lambda: os.urandom(16),
    lambda: os.getrandom(16),
    lambda: secrets.token_bytes(),
    lambda: secrets.token_urlsafe(),
    lambda: secrets.choice(range(1 << 40)),
    lambda: random.Random().random(),
    lambda: random.Random(None).getstate(),
    lambda: random.SystemRandom().random(),
    lambda: (random.seed(), random.random()),
    lambda: np.random.default_rng().random(),
    lambda: np.random.RandomState().rand(),
    lambda: np.random.SeedSequence().entropy,
]


@pytest.mark.parametrize("call", FORMS)
def test_a_replay_gives_what_was_read(call: Callable[[], Any]) -> None:
    found, answers = read(call)
    assert given(call, answers) == found
    assert read(call)[0] != found, "and otherwise it is something else each time"
    with pytest.raises(InternalError, match="which it had not done before"):
        given(call, [])


def test_what_is_read_is_what_python_would_have_read() -> None:
    near = lambda one, other: abs(one - other) < 10  # noqa: E731
    for clock in (time.time, time.monotonic, time.perf_counter, time.process_time, time.thread_time):
        assert type(read(clock)[0]) is float and near(read(clock)[0], clock())
    for clock in (time.time_ns, time.monotonic_ns, time.perf_counter_ns):
        assert type(read(clock)[0]) is int and near(read(clock)[0] / 1e9, clock() / 1e9)
    now = read(datetime.now)[0]
    assert type(now) is datetime and near(now.timestamp(), time.time()) and now.tzinfo is None
    zoned = read(lambda: datetime.now(ZONE))[0]
    assert zoned.tzinfo is ZONE and near(zoned.timestamp(), time.time())
    utc = read(datetime.utcnow)[0]
    assert utc.tzinfo is None and near(utc.replace(tzinfo=dates.UTC).timestamp(), time.time())
    assert type(read(Moment.now)[0]) is Moment and type(read(Moment.utcnow)[0]) is Moment
    assert type(read(date.today)[0]) is date and read(date.today)[0] == date.today()
    assert read(uuid.uuid1)[0].version == 1 and read(uuid.uuid4)[0].version == 4
    assert read(uuid.getnode)[0] == uuid.getnode()
    assert [len(read(lambda n=n: os.urandom(n))[0]) for n in (0, 1, 700)] == [0, 1, 700]
    with pytest.raises(ValueError):
        read(lambda: os.urandom(-1))
    with pytest.raises(TypeError):
        read(lambda: datetime.now("Berlin"))  # type: ignore[arg-type]
    assert read(lambda: time.strftime("%Y", time.gmtime(0)))[0] == "1970"


NAMES = """
import dataclasses, functools, time, datetime
from time import time as by_name
from datetime import datetime as day
from uuid import uuid1

LIST = [by_name]
NAMED = {"clock": by_name}
NOW = functools.partial(by_name)

def default(clock=by_name):
    return clock()

def keyword(*, clock=by_name):
    return clock()

def closure():
    clock = by_name
    return lambda: clock()

INNER = closure()

class Owner:
    clock = by_name
    def __init__(self):
        self.own = by_name

class Heir(Owner):
    pass

@dataclasses.dataclass
class Stamped:
    at: float = dataclasses.field(default_factory=by_name)

OWNER, HEIR = Owner(), Heir()
WAYS = [
    lambda: by_name(), lambda: LIST[0](), lambda: NAMED["clock"](), lambda: NOW(), lambda: default(), lambda: keyword(),
    lambda: INNER(), lambda: OWNER.own(), lambda: OWNER.clock(), lambda: Heir.clock(), lambda: HEIR.clock(),
    lambda: Stamped().at, lambda: day.now(), lambda: uuid1(),
]
"""


@pytest.mark.parametrize("when", ["before", "behind"])
def test_however_it_is_bound(when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a module that was imported before the functions were replaced, and in one that is imported behind that."""
    (tmp_path / f"bound_{when}.py").write_text(NAMES)
    monkeypatch.syspath_prepend(tmp_path)
    ways: list[Callable[[], Any]]
    if when == "behind":
        ways = importlib.import_module("bound_behind").WAYS
        outcome = [given(way, read(way)[1]) == read(way)[0] for way in ways]
        assert [bool(read(way)[1]) for way in ways] == [True] * len(ways) and not any(outcome)
        return
    program = (
        "import bound_before as b\n"
        "from tailrace.runtime.worker import interception as i\n"
        "from tailrace.task.journal.outside_answers import Recorder\n"
        "recorder = Recorder()\n"
        "with i.with_stand_ins():\n"
        "    i.enter(recorder)\n"
        "    for way in b.WAYS:\n"
        "        way()\n"
        "        assert recorder.take(), b.WAYS.index(way)\n"
        "    i.leave()\n"
        "import time, datetime, random, os\n"
        "for one in (time.time, os.urandom, random._urandom, datetime.datetime.now):\n"
        "    assert type(one).__name__ == 'builtin_function_or_method', one\n"
        "assert type(vars(datetime.datetime)['now']).__name__ == 'classmethod_descriptor'\n"
        "assert random.Random.seed.__module__ == 'random' and random.seed.__func__ is random.Random.seed\n"
        "i.enter(recorder)\n"
        "time.time(), b.day.now(), random.Random()\n"
        "assert not recorder.take()\n"
        "i.leave()\n"
        "assert time.time() - 9 < b.OWNER.clock() < time.time() + 9\n"
        "print('as before')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "as before\n", ended.stderr


BETWEEN = """
from dataclasses import dataclass, field
from datetime import date, datetime
from time import monotonic, time

now, today = datetime.now, date.today

@dataclass
class Stamped:
    at: datetime = field(default_factory=datetime.now)

WAYS = [lambda: time(), lambda: monotonic(), lambda: now(), lambda: today(), lambda: Stamped().at]
"""


def test_names_bound_between_two_jobs_of_a_process_are_seen_though_no_module_is_new() -> None:
    """In a cell of a notebook, or in a module that is reloaded."""
    program = (
        "import bound_between as b\n"
        "from tailrace.runtime.worker import interception as i\n"
        "from tailrace.task.journal.outside_answers import Recorder\n"
        "recorder, rebound = Recorder(), []\n"
        "rebind = i.rebinding.rebind\n"
        "i.rebinding.rebind = lambda *args, **named: rebound.append(1) or rebind(*args, **named)\n"
        "for job in range(6):\n"
        "    if job in (2, 4):\n"
        "        exec(b.SOURCE, vars(b))\n"
        "    with i.with_stand_ins():\n"
        "        i.enter(recorder)\n"
        "        for way in b.WAYS:\n"
        "            way()\n"
        "            assert recorder.take(), (job, b.WAYS.index(way))\n"
        "        i.leave()\n"
        "print(len(rebound))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "bound_between.py").write_text(f"SOURCE = {BETWEEN!r}\nexec(SOURCE, globals())\n")
        ended = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "3\n", ended.stderr


def test_a_stand_in_is_pickled_and_copied_as_what_it_stands_for() -> None:
    for one in (time.time, time.perf_counter_ns, os.urandom, uuid.uuid1):
        assert pickle.loads(pickle.dumps(one)) is one and copy.deepcopy([one])[0] is one
    assert repr(time.time) == "<built-in function time>" and time.time.__name__ == "time"


def test_a_stand_in_equals_what_it_stands_for() -> None:
    bound: Any = time.monotonic
    real = bound.real
    assert bound is not real and bound == real and real == bound and len({bound, real}) == 1
    assert bound != time.perf_counter and real != time.perf_counter


def test_nothing_is_recorded_outside_of_user_code_and_in_other_threads() -> None:
    recorder, found = Recorder(), queue.Queue[float]()
    time.time(), uuid.uuid4(), datetime.now(), random.Random()
    with within(recorder):
        other = threading.Thread(target=lambda: found.put(time.time()))
        other.start()
        other.join()
        assert found.get() > 0
        recorder.apart(lambda: (time.time(), uuid.uuid4(), uuid.uuid1(), datetime.now(), random.Random()))
        assert recorder.request(lambda: type(time.time()).__name__) == "float"
    assert [type(one).__name__ for one in recorder.take()] == ["Told"]


def test_a_search_for_garbage_reads_for_itself() -> None:
    """A search for garbage comes at any moment: finalizers read clocks then, and what others have put into
    `gc.callbacks`."""

    class Closes:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            seen.append(time.time())

    def measured(phase: str, info: dict[str, int]) -> None:
        seen.append(time.perf_counter())

    def collected() -> float:
        Closes()
        gc.collect()
        return time.monotonic()

    seen: list[float] = []
    gc.callbacks.append(measured)
    gc.callbacks.insert(0, measured)
    try:
        answers = read(collected)[1]
    finally:
        gc.callbacks[:] = [one for one in gc.callbacks if one is not measured]
    assert len(seen) == 5
    assert [list(map(len, one.clocks)) for one in answers] == [[0, 1, 0]], "only what is behind it"


async def _waits() -> None:
    await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "call",
    [
        lambda: logging.getLogger("tailrace.tests").error("a message"),
        lambda: asyncio.run(_waits()),
        lambda: threading.Event().wait(0.001),
        lambda: tempfile.TemporaryFile().close(),
        lambda: tempfile.mktemp(),
        lambda: subprocess.run(["true"], timeout=10),
    ],
    ids=["logging", "asyncio", "threading", "a file", "a name of a file", "a process"],
)
def test_what_waits_and_logs_by_a_clock_is_not_recorded(call: Callable[[], Any]) -> None:
    tempfile._name_sequence = None  # type: ignore[attr-defined]  # as in a process that has named none
    assert read(call)[1] == []


def test_a_module_that_is_imported_reads_for_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_late.py").write_text("import os, time\nSINCE, TOKEN = time.time(), os.urandom(4)\n")
    monkeypatch.syspath_prepend(tmp_path)
    answers = read(lambda: importlib.import_module("imported_late"))[1]
    assert answers == [] and importlib.import_module("imported_late").SINCE > 0


def test_libraries_that_are_opened_read_on_pages_of_their_own() -> None:
    recorder = Recorder()
    readings: Any = recorder.readings
    library = compile("import time\ndef read():\n    return time.time()", "/x/site-packages/tqdm/std.py", "exec")
    names: dict[str, Any] = {}
    exec(library, names)
    with within(recorder):
        readings.phase = OPENING
        names["read"]()
        time.time()
        readings.phase = ""
        names["read"]()
    places = [one.place for one in recorder.take() if isinstance(one, Readings)]
    assert places == ["", "tqdm/std.py"]


def test_what_a_test_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 5.0)
        with interception.with_stand_ins():
            assert time.time() == 5.0 and read(lambda: time.time())[1] == []
    with interception.with_stand_ins():
        assert read(lambda: time.time())[1] != []


def test_a_partial_keeps_its_arguments() -> None:
    early = functools.partial(time.strftime, "%Y", time.gmtime(0))
    assert read(early)[0] == "1970" and read(early)[1] == []
