"""An outbox of a worker that may be replaced: what it keeps, sends once more, and cuts into frames where it did before."""

from __future__ import annotations

from typing import Any

from tailrace.elements.batches import Rows
from tailrace.elements.cuts import CutRequest
from tailrace.elements.frame_codec import encode_batch
from tailrace.elements.markers import WaveMark
from tailrace.task.channels.outbox import OutputEdge
from tailrace.task.channels.spilling import MemorySpill
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.replayable_outbox import ReplayableOutbox
from tailrace.task.journal.sent_log import Keeping
from tests.task.channels.test_outbox import REMOTE, Sending


class Recorded(Sending):
    """An outbox that keeps what goes to the other worker."""

    box: ReplayableOutbox

    def made(self, outputs: list[OutputEdge]) -> ReplayableOutbox:
        return ReplayableOutbox(outputs, 1, 0, 0, False, Facts(), Keeping(MemorySpill, 1 << 20))


def kept(sending: Recorded) -> list[int]:
    return [seq for seq, _ in sending.box.logs[REMOTE].elements()]


def test_what_went_behind_the_barrier_of_a_checkpoint_is_kept_however_often_that_is_said_to_be_complete() -> None:
    """A replacement that was restored from a checkpoint may receive the completion of that checkpoint once more: what
    it has sent since goes behind its barrier, which it has not sent. The end of a channel does not prove that it was
    read before the cut."""
    sending = Recorded(REMOTE)
    sending.box.kept_since = 4
    sending.emit(1, 2)
    sending.box.end()
    sending.box.complete(4)
    assert kept(sending) == [0, 2]
    sending.box.complete(5)
    assert kept(sending) == [], "that one was cut for when all had gone"


def test_barriers_that_were_given_up_do_not_go_behind_what_was_made_again() -> None:
    """Two that were lost together feed each other. What still waits for credit when one of them goes on has barriers of
    checkpoints that the loss has ended: the other one has read on without them."""
    sending = Recorded(REMOTE)
    flow = sending.box.channels[REMOTE].flow
    flow.allowed = 0
    sending.emit(1)
    sending.box.barrier(CutRequest(4))
    sending.emit(2)
    sending.box.flush()
    assert sending.sent() == []
    flow.allowed = 1 << 20
    sending.box.without_barriers(REMOTE)
    assert sending.sent() == [(REMOTE, [1]), (REMOTE, [2])]
    sending.box.check()


def test_what_a_barrier_had_overtaken_goes_first_behind_it_and_counts_once() -> None:
    sending = Recorded(REMOTE)
    channel = sending.box.channels[REMOTE]
    channel.seq, channel.marks = 5, 0
    data = encode_batch(REMOTE, 1, 0, 2, Rows([7, 8, 9]))
    sending.box.goes_again(REMOTE, [(2, data, len(data)), (5, WaveMark(1), 0)])
    sending.emit(10)
    sending.box.flush()
    assert sending.sent() == [(REMOTE, [7, 8, 9]), (REMOTE, WaveMark(1)), (REMOTE, [10])]
    assert (channel.seq, channel.marks) == (6, 0), "five were counted when they were sealed, and one is new"
    assert kept(sending) == [2, 5, 5]


def test_frames_end_where_they_ended_when_records_that_are_equal_take_more_bytes_now() -> None:
    """What several records share is pickled once. Who does again what a lost one did has equal records that share less."""

    def cut(word: Any, sizes: Facts) -> list[int]:
        sending = Recorded(REMOTE, window=6_000)
        sending.box.sizes, found = sizes, list[int]()
        for first in range(0, 400, 100):
            sending.emit(*((n, word()) for n in range(first, first + 100)))
            sending.box.flush()
            found += [len(values) for _, values in sending.sent()]
        return found

    one, sizes, others = "one and the same word, of some length" * 2, Facts(), Facts()
    was = cut(lambda: one, sizes)
    kept, anew = sizes.take(), "".join
    others.give(kept)
    assert cut(lambda: anew(one), others) == was and not others.given
    assert cut(lambda: anew(one), Facts()) != was
