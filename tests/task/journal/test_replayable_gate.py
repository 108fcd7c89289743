"""Reads of a gate whose worker may be replaced: a replay reads what was read, wherever watermarks are by then."""

from tailrace.elements.batches import Rows
from tailrace.elements.frame_codec import ChannelId
from tailrace.elements.markers import Watermark
from tailrace.task.channels.inputs import InputChannel
from tailrace.task.journal.facts import Facts
from tailrace.task.journal.replayable_gate import ReplayableGate

A = ChannelId(0, 0, 0)
SMALL = [Rows([0]), Watermark(10), Rows([1]), Watermark(20), Rows([2])]


def gate(elements: list[Rows | Watermark], times_in_facts: bool) -> ReplayableGate:
    """A gate to which these elements have come on its only channel."""
    g, seq = ReplayableGate([InputChannel(A, 0, 1000)], Facts(), times_in_facts), 0
    for element in elements:
        g.arrive(A, seq, element, 1 if isinstance(element, Rows) else 0)
        seq += len(element) if isinstance(element, Rows) else 0
    return g


def read_all(g: ReplayableGate) -> list[list[int] | Watermark]:
    found = []
    while g.has_input:
        taken = g.take(100)
        found.append(taken.batch.to_rows().values if taken.batch is not None else taken.marker)
    return found


def test_a_replay_reads_small_batches_past_their_watermarks_wherever_these_are() -> None:
    live = gate(SMALL, times_in_facts=True)
    assert read_all(live) == [[0, 1, 2], Watermark(20)]
    for elsewhere in (SMALL, [Rows([0, 1, 2])], [Watermark(5), Rows([0, 1]), Watermark(30), Rows([2])]):
        replay = gate(elsewhere, times_in_facts=True)
        replay.facts.give(live.facts.kept)
        assert read_all(replay) == [[0, 1, 2], Watermark(20)]


def test_where_times_are_in_no_facts_watermarks_are_read_where_they_came() -> None:
    live = gate(SMALL, times_in_facts=False)
    assert read_all(live) == [[0], Watermark(10), [1], Watermark(20), [2]]
    replay = gate(SMALL, times_in_facts=False)
    replay.facts.give(live.facts.kept)
    assert read_all(replay) == [[0], Watermark(10), [1], Watermark(20), [2]]
