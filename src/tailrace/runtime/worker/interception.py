"""The interception of clocks and random bytes: where a worker may be replaced, user code reads them by way of a book of its
readings (`task.contract.clock_access`), which records them, or gives those of the lost worker.

Each function that reads a clock is replaced by a stand-in, in its module and wherever else it is bound
(`runtime.worker.rebinding`); methods of `datetime`, which is a class in C, are replaced in the class. A stand-in reads as
ever in other threads, between two steps, and for callers that only wait or log by a clock.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import gc
import importlib
import os
import pkgutil
import random
import secrets
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tailrace.errors import OWN_FOLDER
from tailrace.runtime.worker import rebinding
from tailrace.task.contract.clock_access import OTHER, WALL, Book
from tailrace.task.contract.outside import Outside

PASSES = frozenset(
    {
        "asyncio", "concurrent", "http", "importlib", "logging", "multiprocessing", "queue", "selectors", "socket", "ssl",
        "subprocess", "tempfile", "threading", "urllib",
    }
)  # fmt: skip
"""Modules of the standard library that wait and log by a clock, and name files and processes at random. They do it a
different number of times each time, and no result depends on it."""
_OURS = frozenset({"cli", "connectors", "runtime", "spark", "statedata", "storage", "testing"})
"""Rooms of Tailrace whose code reads clocks for itself."""
_THROUGH = frozenset(one.__file__ for one in (random, secrets, uuid))
"""Files whose code reads for its caller."""
_STDLIB = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_PACKAGES = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"
_locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {"unknown": None})  # type: ignore[attr-defined]
"""Modules that are being imported. Their code runs once in a process, whoever imports them."""


class _Scope(threading.local):
    outside: Outside | None = None
    interrupted: Outside | None = None
    """The `outside` of user code that a search for garbage has interrupted."""


_scope = _Scope()
_callers: dict[str, str | None] = {}
"""The library of each file whose code has read; None where its readings are not recorded."""
_users: set[str] = set()
"""Files of user code that has read."""


def enter(outside: Outside) -> None:
    """Enters user code in this thread: it reads by way of `outside`."""
    around = gc.callbacks
    if not around or around[0] is not _before_collection or around[-1] is not _after_collection:
        _watch_collections()
    _scope.outside = outside


def leave() -> None:
    """Leaves user code in this thread."""
    _scope.outside = None


# A search for garbage comes at any moment, and calls finalizers, and what libraries have in `gc.callbacks`: a clock that
# these read is not read by the step that they interrupt.


def _before_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "start":
        _scope.interrupted, _scope.outside = _scope.outside, None


def _after_collection(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        _scope.outside, _scope.interrupted = _scope.interrupted, None


def _watch_collections() -> None:
    """Puts its callbacks around those of all others."""
    _ignore_collections()
    gc.callbacks.insert(0, _before_collection)
    gc.callbacks.append(_after_collection)


def _ignore_collections() -> None:
    """Takes its callbacks away."""
    gc.callbacks[:] = [one for one in gc.callbacks if one not in (_before_collection, _after_collection)]


def _book() -> Book | None:
    """The book for a reading of the caller's caller; None where the reading is not recorded."""
    outside = _scope.outside
    if outside is None or (book := outside.readings) is None:
        return None
    frame = sys._getframe(2)
    if frame.f_code.co_filename in _users and not _locks:
        book.caller = ""
        return book
    return _book_for(frame, book)


def _book_for(frame: FrameType, book: Book) -> Book | None:
    while (file := frame.f_code.co_filename) in _THROUGH and frame.f_back is not None:
        frame = frame.f_back
    caller = _callers[file] if file in _callers else _library_of(file)
    if caller is None or (_locks and _imports(frame)):
        return None
    book.caller = caller
    return book


def _library_of(file: str) -> str | None:
    """The library that a file belongs to; empty for the user's own, None for code whose readings are not recorded."""
    caller: str | None = ""
    if file.startswith(OWN_FOLDER):
        caller = None if file[len(OWN_FOLDER) :].lstrip(os.sep).partition(os.sep)[0] in _OURS else ""
    elif file.startswith("<frozen importlib"):
        caller = None
    else:
        for folder in _PACKAGES:
            if folder in file:
                caller = file.rpartition(folder)[2]
        if not caller and file.startswith(_STDLIB):
            name = next(file[len(folder) :] for folder in _STDLIB if file.startswith(folder))
            caller = None if name.removesuffix(".py").partition(os.sep)[0] in PASSES else name
    _callers[file] = caller
    if caller == "":
        _users.add(file)
    return caller


def _imports(frame: FrameType | None) -> bool:
    """True where the frame runs for an import."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


# Stand-ins.


class StandIn:
    """A stand-in for a function. It is no function, so that a class which has it as an attribute does not bind it. It equals
    the function, which its pickle becomes: user code that has bound one may compare both."""

    __slots__ = ("__dict__", "real")

    def __init__(self, real: Callable[..., Any]) -> None:
        self.real = real
        vars(self).update({name: getattr(real, name) for name in functools.WRAPPER_ASSIGNMENTS if hasattr(real, name)})

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (f"{self.real.__module__}:{self.real.__qualname__}",)

    def __eq__(self, other: object) -> bool:
        return other is self or other == self.real

    def __hash__(self) -> int:
        return hash(self.real)

    def __repr__(self) -> str:
        return repr(self.real)


class WallClock(StandIn):
    """`time.time`, or `time.time_ns`."""

    __slots__ = ("_per_second",)

    def __init__(self, real: Callable[..., Any], per_second: bool) -> None:
        super().__init__(real)
        self._per_second = per_second

    def __call__(self) -> float | int:
        book = _book()
        if book is None:
            return self.real()  # type: ignore[no-any-return]
        nanos = book.clock(WALL, _REAL.wall)
        return nanos / 1e9 if self._per_second else nanos


class MonotonicClock(StandIn):
    """`time.monotonic`, `time.perf_counter`, or one of them in nanoseconds."""

    __slots__ = ("_nanos", "_per_second")

    def __init__(self, real: Callable[..., Any], nanos: Callable[[], int]) -> None:
        super().__init__(real)
        self._nanos, self._per_second = nanos, real is not nanos

    def __call__(self) -> float | int:
        book = _book()
        if book is None:
            return self.real()  # type: ignore[no-any-return]
        nanos = book.monotonic(self._nanos, _REAL.wall)
        return nanos / 1e9 if self._per_second else nanos


class OtherClock(StandIn):
    """A clock of processor time, or one that is chosen by a number."""

    __slots__ = ("_nanos", "_per_second")

    def __init__(self, real: Callable[..., Any], nanos: Callable[..., int]) -> None:
        super().__init__(real)
        self._nanos, self._per_second = nanos, real is not nanos

    def __call__(self, *which: int) -> float | int:
        book = _book()
        if book is None:
            return self.real(*which)  # type: ignore[no-any-return]
        nanos = book.clock(OTHER, lambda: self._nanos(*which))
        return nanos / 1e9 if self._per_second else nanos


class OfNow(StandIn):
    """A function of a moment, such as `time.localtime`, which is now where its argument number `at` is missing or None."""

    __slots__ = ("_at", "_moment")

    def __init__(self, real: Callable[..., Any], at: int, moment: Callable[[float], Any]) -> None:
        super().__init__(real)
        self._at, self._moment = at, moment

    def __call__(self, *args: Any) -> Any:
        if len(args) > self._at and args[self._at] is not None:
            return self.real(*args)
        book = _book()
        if book is None:
            return self.real(*args)
        return self.real(*args[: self._at], self._moment(book.clock(WALL, _REAL.wall) / 1e9))


class RandomBytes(StandIn):
    """`os.urandom`, or `os.getrandom`."""

    __slots__ = ()

    def __call__(self, size: int, *flags: Any, **named: Any) -> bytes:
        book = _book() if type(size) is int and size > 0 else None
        if book is None:
            return self.real(size, *flags, **named)  # type: ignore[no-any-return]
        return book.draw(size, _REAL.random)


class Identifier(StandIn):
    """`uuid.uuid1`, or `uuid.getnode`: a number that Python makes of clocks, of the machine, and of what it made before."""

    __slots__ = ()

    def __call__(self, *args: Any, **named: Any) -> Any:
        book, outside = _book(), _scope.outside
        if book is None or outside is None:
            return self.real(*args, **named)
        whole = self.real is _REAL.node
        real = functools.partial(outside.apart, functools.partial(self.real, *args, **named))
        data = book.value(lambda: real().to_bytes(16, "big") if whole else real().bytes)
        return int.from_bytes(data, "big") if whole else uuid.UUID(bytes=data)


class _Real:
    """The functions that stand-ins read by. They are attributes of an object with slots, where nobody rebinds them."""

    __slots__ = ("node", "now", "random", "seed", "today", "utcnow", "wall")

    def __init__(self) -> None:
        self.wall, self.random, self.node = time.time_ns, os.urandom, uuid.getnode
        self.seed: Any = random.Random.seed
        self.now: Any = vars(datetime.datetime)["now"]
        self.utcnow: Any = vars(datetime.datetime)["utcnow"]
        self.today: Any = vars(datetime.date)["today"]


_REAL = _Real()


def _seconds(book: Book) -> float:
    """The moment, in whole microseconds, as `datetime` takes it."""
    return book.clock(WALL, _REAL.wall) // 1_000 / 1e6


def _now(cls: type[datetime.datetime], tz: datetime.tzinfo | None = None) -> datetime.datetime:
    book = _book()
    if book is None:
        return _REAL.now.__get__(None, cls)(tz)  # type: ignore[no-any-return]
    return cls.fromtimestamp(_seconds(book), tz)


def _utcnow(cls: type[datetime.datetime]) -> datetime.datetime:
    book = _book()
    if book is None:
        return _REAL.utcnow.__get__(None, cls)()  # type: ignore[no-any-return]
    return cls.fromtimestamp(_seconds(book), datetime.UTC).replace(tzinfo=None)


def _today(cls: type[datetime.date]) -> datetime.date:
    book = _book()
    if book is None:
        return _REAL.today.__get__(None, cls)()  # type: ignore[no-any-return]
    return cls.fromtimestamp(_seconds(book))


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    """Seeds a generator. Where no seed is given, C would read random bytes by itself."""
    if a is None and (book := _book()) is not None:
        a = int.from_bytes(book.draw(32, _REAL.random), "big")
    _REAL.seed(self, a, version)


def _stand_ins() -> list[tuple[Any, Any]]:
    """The functions, each with its stand-in."""
    found: list[StandIn] = [WallClock(time.time, True), WallClock(time.time_ns, False)]
    for clock, nanos in (("monotonic", time.monotonic_ns), ("perf_counter", time.perf_counter_ns)):
        found += [MonotonicClock(getattr(time, clock), nanos), MonotonicClock(nanos, nanos)]
    for clock in ("process_time", "thread_time", "clock_gettime"):
        other = getattr(time, f"{clock}_ns", None)
        if other is not None:
            found += [OtherClock(getattr(time, clock), other), OtherClock(other, other)]
    local = time.localtime
    found += [OfNow(local, 0, float), OfNow(time.gmtime, 0, float), OfNow(time.ctime, 0, float)]
    found += [OfNow(time.asctime, 0, local), OfNow(time.strftime, 1, local)]
    found += [RandomBytes(os.urandom), Identifier(uuid.uuid1), Identifier(uuid.getnode)]
    if hasattr(os, "getrandom"):
        found.append(RandomBytes(os.getrandom))
    shared = random._inst  # type: ignore[attr-defined]
    return [*((one.real, one) for one in found), (random.seed, functools.partial(_seed, shared))]


_IN_CLASSES: tuple[tuple[type, str, Any, Any], ...] = (
    (datetime.datetime, "now", _REAL.now, classmethod(_now)),
    (datetime.datetime, "utcnow", _REAL.utcnow, classmethod(_utcnow)),
    (datetime.date, "today", _REAL.today, classmethod(_today)),
    (random.Random, "seed", _REAL.seed, _seed),
)
_OWNERS = datetime.datetime, datetime.date


class _Process:
    """The stand-ins of this process."""

    __slots__ = ("modules", "needed", "places", "references", "stand_ins")

    def __init__(self) -> None:
        self.stand_ins = _stand_ins()
        homes = [module for name, module in sys.modules.items() if name in ("os", "posix", "random", "time", "uuid")]
        new = {id(real): (real, stand_in) for real, stand_in in self.stand_ins}
        self.places = [
            (module, name, *new[id(one)]) for module in homes for name, one in vars(module).items() if id(one) in new
        ]
        """Modules that functions belong to: (module, name, function, stand-in)."""
        self.modules: set[str] = set()
        """All modules, when functions were last replaced."""
        self.references: list[int] = []
        """Number of references to each function and class, at that time."""
        self.needed = 0

    def rebind(self) -> None:
        """Puts stand-ins in the place of functions wherever code has bound one since this was last done: a module that
        was imported or reloaded since, or a cell of a notebook."""
        known, count = self.references, self._count_references()
        if sys.modules.keys() - self.modules or any(now > before for now, before in zip(count, known, strict=False)):
            pairs = [*self.stand_ins, *rebinding.methods_of_c(_OWNERS, (name for _, name, *_ in _IN_CLASSES))]
            rebinding.rebind(pairs, spared=[globals(), self.stand_ins])
            del pairs
            self.modules, self.references = set(sys.modules), self._count_references()

    def _count_references(self) -> list[int]:
        return [sys.getrefcount(one) for one in (*(real for real, _ in self.stand_ins), *_OWNERS)]


_process = _Process()
_lock = threading.Lock()


def intercept() -> None:
    """Puts stand-ins in the place of the functions of this process that read clocks and random bytes. What another library
    has replaced before, such as one that sets the time of a test, stays as it is."""
    with _lock:
        _process.needed += 1
        for module, name, real, stand_in in _process.places:
            if getattr(module, name) is real:
                setattr(module, name, stand_in)
        for owner, name, real, stand_in in _IN_CLASSES:
            rebinding.set_in_class(owner, name, real, stand_in)
        _process.rebind()


def release() -> None:
    """Gives the functions their places back, if nobody else needs the stand-ins. Where user code has bound a stand-in, it
    stays, and reads as ever."""
    with _lock:
        _process.needed -= 1
        if not _process.needed:
            _ignore_collections()
            for module, name, real, stand_in in _process.places:
                if getattr(module, name) is stand_in:
                    setattr(module, name, real)
            for owner, name, real, stand_in in _IN_CLASSES:
                rebinding.set_in_class(owner, name, stand_in, real)


@contextlib.contextmanager
def with_stand_ins() -> Iterator[None]:
    """A context in which stand-ins are in the place of these functions."""
    intercept()
    try:
        yield
    finally:
        release()
