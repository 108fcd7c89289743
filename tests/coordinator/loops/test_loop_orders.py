"""Small loop nests in every order and larger ones by chance, with the real halves of the protocol; and why each of its rules
is there."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nests import TWO_HEADS, Kind, Play, Shape, explore, head, replaced

from tailrace.coordinator.loops.termination import (
    WaveResult,
    decide,
)
from tailrace.elements.timestamps import LAST_TIME
from tailrace.protocol.termination import (
    WaveFacts,
)

pytestmark = pytest.mark.search

# Why it is as it is.


def test_a_head_that_decides_alone_ends_too_early() -> None:
    """FLIP-15 as written: a head sends a token around, and ends when it comes back and no record came before it."""
    feedback: list[list[str]] = [[], ["record"]]
    ended, dirty = [False, False], [False, False]
    for body in feedback:  # both heads begin their attempt; both bodies have aligned both tokens
        body.append("token")

    def take(number: int) -> str:
        item = feedback[number].pop(0)
        if item == "token":
            ended[number] = not dirty[number]
        else:
            dirty[number] = True
        return item

    assert take(0) == "token" and ended == [True, False]
    assert take(1) == "record"
    feedback[0].append("record")  # by the shuffle, the other body, and its feedback
    assert ended[0], "the record has come to a head that has ended"


def test_and_here_it_does_not() -> None:
    play = Play(TWO_HEADS, waiting={5: (2,)}, restored=True, hurry=1)
    play.move()
    play.follow(0)
    play.follow(1)
    for channel in range(4):
        play.read(channel, None)
    play.read(4, None)
    assert play.clean == {(0, 1)} and play.alive(), "the first worker has found nothing, as the head did above"
    play.read(5, 2)  # the record goes to the other body
    play.read(5, None)
    assert play.down == [(), ()] and play.nests.waves(0) == 1, "the other worker has: nothing follows"
    play.read(2, 4)
    play.read(4, 0)
    assert not any(play.ended) and play.tasks[0].fed
    walk(play, Random(1))


# In every order.


def test_two_heads_in_every_order() -> None:
    """Waves at any moment. There are moments in which one worker by itself would have ended the nest; it never does."""
    misled = explore(Play(TWO_HEADS, waiting={5: (1,)}, restored=True, hurry=1))
    assert (0, 1) in misled


def test_two_heads_from_their_input_to_their_end() -> None:
    shape = Shape((head(0, regular=(1,)), *TWO_HEADS.tasks[1:]), TWO_HEADS.channels)
    explore(Play(shape))


@pytest.mark.parametrize("waiting", [{3: (2,)}, {4: (1,)}, {3: (1,), 4: (1,)}], ids=str)
@pytest.mark.parametrize("restored", [True, False])
def test_several_feedback_edges(waiting: dict[int, tuple[int, ...]], restored: bool) -> None:
    shape = Shape(
        (head(0), Kind(0), Kind(1)), ((0, 1, False), (0, 2, False), (1, 2, False), (1, 0, True), (2, 0, True))
    )
    explore(Play(shape, waiting=waiting, restored=restored, hurry=int(restored and len(waiting) == 1)))


NESTED = Shape(
    (head(0), Kind(1, consumes=False), Kind(1), Kind(0)),
    ((0, 1, False), (1, 2, False), (2, 1, True), (2, 3, False), (3, 0, True)),
)
"""An outer head, an inner head, the inner body with its feedback, and the outer one with its own."""


def test_a_record_that_is_parked_on_the_inner_feedback_keeps_the_outer_loop() -> None:
    play = Play(NESTED, waiting={2: (2,)}, restored=True, hurry=1)
    play.move()
    play.follow(0)
    play.follow(1)
    for channel in (0, 1, 3, 4):  # the wave goes around the outer loop; the inner feedback is slow
        play.read(channel, None)
    assert play.clean == {(0, 1)} and play.alive()
    assert not play.tasks[1].wave.complete
    play.read(2, 1)
    assert play.tasks[1].wave.recorded == 1
    walk(play, Random(2))


ONE_HEAD = ((0, 1, False), (0, 2, False), (1, 0, True), (2, 0, True))


TIMED = (
    (head(0), Kind(0, due=1), Kind(1)),
    (head(0), Kind(0), Kind(1, due=1)),
    (head(0), Kind(0, due=1), Kind(1, due=1)),
)


@pytest.mark.parametrize("tasks", TIMED, ids=range(3))
def test_event_time_comes_to_its_end_when_all_tasks_have_what_was_on_its_way(tasks: tuple[Kind, ...]) -> None:
    """Timers that are due by the time that the entries have reached fire, and what they emit goes around, before any that
    is due at the end only; whatever the order (asserted where `Advance` is sent)."""
    explore(Play(Shape(tasks, ONE_HEAD), hurry=int(tasks is TIMED[0])))


INSIDE = Shape(
    (head(0), Kind(0, inner=True, due=1, consumes=False), Kind(0, leave=True, consumes=False), Kind(0, due=1)),
    ((0, 1, False), (1, 1, True), (1, 2, False), (2, 3, False), (3, 0, True)),
)
"""An outer head, a loop inside with one task, its leave, and a task of the outer loop behind it."""


def test_and_when_the_loops_inside_have_let_it_go() -> None:
    explore(Play(INSIDE))


@pytest.mark.parametrize("restored", [True, False])
def test_nested_loops_in_every_order(restored: bool) -> None:
    misled = explore(Play(NESTED, waiting={2: (2,)}, restored=restored, hurry=2 if restored else 0))
    assert not restored or misled


@pytest.mark.parametrize(
    "tasks",
    [
        (head(0), Kind(0, timer=1), Kind(1)),
        (head(0), Kind(0), Kind(1, timer=1)),
        (head(0), Kind(0, silent_timer=True), Kind(1)),
        (head(0), Kind(0), Kind(1, event_timer=1)),
        (head(0), Kind(0), Kind(1, farewell=1)),
        (head(0), Kind(0, event_timer=1), Kind(1, farewell=1)),
        (head(0, regular=(1,)), Kind(0), Kind(1, timer=1)),
    ],
    ids=range(7),
)
def test_what_will_yet_make_a_record_is_waited_for(tasks: tuple[Kind, ...]) -> None:
    """A timer of processing time, one of event time, what `finish` emits: all comes out before the end."""
    explore(Play(Shape(tasks, ONE_HEAD)))


@pytest.mark.parametrize(
    "tasks",
    [
        (head(0), Kind(0, timer=1), Kind(1)),
        (head(0), Kind(0), Kind(1, silent_timer=True)),
        (head(0, regular=(1,)), Kind(0), Kind(1)),
    ],
    ids=["timer", "silent timer", "input"],
)
def test_and_a_wave_that_comes_before_it_does_not_end_the_nest(tasks: tuple[Kind, ...]) -> None:
    explore(Play(Shape(tasks, ONE_HEAD), restored=True, hurry=2))


def test_who_stops_at_an_empty_queue_ends_before_the_timer() -> None:
    """Without that obligation the wave would find nothing, and be wrong."""
    play = Play(Shape((head(0), Kind(0, timer=1), Kind(1)), ONE_HEAD), restored=True, hurry=1)
    play.move()
    play.follow(0)
    for channel in (0, 1, 2, 3):
        play.read(channel, None)
    assert decide([replaced(facts, obliged=False) for facts in reports(play)]).step is WaveResult.END
    assert decide(list(reports(play))).step is WaveResult.NOT_YET and play.alive()


def reports(play: Play) -> list[WaveFacts]:
    """What each worker has to report of the wave under way."""
    found = []
    for slot in range(play.shape.slots):
        noted = [play.tasks[n].facts for n in play._here(slot)]
        found.append(WaveFacts(
            obliged=any(one[0] for one in noted), ended=True, watermark=LAST_TIME, rested_min=1, rested_max=1,
        ))  # fmt: skip
    return found


# By chance, with more of everything.


def walk(play: Play, chance: Random, most: int = 20_000) -> int:
    """One order of all there are, to the end."""
    for step in range(most):
        choices = list(play.choices())
        if choices:
            chance.choice(choices)(play)
        elif all(play.ended):
            play.over()
            return step
        elif play.terse:
            play.wait()
        else:
            play.over()
    raise AssertionError("it does not come to an end")


@st.composite
def nests(draw: st.DrawFn) -> Play:
    """Some slots with a head and some bodies each; every head speaks to the first bodies of all, and those go on in their
    worker or across, or back."""
    slots, depth = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    few = st.integers(0, 3)
    tasks = [head(slot, regular=tuple(draw(st.lists(few, max_size=3)))) for slot in range(slots)]
    channels: list[tuple[int, int, bool]] = []
    for level in range(depth):
        for slot in range(slots):
            timers = {name: draw(few) for name in ("timer", "event_timer", "farewell") if draw(st.booleans())}
            tasks.append(Kind(slot, consumes=draw(st.booleans()) or level == 0, **timers))
        across = level == 0 or draw(st.booleans())
        pairs = product(range(slots), range(slots)) if across else [(slot, slot) for slot in range(slots)]
        channels += [(level * slots + a, (level + 1) * slots + b, False) for a, b in pairs]
        if level and draw(st.booleans()):  # a loop inside: back to where this level begins
            channels += [((level + 1) * slots + slot, level * slots + slot, True) for slot in range(slots)]
    channels += [(depth * slots + slot, slot, True) for slot in range(slots)]
    waiting = {i: tuple(draw(st.lists(few, max_size=2))) for i, (_, _, back) in enumerate(channels) if back}
    shape = Shape(tuple(tasks), tuple(channels))
    return Play(shape, waiting=waiting, hurry=draw(st.integers(0, 4)), terse=draw(st.booleans()))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.randoms(use_true_random=False))
def test_restored_at_any_moment(data: st.DataObject, chance: Random) -> None:
    """What was under way of a wave, or of coming to rest, begins anew; nothing of the older attempt is counted."""
    play = data.draw(nests())
    for _ in range(data.draw(st.integers(1, 3))):
        for _ in range(data.draw(st.integers(0, 120))):
            choices = list(play.choices())
            if not choices or any(play.ended):
                break
            chance.choice(choices)(play)
        if not any(play.ended) and not play.ends:
            play = play.restarted()
            assert not play.nests.is_ended(0) and play.nests._nests[0].wave == 0
    walk(play, chance)


@settings(max_examples=150, deadline=None)
@given(nests(), st.randoms(use_true_random=False))
def test_larger_nests_in_some_order(play: Play, chance: Random) -> None:
    walk(play, chance)
