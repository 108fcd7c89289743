"""Messages between a worker and coordinators that follow each other come once and in order, whatever is lost on the way."""

from __future__ import annotations

import random
from collections import deque

import pytest

from tailrace.coordinator.actions import Send
from tailrace.coordinator.succession.conversations import Conversations
from tailrace.protocol.deployment import OperatorEvent, Progress, Welcome
from tailrace.protocol.snapshot import Declined
from tailrace.protocol.succession import MOST_UNSECURED, GoOn, Keep, LogKept, Received, Secured
from tailrace.task.contract.actions import ToCoordinator
from tailrace.task.worker.conversation import Conversation


def begun() -> Conversation:
    made = Conversation()
    made.begin(1, 4, waits=True)
    return made


def report(number: int) -> ToCoordinator:
    return ToCoordinator(Declined(number, "no"))


def test_what_is_sent_while_no_coordinator_is_there_is_sent_later() -> None:
    worker = begun()
    assert worker.outgoing([report(1), report(2)]) == [report(1), report(2)]
    worker.broken = True
    assert worker.outgoing([report(3), ToCoordinator(Progress([], 0))]) == []
    assert (worker.rejoin().sent, worker.rejoin().first) == (3, 0)
    assert worker.receive(GoOn(1)) == [report(2), report(3)], "of which the log lacks the second and the third"
    assert not worker.broken


def test_secured_messages_are_forgotten_and_the_answer_says_what_has_come() -> None:
    worker = begun()
    worker.outgoing([report(number) for number in range(5)])
    worker.note_received()
    worker.note_received()
    assert worker.receive(Secured(3)) == [ToCoordinator(Received(2))]
    assert (worker.rejoin().sent, worker.rejoin().first, worker.rejoin().received) == (5, 3, 2)


def test_a_worker_keeps_no_more_than_it_may() -> None:
    worker = begun()
    worker.outgoing([report(number) for number in range(MOST_UNSECURED + 7)])
    assert worker.rejoin().first == 7, "no coordinator goes on with it whose log lacks the sixth"


def test_a_mirror_keeps_the_log_behind_its_newest_base() -> None:
    worker = begun()
    assert worker.receive(Keep(0, 3, [], b"base")) == [ToCoordinator(LogKept(3))]
    assert worker.receive(Keep(0, 3, [b"a", b"b"])) == [ToCoordinator(LogKept(5))]
    assert worker.rejoin().kept == Keep(0, 3, [b"a", b"b"], b"base")
    worker.receive(Keep(1, 5, [b"c"]))
    assert worker.rejoin().kept == Keep(1, 3, [b"a", b"b", b"c"], b"base"), "of the coordinator that has gone on"
    assert worker.receive(Keep(1, 9, [b"z"])) == [ToCoordinator(LogKept(6))], "what comes behind a gap is not kept"
    worker.receive(Keep(1, 6, [], b"newer"))
    assert worker.rejoin().kept == Keep(1, 6, [], b"newer")


@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_lost_on_the_way_comes_once_and_in_order(seed: int) -> None:
    """Both halves of the conversation, with coordinators that are lost at any moment together with what is on its way."""
    rng, key = random.Random(seed), (1, 4)
    worker, said = begun(), Conversations()
    said.note_send(Send(*key, Welcome(4)))
    down, up = deque[OperatorEvent | GoOn | Secured](), deque[ToCoordinator]()
    taken: list[int] = []
    logged: list[int] = []
    numbers = [0, 0]

    def take(message: OperatorEvent | GoOn | Secured) -> None:
        if isinstance(message, OperatorEvent):
            worker.note_received()
            taken.append(message.vertex)
        else:
            up.extend(worker.receive(message))

    for _ in range(400):
        what = rng.choice(["down", "up", "arrive", "arrive", "come", "come", "secure", "lose"])
        if what == "down":
            event = OperatorEvent(numbers[0], 0, 1, b"")
            numbers[0] += 1
            said.note_send(Send(*key, event))
            down.append(event)
        elif what == "up":
            up.extend(worker.outgoing([report(numbers[1])]))
            numbers[1] += 1
        elif what == "arrive" and down:
            take(down.popleft())
        elif what == "come" and up:
            message = up.popleft().message
            if isinstance(message, Received):
                said.note_received(key, message.count)
            elif isinstance(message, Declined):
                logged.append(message.checkpoint)
                said.note_message(key, message, len(logged))
        elif what == "secure":
            down.extend(send.message for send in said.secure_all(len(logged) - rng.randint(0, 2)))  # type: ignore[misc]
        elif what == "lose" and rng.random() < 0.3:
            for _ in range(rng.randint(0, len(down))):
                take(down.popleft())
            down.clear()
            up.clear()
            worker.broken = True
            workers = {key: worker.rejoin()}
            assert said.misfit(workers) == ""
            down.extend(send.message for send in said.go_on(workers))  # type: ignore[misc]
    while down or up:
        if down:
            take(down.popleft())
        else:
            message = up.popleft().message
            if isinstance(message, Declined):
                logged.append(message.checkpoint)
                said.note_message(key, message, len(logged))
    assert taken == list(range(numbers[0]))
    assert logged == list(range(numbers[1]))
