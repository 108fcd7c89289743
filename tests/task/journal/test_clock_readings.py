"""Readings of clocks and random bytes are kept in few bytes, and are given again in their order."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tailrace.errors import InternalError
from tailrace.task.contract.clock_access import OPENING, OTHER, READING, WALL
from tailrace.task.journal.clock_readings import GivenReadings, LiveReadings, Readings


def never(*args: Any) -> Any:
    raise AssertionError("the world is read in a replay")


def counting(first: int, step: int = 1_000) -> Callable[[], int]:
    """A clock."""
    return itertools.count(first, step).__next__


def travelled(live: LiveReadings) -> list[Readings]:
    """The readings, as they come out of a history."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(live.take()), type=list[Readings])


def again(live: LiveReadings) -> GivenReadings:
    given = GivenReadings()
    given.give(travelled(live))
    return given


def drawn_acts(fresh: random.Random, attempt: bool = True) -> list[Callable[[Any], Any]]:
    """Some readings, one after the other."""
    wall = lambda: fresh.randint(-(1 << 60), 1 << 60)  # noqa: E731 - a clock that is set all the time
    acts: list[Callable[[Any], Any]] = [
        lambda book: book.clock(WALL, wall),
        lambda book: book.clock(OTHER, wall),
        lambda book: book.monotonic(wall, wall),
        lambda book: book.draw(7, fresh.randbytes),
        lambda book: book.draw(100, fresh.randbytes),
        lambda book: book.value(lambda: fresh.randbytes(16)),
        lambda book: book.attempt(3),
    ]
    return fresh.choices(acts if attempt else acts[:-1], k=fresh.randint(0, 30))


def test_whatever_is_read_is_given_again() -> None:
    for seed in range(200):
        live, chosen = LiveReadings(), drawn_acts(random.Random(seed))
        first = [act(live) for act in chosen]
        given = again(live)
        assert [act(given) for act in chosen] == first
        assert given.remaining == 0 and not given.lacked and live.take() == []


def test_readings_of_several_steps_are_given_one_after_the_other() -> None:
    for seed in range(100):
        live, fresh, answers = LiveReadings(), random.Random(seed), list[Readings]()
        chosen, first = list[Callable[[Any], Any]](), list[Any]()
        for _ in range(4):
            step = drawn_acts(fresh, attempt=False)
            first += [act(live) for act in step]
            chosen += step
            answers += travelled(live)
        given = GivenReadings()
        given.give(answers)
        assert [act(given) for act in chosen] == first and given.remaining == 0


def test_what_is_left_is_counted_and_what_was_not_read_is_refused() -> None:
    live = LiveReadings()
    live.clock(WALL, counting(5))
    live.draw(4, random.randbytes)
    given = again(live)
    assert given.remaining == 2
    assert given.clock(WALL, never) == 5
    given.draw(4, never)
    acts = [
        (lambda: given.clock(WALL, never), "reads a clock"),
        (lambda: given.monotonic(never, never), "reads a clock"),
        (lambda: given.draw(1, never), "takes random bytes"),
        (lambda: given.value(never), "makes a UUID"),
        (lambda: given.attempt(1), "reads ctx.attempt"),
    ]
    for act, text in acts:
        with pytest.raises(InternalError, match=text):
            act()
        assert text in given.lacked, "the function may catch the error"
    given.give([])
    assert given.remaining == 0 and not given.lacked


def test_a_clock_that_is_read_for_each_record_takes_three_bytes_a_reading() -> None:
    live, rng = LiveReadings(), random.Random(3)
    at = 1_790_000_000_000_000_000
    for _ in range(1_000):
        at += rng.randint(300, 60_000)
        live.clock(WALL, lambda at=at: at)  # type: ignore[misc]
    assert len(msgspec.msgpack.encode(live.take())) < 3_100


def test_random_bytes_take_a_seed_for_each_step() -> None:
    live = LiveReadings()
    drawn = {live.draw(16, random.randbytes) for _ in range(1_000)}
    assert len(drawn) == 1_000
    assert len(msgspec.msgpack.encode(live.take())) < 80
    assert live.draw(16, random.randbytes) not in drawn, "the next step has a seed of its own"


def test_a_reader_that_reads_more_often_than_before_reads_on() -> None:
    """How often it looks depends on what it finds."""
    live = LiveReadings()
    live.phase = READING
    assert [live.clock(WALL, counting(5)), live.draw(2, lambda count: bytes(count))]
    live.phase = ""
    live.clock(WALL, counting(70))
    given = again(live)
    given.phase = READING
    assert [given.clock(WALL, counting(900)) for _ in range(2)] == [5, 900]
    given.phase = ""
    assert given.clock(WALL, never) == 70 and given.remaining == 0
    given.phase = READING
    assert given.monotonic(counting(8), never) == 8 and given.value(lambda: b"a") == b"a" and given.attempt(3) == 3


def test_libraries_that_open_calls_may_read_more_or_less_and_the_users_own_code_may_not() -> None:
    live = LiveReadings()
    live.phase, live.caller = OPENING, "tqdm/std.py"
    live.clock(WALL, counting(5))
    live.clock(WALL, counting(6))
    live.caller = ""
    live.clock(WALL, counting(7))
    given = again(live)
    given.phase, given.caller = OPENING, "another/library.py"
    assert given.clock(WALL, counting(100)) == 100
    given.caller = "tqdm/std.py"
    assert given.clock(WALL, never) == 5
    given.caller = ""
    assert given.remaining == 1 and given.clock(WALL, never) == 7
    assert given.remaining == 0, "what the library has not read is no difference"
    with pytest.raises(InternalError):
        given.clock(WALL, never)


SECOND = 1_000_000_000


def moved(uptime: int, day: int) -> LiveReadings:
    """The readings of a worker that goes on for one that read 500 s when the day was at 10,000 s."""
    live, last = LiveReadings(), GivenReadings()
    live.monotonic(lambda: 500 * SECOND, lambda: 10_000 * SECOND)
    last.give(travelled(live))
    assert last.monotonic(never, never) == 500 * SECOND
    live.go_on_from(last.last)
    assert live.monotonic(lambda: uptime, lambda: day) >= 500 * SECOND
    return live


@pytest.mark.parametrize("uptime", [7, 90_000])
def test_a_monotonic_clock_goes_on_on_another_machine(uptime: int) -> None:
    """A function may have kept a reading, and take the difference."""
    live = moved(uptime * SECOND, 10_003 * SECOND)
    assert live.monotonic(lambda: (uptime + 4) * SECOND, lambda: 10_007 * SECOND) == 507 * SECOND


def test_on_the_same_machine_it_is_what_it_is() -> None:
    live = moved(503 * SECOND, 10_003 * SECOND + 200_000)
    assert live.monotonic(lambda: 504 * SECOND, never) == 504 * SECOND


def test_it_never_goes_back() -> None:
    live = moved(7 * SECOND, 9_990 * SECOND)  # this machine's clock is ten seconds behind
    assert live.monotonic(lambda: 8 * SECOND, never) == 501 * SECOND
