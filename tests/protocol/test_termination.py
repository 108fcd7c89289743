"""One task's half of a wave and of coming to rest; and that a wave is a consistent cut that knows what channels hold."""

from __future__ import annotations

from collections import deque
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.elements.timestamps import MAX_TIME, NO_TIME
from tailrace.errors import ProtocolViolation
from tailrace.protocol.termination import Gathering, Wave

# A wave.


def test_what_is_read_between_the_cut_and_the_marker_counts() -> None:
    wave = Wave("ab")
    wave.read("a", 5, 10)
    assert not wave.complete and wave.start(1)
    wave.marker("a", 1)
    wave.read("a", 7, 1)
    wave.read("b", 2, 30)
    wave.read("b", 1, 20)
    assert (wave.recorded, wave.earliest, wave.complete) == (3, 20, False)
    wave.marker("b", 1)
    wave.read("b", 1, 5)
    assert (wave.recorded, wave.earliest, wave.complete) == (3, 20, True)


def test_a_wave_is_cut_for_once_however_often_it_is_announced() -> None:
    wave = Wave("ab")
    assert wave.start(1) and not wave.start(1)
    wave.marker("a", 1)
    wave.marker("b", 1)
    assert not wave.start(1), "the command may come last"
    assert wave.start(2) and not wave.start(1)
    assert wave.current == 2 and not wave.complete


def test_a_wave_begins_with_nothing_recorded() -> None:
    wave = Wave("a")
    wave.start(1)
    wave.read("a", 1, 5)
    wave.marker("a", 1)
    wave.start(2)
    assert (wave.recorded, wave.earliest) == (0, MAX_TIME)


def test_an_end_counts_as_the_marker() -> None:
    wave = Wave("ab")
    wave.start(1)
    wave.read("b", 1, NO_TIME)
    wave.end("b")
    wave.marker("a", 1)
    assert wave.complete and (wave.recorded, wave.earliest) == (1, MAX_TIME)
    wave.start(2)
    wave.marker("a", 2)
    assert wave.complete, "and as that of every wave to come"
    wave.end("a")
    assert wave.start(3) and wave.complete, "without channels a wave is complete at its cut"


@pytest.mark.parametrize(("channel", "wave"), [("a", 1), ("b", 2), ("x", 1), ("b", 0)])
def test_a_marker_that_cannot_come_is_reported(channel: str, wave: int) -> None:
    task = Wave("ab")
    task.start(1)
    task.marker("a", 1)
    with pytest.raises(ProtocolViolation):
        task.marker(channel, wave)


def test_waves_do_not_overlap() -> None:
    task = Wave("a")
    task.start(1)
    with pytest.raises(ProtocolViolation, match="wave 1 is under way"):
        task.start(2)


def test_a_broken_invariant_is_reported() -> None:
    task = Wave("a")
    assert task.check() is None
    task._awaited = {"a"}
    assert task.check() == "V3: a channel is awaited without a wave"
    task._awaited = {"x"}
    assert task.check() == "V3: a channel that ended is awaited"


# Gathering.


def test_a_number_is_gathered_when_all_have_delivered_it() -> None:
    rest = Gathering("ab")
    assert not rest.marker("a", 1)
    assert not rest.marker("a", 2)
    assert rest.marker("b", 1) and rest.due(1) and not rest.due(1)
    assert not rest.marker("b", 1), "and once"
    assert rest.marker("b", 2) and rest.due(2) and rest.done == 2


def test_an_end_may_be_what_a_number_waited_for() -> None:
    rest = Gathering("ab")
    rest.marker("a", 1)
    rest.marker("a", 2)
    assert rest.end("b") == [1, 2]
    assert rest.end("a") == []
    rest = Gathering("ab")
    rest.marker("a", 1)
    assert rest.end("a") == [], "the other channel has not delivered it"
    assert rest.marker("b", 1)


def test_who_has_no_channels_is_told() -> None:
    rest = Gathering("")
    assert rest.command(1) and rest.due(1)
    assert not rest.command(1)
    assert rest.command(2)
    assert not Gathering("a").command(1), "who has channels waits for their markers"


def test_restored_it_passes_on_what_it_has_done_and_does_not_do_it_again() -> None:
    rest = Gathering("a", done=1)
    assert rest.marker("a", 1), "who comes behind may not have done it"
    assert not rest.due(1)
    assert rest.marker("a", 2) and rest.due(2)


def test_rounds_count_from_0() -> None:
    rounds = Gathering("ab", -1)
    assert not rounds.marker("a", 0) and rounds.marker("b", 0) and rounds.due(0)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(0, 4), st.data(), st.randoms(use_true_random=False))
def test_every_number_is_gathered_once_and_in_order(
    channels: int, done: int, numbers: int, data: st.DataObject, chance: Random
) -> None:
    """V4: whatever the order, and whoever ends."""
    todo = {c: deque(range(1, numbers + 1)) for c in range(channels)}
    leaves = data.draw(st.sets(st.sampled_from(range(channels)), max_size=channels - 1))
    rest, seen, worked = Gathering(range(channels), done), [], []

    def gathered(found: list[int]) -> None:
        for number in found:
            seen.append(number)
            if rest.due(number):
                worked.append(number)

    while todo:
        channel = chance.choice(sorted(todo))
        if todo[channel] and not (channel in leaves and chance.random() < 0.3):
            number = todo[channel].popleft()
            gathered([number] if rest.marker(channel, number) else [])
        else:
            gathered(rest.end(channel))
            del todo[channel]
    assert seen == list(range(1, numbers + 1))
    assert worked == [number for number in seen if number > done]


# The cut. Tasks that send each other records at will, with waves through them; every record carries how many waves its
# sender had cut for when it was sent, which gives on which side of which cut it is.


class Web:
    """Tasks, each connected to each, and waves from task 0."""

    def __init__(self, size: int, chance: Random) -> None:
        self.chance = chance
        ids = range(size)
        self.channels: dict[tuple[int, int], deque[Any]] = {(a, b): deque() for a in ids for b in ids if a != b}
        self.waves = [Wave(c for c in self.channels if c[1] == i) for i in ids]
        self.truth = [0] * size
        """How many records each has read that were sent before their sender's cut and read after the reader's."""

    def step(self) -> None:
        source = self.chance.randrange(len(self.waves))
        kind = self.chance.random()
        ready = [channel for channel, items in self.channels.items() if items]
        if kind < 0.3:
            target = self.chance.choice([b for a, b in self.channels if a == source])
            self.channels[source, target].append(("record", self.waves[source].current))
        elif kind < 0.4 and all(wave.complete or not wave.current for wave in self.waves):
            newest = max(wave.current for wave in self.waves)
            if all(wave.current == newest for wave in self.waves):
                self.start(source, newest + 1)
        elif ready:
            self.read(self.chance.choice(ready))

    def start(self, task: int, number: int) -> None:
        if self.waves[task].start(number):
            self.truth[task] = 0
            for channel, items in self.channels.items():
                if channel[0] == task:
                    items.append(("attempt", number))

    def read(self, channel: tuple[int, int]) -> None:
        what, number = self.channels[channel].popleft()
        task, wave = channel[1], self.waves[channel[1]]
        if what == "attempt":
            self.start(task, number)
            wave.marker(channel, number)
        else:
            assert number <= wave.current, "read before its reader's cut, and sent after its sender's"
            self.truth[task] += number < wave.current
            wave.read(channel, 1, MAX_TIME)
        assert wave.check() is None
        if wave.complete:
            assert wave.recorded == self.truth[task], "what was in the channels at the cut is what was recorded"


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_wave_is_a_consistent_cut_and_records_what_is_in_the_channels(size: int) -> None:
    """V1, V2, V3."""
    for seed in range(20):
        web = Web(size, Random(seed))
        for _ in range(500):
            web.step()
        assert web.waves[0].current > 2
