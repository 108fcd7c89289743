"""Unaligned checkpoints of jobs in which records come together on edges of all kinds: some are overtaken, some are not, and
nobody waits for what waits for him."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest

import tailrace as tr
from search.scenarios import NETWORKS
from search.stories import EVERY_MS, Story
from tailrace.task.contract.tuning import Tuning
from tailrace.task.subtask.alignment import Alignment
from tailrace.testing.faults import Fault
from tailrace.testing.simulator import SimulationStalled

pytestmark = pytest.mark.search
PARALLELISM = 2
CLOSE = replace(EVERY_MS, interval=300, max_concurrent=3, overtakes_after=0, timeout=600_000_000)
"""Unaligned checkpoints, several at once."""
WAYS: dict[str, Any] = {
    "forward": lambda stream: stream,
    "shuffle": lambda stream: stream.shuffle(),
    "rebalance": lambda stream: stream.rebalance(),
    "broadcast": lambda stream: stream.broadcast(),
}


def same(value: int) -> int:
    return value


class Both(tr.CoProcessFunction):
    def process1(self, record: int, ctx: tr.Context) -> Iterator[int]:
        yield record

    def process2(self, record: int, ctx: tr.Context) -> Iterator[int]:
        yield record


@dataclass(frozen=True)
class Web:
    """Functions that pass on what they get, each from one or two others, or sources, by ways of their own; what nobody
    takes goes to the sink."""

    records: int
    sources: int
    functions: tuple[tuple[tuple[int, str], ...], ...]

    @classmethod
    def drawn(cls, seed: int) -> Web:
        rng = random.Random(f"tailrace web {seed}")
        sources, functions = rng.choice([1, 1, 2]), list[tuple[tuple[int, str], ...]]()
        for there in range(sources, sources + rng.randint(3, 4)):
            others = range(there - 1) if rng.random() < 0.7 else ()
            inputs = [there - 1, *rng.sample(others, min(1, len(others)))]
            functions.append(tuple((one, rng.choice(["broadcast", "broadcast", *WAYS])) for one in inputs))
        return cls(rng.randint(20, 40), sources, tuple(functions))

    @property
    def last(self) -> list[int]:
        """What nobody takes."""
        taken = {one for inputs in self.functions for one, _ in inputs}
        return [one for one in range(self.sources + len(self.functions)) if one not in taken]

    def program(self, env: tr.Environment) -> tr.DataStream:
        streams = [env.from_source(tr.sources.Sequence(0, self.records)) for _ in range(self.sources)]
        for inputs in self.functions:
            first, *second = (WAYS[way](streams[one]) for one, way in inputs)
            streams.append(first.connect(*second).process(Both()) if second else first.map(same))
        first, *others = (streams[one] for one in self.last)
        return first.union(*others) if others else first

    def expected(self) -> Counter[int]:
        """Each number comes once along each way from a source to the sink, and once more for each further subtask behind a
        broadcast."""
        times = [1] * self.sources
        for inputs in self.functions:
            times.append(sum(times[one] * (PARALLELISM if way == "broadcast" else 1) for one, way in inputs))
        return Counter(dict.fromkeys(range(self.records), sum(times[one] for one in self.last)))


WAITING = Web(40, 1, (((0, "broadcast"),), ((1, "shuffle"),), ((2, "broadcast"), (1, "broadcast"))))
"""The third of three tasks takes a broadcast of the second, and the second a shuffle of the first."""


def run(story: Story, web: Web, seed: int, losses: dict[str, Any] | None = None, **settings: Any) -> int:
    """Runs it in channels of one frame, and looks at what was published. How many checkpoints had records in flight.
    `losses`: options of a world that loses workers."""
    world = story.simulation(
        web.program,
        parallelism=PARALLELISM,
        seed=seed,
        conditions=NETWORKS["uneven"],
        checkpoints=replace(CLOSE, **settings),
        tuning=Tuning(window=1),
        patience=40_000,
        keep_trace=False,
        **(losses or {}),
    )
    story.finish(world)
    story.is_right(web.expected())
    return story.files.overtaken


@pytest.mark.parametrize("seed", range(4))
def test_a_barrier_that_must_wait_its_turn_waits_for_nothing_that_is_blocked_behind_it(story: Story, seed: int) -> None:
    """One task takes a broadcast of what a second one gives, and of what a third one gives to both of them. The third one
    waits for a barrier that overtakes nothing. The second one had cut before that, upon the coordinator's word; then its
    channels were blocked where it led, until a barrier of the third one, which had no credit left, since the second one had
    none: the job stood still."""
    assert run(story, WAITING, seed) > 0


def test_a_task_that_cuts_before_its_senders_is_found_to_stand_still(story: Story) -> None:
    """The fault put back."""
    hasty = mock.patch.object(Alignment, "_senders_have_cut", lambda self, cut: True)
    with hasty, pytest.raises(SimulationStalled):
        for seed in range(4):
            run(story, WAITING, seed)


def test_checkpoints_that_are_given_up_before_all_have_cut_keep_no_task_from_its_work(story: Story) -> None:
    """Each checkpoint took longer than it may, and the next ones were there. All tasks knew of them at once, and those that
    were to cut came before all work, the most downstream one first: there always was one. Those upstream, and the sources,
    never had a step again, neither to work nor to cut, so no checkpoint was ever complete."""

    def program(env: tr.Environment) -> tr.DataStream:
        stream = env.from_source(tr.sources.Sequence(0, 20))
        for _ in range(12):
            stream = stream.shuffle().map(same)
        return stream

    world = story.simulation(
        program,
        checkpoints=replace(CLOSE, interval=150, timeout=1_000),
        tuning=Tuning(window=1),
        patience=20_000,
        keep_trace=False,
    )
    story.finish(world)
    story.is_right(Counter(range(20)))
    assert world.covered["aborted a checkpoint"] > 50


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_whatever_edges_meet_a_job_with_unaligned_checkpoints_comes_to_its_end(first: int) -> None:
    overtaken = 0
    for seed in range(first, first + 20):
        settings: dict[str, Any] = {
            "overtakes_after": [0, 0, 200][seed % 3],
            "most_inflight": [-1, -1, -1, 60][seed % 4],
        }
        overtaken += run(Story.begin(f"web {seed}"), Web.drawn(seed), seed, **settings)
    assert overtaken > 10


@pytest.mark.parametrize("first", range(100, 120, 10))
def test_workers_that_are_lost_meanwhile_are_replaced_and_nothing_is_lost_with_them(first: int) -> None:
    """A replacement makes the cuts of its worker again, and gets again what barriers had gone past, on some edges only."""
    overtaken = replaced = 0
    for seed in range(first, first + 10):
        rng = random.Random(f"tailrace losses in web {seed}")
        story, found = Story.begin(f"web with losses {seed}"), list[Fault]()
        for number in range(rng.choice([1, 2, 2])):
            soon = f"commit {rng.randint(1, 6)} done" if number else ""
            found.append(
                Fault(rng.randint(0, 60) if soon else rng.randint(50, 800), "kill", rng.randint(0, 3), after=soon)
            )
        losses: dict[str, Any] = {
            "replaces": True,
            "spares": rng.choice([0, 1, 2]),
            "depth": rng.choice([1, 1, 2]),
            "faults": tuple(found),
        }
        overtaken += run(story, Web.drawn(seed), seed, losses, overtakes_after=rng.choice([0, 0, 200]))
        replaced += story.watch.world.covered["replaced a worker"]
    assert overtaken > 5
    assert replaced > 5
