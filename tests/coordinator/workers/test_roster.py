"""Which worker holds which slot, and the watermark of a whole job."""

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tailrace.coordinator.actions import Kill, Launch, Stalled
from tailrace.coordinator.view.progress import overall_watermark
from tailrace.coordinator.workers.roster import Roster
from tailrace.elements.timestamps import MAX_TIME, MIN_TIME
from tailrace.protocol.deployment import Hello, Peer, Progress, SubtaskReport, UnderWay


def hello(slot: int, pid: int = 1) -> Hello:
    return Hello(slot, f"h{slot}", 1000 + slot, pid, "job", 1)


def test_epochs_of_a_slot_only_grow() -> None:
    roster = Roster(2)
    assert roster.admit(hello(0), 5) == (1, None)
    assert roster.admit(hello(0, pid=2), 6) == (2, 1)
    roster.lose(0)
    assert not roster.holds(0, 2)
    assert roster.admit(hello(0, pid=3), 7) == (3, None)
    assert [roster.holds(0, epoch) for epoch in (1, 2, 3, 4)] == [False, False, True, False]


def test_who_joins_anew_starts_anew() -> None:
    roster = Roster(1)
    roster.admit(hello(0), 5)
    slot = roster.slots[0]
    slot.deployed = slot.finished = True
    roster.admit(hello(0, pid=2), 9)
    assert (slot.deployed, slot.finished, slot.received_at) == (False, False, 9)


def test_the_roster_is_ready_when_every_slot_is_held() -> None:
    roster = Roster(2)
    roster.admit(hello(1), 0)
    assert not roster.ready and [slot.index for slot in roster.connected] == [1]
    roster.admit(hello(0), 0)
    assert roster.ready
    assert roster.peers() == [Peer(0, "h0", 1000, 1), Peer(1, "h1", 1001, 1)]


def test_no_two_spark_jobs_have_one_number_where_fewer_workers_come_than_were_to_join() -> None:
    """Standbys are started while a job is about to grow, since it runs again behind a loss. Then one worker of two comes,
    and others stand by behind fewer slots. A Spark job of those before that ended later was taken for one that a user had
    cancelled, and the job was cancelled with it."""
    roster = Roster(1, standbys=1)
    decided = [*roster.launch(), *roster.standbys.fill(), *roster.prepare(3, 2), *roster.standbys.fill()]
    before = [one.start for one in roster.standbys.all]
    roster.admit(msgspec.structs.replace(hello(1), launch=2), 5)
    assert roster.arrivals == 1
    decided += [*roster.expect_fewer(2, 2), *roster.standbys.fill()]
    starts = [(one.slot, one.launch) for one in decided if isinstance(one, Launch)]
    assert len(starts) == len(set(starts)) and set(before) <= set(starts)
    assert set(before) <= {(one.slot, one.launch) for one in decided if isinstance(one, Kill)}


PLACES = st.integers(0, 3)
"""Three slots and a standby behind them."""


@given(st.lists(st.tuples(st.sampled_from(["joins", "is heard", "is lost", "is asked"]), PLACES), max_size=40))
def test_the_longest_silence_is_found_whoever_is_heard_joins_and_is_lost(story: list[tuple[str, int]]) -> None:
    roster = Roster(3, standbys=1)
    for now, (what, index) in enumerate(story):
        if what == "joins":
            roster.admit(hello(index, pid=10 + index), now)
        elif what == "is heard":
            roster.note_sign_of_life(index, 10 + index, now)
        elif what == "is lost":
            roster.lose(index)
        elif what == "is asked":
            assert roster.silent_at(5) == min((p.received_at + 5 for p in roster.places if p.connected), default=None)


def test_a_sign_of_life_is_of_the_process_that_gives_it_whatever_place_it_holds() -> None:
    roster = Roster(2, standbys=1)
    roster.admit(hello(0, pid=10), 0)
    roster.admit(msgspec.structs.replace(hello(1, pid=12), place=2), 0)  # a standby has taken slot 1
    roster.admit(hello(2, pid=13), 0)  # and another one stands by in its place
    roster.note_sign_of_life(2, 12, 5)
    assert [place.received_at for place in roster.places] == [0, 5, 0]
    roster.note_sign_of_life(2, 13, 6)
    assert [place.received_at for place in roster.places] == [0, 5, 6]
    roster.note_sign_of_life(1, 10, 7)
    roster.note_sign_of_life(7, 10, 7)
    assert [place.received_at for place in roster.places] == [0, 5, 6], "nobody that was started for these is there"


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=30))
def test_all_are_deployed_when_each_is_whatever_was_asked_before(slots: int, story: list[tuple[int, bool]]) -> None:
    roster = Roster(slots)
    for index, deployed in story:
        roster.slots[index % slots].deployed = deployed
        assert roster.deployed == all(slot.deployed for slot in roster.slots)


def reports(*watermarks: int, timed: bool = True) -> list[SubtaskReport]:
    return [SubtaskReport(0, i, watermark=mark, timed=timed) for i, mark in enumerate(watermarks)]


def test_the_watermark_of_a_job_is_the_lowest_that_there_is() -> None:
    assert overall_watermark(reports(7, 5, MIN_TIME, MAX_TIME)) == 5
    assert overall_watermark(reports(MIN_TIME, MAX_TIME)) == MIN_TIME
    assert overall_watermark(reports(MAX_TIME, MAX_TIME)) == MAX_TIME
    assert overall_watermark(reports(7, timed=False)) is None
    assert overall_watermark([]) is None


def test_a_step_that_is_under_way_counts_as_work_until_a_later_report() -> None:
    """Beats and reports come on links of their own: a beat that was sent before the report, and comes behind it, counts
    for nothing."""
    roster = Roster(1)
    roster.admit(hello(0), 0)
    slot = roster.slots[0]
    reports = [SubtaskReport(0, 0, busy_micros=5, waits_for="no input"), SubtaskReport(1, 0, busy_micros=7)]
    slot.report(Progress(reports, 100), 1_000)

    def beat(under_way: UnderWay | None) -> list[tuple[int, int, str]]:
        roster.note_sign_of_life(0, 1, 2_000, under_way)
        return [(one.worked_micros, one.under_way_micros, one.waits_for) for one in slot.figures(2_500)]

    assert beat(UnderWay(101, 50, 0)) == [(55, 50, ""), (7, 0, "")]
    assert beat(UnderWay(101, 90, 0)) == [(95, 90, ""), (7, 0, "")]
    assert [one.age_micros for one in slot.figures(2_500)] == [1_500, 1_500]
    slot.report(Progress([SubtaskReport(0, 0, busy_micros=100), SubtaskReport(1, 0, busy_micros=7)], 200), 3_000)
    assert beat(UnderWay(101, 95, 0)) == [(100, 0, ""), (7, 0, "")]
    assert beat(UnderWay(201, 10, 1)) == [(100, 0, ""), (17, 10, "")]
    assert beat(None) == [(100, 0, ""), (7, 0, "")]


def test_watchers_are_reported_of_a_step_where_the_beat_has_its_stack() -> None:
    roster = Roster(1)
    roster.admit(hello(0), 0)
    stuck = UnderWay(5, 10_000_000, 0, "map", "File ...")
    assert roster.note_sign_of_life(0, 1, 9, msgspec.structs.replace(stuck, stack="")) == []
    assert roster.note_sign_of_life(0, 1, 9, stuck) == [Stalled(0, stuck)]
    assert roster.note_sign_of_life(0, 2, 9, stuck) == []  # another process, which holds the slot no more


def test_a_worker_that_is_new_has_a_clock_of_its_own() -> None:
    roster = Roster(1)
    roster.admit(hello(0), 0)
    roster.slots[0].report(Progress([SubtaskReport(0, 0)], 1_000_000), 5)
    roster.admit(hello(0, pid=2), 6)
    roster.note_sign_of_life(0, 2, 9, UnderWay(10, 500, 0))
    assert [one.under_way_micros for one in roster.slots[0].reports] == [500]
