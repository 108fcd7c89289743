"""State with a time to live beside a plain model: calls, sweeps, checkpoints and starts at drawn places, on both backends
and at other parallelisms, with declarations that change."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tailrace as tr
from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.keygroups import group_range, key_group
from tailrace.graph.graph import Node
from tailrace.graph.operators import KeyedProcess
from tailrace.state.backend import MetaPart
from tailrace.state.memory_backend import MemoryBackend
from tailrace.state.ttl import stamps_of
from tailrace.state.ttl_lifetimes import Expiry, ExpiryOf
from tailrace.storage.disk_backend import DiskBackend
from tailrace.task.channels.services import Services
from tailrace.task.operators.context import OperatorContext
from tailrace.task.subtask.chain import RUNTIME
from tailrace.testing.backends import GROUPS, Files, Snapshot

SECOND = 1_000_000


def function(ttl: tr.Ttl | None) -> Any:
    """A function that does what its records say with a state of each kind, and emits what it sees."""

    class Does(tr.KeyedProcessFunction):
        one = tr.ValueState(object, default=None, ttl=ttl)
        items = tr.ListState(object, ttl=ttl)
        entries = tr.MapState(object, object, ttl=ttl)

        def process(self, value: Any, ctx: tr.Context) -> Iterator[Any]:
            _, what, n = value
            if what == "write":
                self.one.value = n if n % 2 else {"n": n}
                self.items.append(n)
                self.entries[n % 3] = n
            elif what == "clear":
                self.one.clear()
                self.items.clear()
                self.entries.remove(n % 3)
            yield self.one.value, list(self.items), dict(self.entries.items()), self.one.exists()

    return Does()


class Part:
    """One subtask of the function."""

    def __init__(self, ttl: tr.Ttl | None, subtask: int, parallelism: int, attempt: int, folder: Path | None) -> None:
        def make(uid: str, subtask: int) -> Any:
            if folder is None:
                return MemoryBackend(GROUPS, uid, subtask, small=3)
            place = folder / f"{attempt}-{parallelism}-{subtask}"
            return DiskBackend(place, GROUPS, uid, subtask, small=3, top_entries=4, cache_entries=3)

        self.services = Services(
            random.Random, incarnation=attempt, run_id="run", max_parallelism=GROUPS, make_backend=make
        )
        operator = KeyedProcess(function(ttl), lambda value: value[0], "wait", False)  # type: ignore[arg-type]
        node = Node(0, operator, "does", "does", True, parallelism, "rows", ())
        ctx = OperatorContext("does", "does", subtask, parallelism, 0, self.services)
        self.task: Any = RUNTIME[KeyedProcess](node, ctx)
        self.out: list[Any] = []
        self.task.out = lambda batch: self.out.extend(batch.to_rows().values)
        self.groups = group_range(subtask, parallelism, GROUPS)
        self.files = Files()

    def call(self, record: Any, now: int, timestamp: int | None) -> Any:
        self.services.now = now
        self.task.process(Rows([record], None if timestamp is None else np.array([timestamp], np.int64)), 0)
        return self.out.pop()

    def cut(self, number: int, now: int) -> tuple[Snapshot, dict[str, Expiry]]:
        self.services.now = now
        return self.files.take(self.task.backend, number), self.task.expiries()


@dataclass
class Entry:
    value: Any
    stamp: int | None
    """None: written before there was a time to live."""


@dataclass
class Model:
    """The states of one key."""

    one: list[Entry] = field(default_factory=list)
    items: list[Entry] = field(default_factory=list)
    entries: dict[Any, Entry] = field(default_factory=dict)

    def keep(self, lives: Callable[[Entry], bool]) -> None:
        self.one = list(filter(lives, self.one))
        self.items = list(filter(lives, self.items))
        self.entries = {key: one for key, one in self.entries.items() if lives(one)}

    def all(self) -> list[Entry]:
        return [*self.one, *self.items, *self.entries.values()]

    def do(self, what: str, n: int, now: int, read: bool) -> Any:
        if what == "write":
            self.one = [Entry(n if n % 2 else {"n": n}, now)]
            self.items.append(Entry(n, now))
            self.entries[n % 3] = Entry(n, now)
        elif what == "clear":
            self.one, self.items = [], []
            self.entries.pop(n % 3, None)
        for each in self.all() if read else ():
            each.stamp = now
        shown = {key: one.value for key, one in self.entries.items()}
        return (self.one[0].value if self.one else None, [one.value for one in self.items], shown, bool(self.one))


class Story:
    """A job of the function, whose parts are moved at random, and the model of its states."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder / str(seed)
        self.now, self.attempt, self.number = 1_000 * SECOND, 0, 0
        self.model: dict[int, Model] = {}
        self.ttl: tr.Ttl | None = None
        self.offset = 0
        self.reached: dict[int, int] = {}
        """Key group -> its time at the last start."""
        self.parts: list[Part] = []
        self.metas: list[dict[str, Expiry]] = []
        self.draw()
        self.begin(self.chance.randint(1, 3))

    def draw(self) -> None:
        """Draws a declaration; often the one that it was, with another lifetime."""
        clock = self.chance.choice(
            ["processing", "event"] if self.ttl is None else [self.ttl.clock] * 4 + ["processing", "event"]
        )
        stops = clock == "processing" and self.chance.random() < 0.4
        if self.ttl is not None and clock == self.ttl.clock and self.chance.random() < 0.8:
            stops = self.ttl.clock_stops_with_job
        self.ttl = tr.Ttl(self.chance.choice([3, 10, 40]), self.chance.choice(["write", "read"]), clock, stops)  # type: ignore[arg-type]

    def begin(self, parallelism: int) -> None:
        self.attempt += 1
        on_disk = self.chance.random() < 0.5
        self.parts = [
            Part(self.ttl, i, parallelism, self.attempt, self.folder if on_disk else None) for i in range(parallelism)
        ]
        for part in self.parts:
            part.services.now = self.now
            part.task.ctx.watermark_time = 0

    def part(self, key: int) -> Part:
        return next(part for part in self.parts if key_group(key, GROUPS) in part.groups)

    def time_of(self, key: int) -> int:
        """The time of a key, which never goes back."""
        return max(self.passed(self.part(key)), self.reached.get(key_group(key, GROUPS), 0))

    def passed(self, part: Part) -> int:
        assert self.ttl is not None
        return part.task.ctx.watermark_time if self.ttl.clock == "event" else self.now - self.offset

    def call(self) -> None:
        chance, key = self.chance, self.chance.randrange(12)
        what, n = chance.choice(["write", "write", "read", "clear"]), chance.randrange(100)
        part, ttl = self.part(key), self.ttl
        timestamp = None
        if chance.random() < 0.9 or (ttl is not None and ttl.clock == "event"):
            timestamp = max(0, part.task.ctx.watermark_time) + chance.randint(-5, 8) * SECOND
        model = self.model.setdefault(key, Model())
        now = self.now
        if ttl is not None:
            now = max(self.begun(part, timestamp), self.time_of(key))
            model.keep(lambda one: one.stamp is None or one.stamp + ttl.span > now)
        expected = model.do(what, n, now, ttl is not None and ttl.refresh == "read")
        assert part.call((key, what, n), self.now, timestamp) == expected

    def begun(self, part: Part, timestamp: int | None) -> int:
        """The time of a call. What was written without a time counts as written in front of the first one."""
        assert self.ttl is not None
        event = self.ttl.clock == "event" and timestamp is not None
        now = max(self.passed(part), timestamp) if event else self.passed(part)  # type: ignore[type-var]
        for key, model in self.model.items():
            for one in model.all() if self.part(key) is part else ():
                one.stamp = self.passed(part) if one.stamp is None else one.stamp
        return now

    def time(self) -> None:
        self.now += self.chance.choice([0, 1, 1, 4]) * SECOND
        for part in self.parts:
            part.services.now = self.now
            if self.chance.random() < 0.7:
                reached = max(0, part.task.ctx.watermark_time) + self.chance.choice([0, 1, 4]) * SECOND
                part.task.advance(reached, 100)

    def restart(self) -> None:
        """Takes a checkpoint, and goes on from it, perhaps with another declaration and at another parallelism."""
        chance = self.chance
        for part in self.parts:  # a delta behind it may be all that the last file has
            if chance.random() < 0.7:
                self.number += 1
                part.cut(self.number, self.now)
                (part.files.confirm if chance.random() < 0.7 else _abort)(part.task.backend, self.number)
        for _ in range(chance.choice([0, 3, 10])):
            self.call()
        self.number += 1
        cuts = [(part, *part.cut(self.number, self.now)) for part in self.parts]
        if self.ttl is not None:
            for key, model in self.model.items():
                ttl, passed = self.ttl, self.time_of(key)
                model.keep(lambda one, ttl=ttl, passed=passed: one.stamp is None or one.stamp + ttl.span > passed)  # type: ignore[misc]
        groups = (
            {group: self.passed(part) for part in self.parts for group in part.groups} if self.ttl is not None else {}
        )
        self.reached = {group: max(time, self.reached.get(group, 0)) for group, time in groups.items()}
        old, down = self.ttl, chance.choice([0, 5, 30]) * SECOND
        watermark = min(part.task.ctx.watermark_time for part in self.parts)
        self.now += down
        if chance.random() < 0.6:
            self.ttl = None if old is not None and chance.random() < 0.3 else self.ttl
            if self.ttl is not None or old is None:
                self.draw()
        same = old is not None and self.ttl is not None and old.stamps == self.ttl.stamps
        if not same:
            self.offset, self.reached = 0, {}
            for model in self.model.values():
                for one in model.all():
                    one.stamp = None
        elif old is not None and old.clock_stops_with_job:
            self.offset += down
        parallelism = len(self.parts) if chance.random() < 0.5 else chance.randint(1, 3)
        self.begin(parallelism)
        for part in self.parts:
            self.restore(part, cuts, watermark)
        for gone, *_ in cuts:
            gone.task.close()

    def restore(self, part: Part, cuts: list[Any], watermark: int) -> None:
        backend, ctx, metas = part.task.backend, part.task.ctx, []
        own = len(cuts) == len(self.parts)
        ctx.watermark_time = cuts[ctx.subtask][0].task.ctx.watermark_time if own else watermark
        for gone, _, expiries in cuts:
            if set(gone.groups) & set(part.groups):
                metas.append(MetaPart(gone.task.ctx.subtask, len(cuts), False, None, expiries=deepcopy(expiries)))
                for table, expiry in expiries.items():
                    backend.note_expiries(table, [ExpiryOf((gone.groups.start, gone.groups.stop), expiry)])
        for gone, snapshot, _ in cuts:
            for group, chain in snapshot.chains.items():
                for one in chain if group in part.groups else ():
                    for info, data in gone.files.snapshots[one].blocks.get(group, []):
                        backend.apply(info, group, data)
        part.task.restore(metas)
        if own:
            part.files = cuts[ctx.subtask][0].files
            part.files.chains.confirm(self.number)
        backend.end_restore(own)
        if self.ttl is not None:  # a job has its first step soon
            self.begun(part, None)
            part.task._before_calls()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.chance.choices([self.call, self.time, self.restart], [10, 3, 1])[0]()
        for part in self.parts:
            part.task.close()


def _abort(backend: Any, number: int) -> None:
    backend.abort(number)


@pytest.mark.parametrize("seeds", [range(i, i + 8) for i in range(0, 24, 8)], ids=str)
def test_whatever_happens_a_call_is_given_what_a_plain_model_has(seeds: range, tmp_path: Path) -> None:
    for seed in seeds:
        try:
            Story(seed, tmp_path).run(100)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_behind_a_restore_entries_of_one_time_have_it_together() -> None:
    """A time of its own takes as much memory as what is around it."""
    ttl = tr.Ttl(60, clock="event")
    before, behind = Part(ttl, 0, 1, 1, None), Part(ttl, 0, 1, 2, None)
    for n in range(40):
        before.call((n, "write", n), 0, (1 + n % 2) * SECOND)
    backend = before.task.backend
    backend.freeze(CutRequest(1))
    blocks, done = backend.encode(10_000)
    assert done and blocks
    for block in blocks:
        behind.task.backend.apply(backend.tables_info()[block.table], block.group, block.data)
    behind.task.backend.end_restore(False)
    for table in [table for table in behind.task.backend.tables.values() if table.info.stamps]:
        stamps = [stamp for _, held in table.items() for stamp in stamps_of(table.kind, held)]
        assert sorted(stamps) == [SECOND] * 20 + [2 * SECOND] * 20 and len(set(map(id, stamps))) == 2
