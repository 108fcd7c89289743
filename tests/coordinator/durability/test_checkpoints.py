"""The coordinator's books about checkpoints: when one is due, when it is complete, and which files may go."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.actions import CheckpointEnded
from tailrace.coordinator.durability.checkpoints import REMEMBERED, Checkpoints, CheckpointSettings
from tailrace.coordinator.output.publishing import JobOutput
from tailrace.elements.cuts import CutKind
from tailrace.protocol.deployment import Published
from tailrace.protocol.snapshot import Ack, OperatorAck, SubtaskAck, Transaction
from tailrace.state.format import TableInfo
from tailrace.state.manifest import Manifest, Prepared

S = 1_000_000
_POINTER = "1/0.manifest"
"""In front of the first manifest of the incarnation."""


class Books:
    """The books of a job with some slots, and the messages of its workers and its storage."""

    def __init__(self, slots: int = 2, **settings: Any) -> None:
        self.books = Checkpoints(CheckpointSettings(**settings), "job", "run", slots, 128)
        self.books.clock_offset = 5
        self.output = JobOutput("job", "run", "")
        self.slots = slots

    def trigger(self, now: int = 0, final: bool = False) -> int:
        return self.books.trigger(now, CutKind.FINAL if final else CutKind.CHECKPOINT).number

    def ack(self, number: int, older: list[str] | None = None, prepared: tuple[bytes, ...] = ()) -> None:
        for slot in range(self.slots):
            message = [Transaction("sink", one) for one in prepared] if slot == 0 else []
            self.books.ack(slot, Ack(number, file(number, slot), 100, older or [], [], message))

    def commit(self, number: int, now: int = 0) -> Any:
        ready = self.books.ready()
        assert ready is not None and ready.id == number
        ready.committing = True
        manifest = self.manifest()
        self.output.before_commit(number)
        complete = self.books.complete(number, manifest, path(number), f"url/{path(number)}", now)
        self.output.commit_done(number, manifest, path(number), complete.fresh, now)
        return complete

    def manifest(self) -> Manifest:
        ready = next(one for one in self.books.pending.values() if len(one.acks) == self.slots)
        return self.books.manifest(ready, self.output.carried_output(), 1)

    @property
    def unpublished(self) -> list[bytes]:
        return [one.data for one in self.output.carried_output()]

    def surplus(self) -> list[str]:
        return [name for name in self.books.surplus(self.output.unmarked) if name != _POINTER]

    def complete(self, older: list[str] | None = None, prepared: tuple[bytes, ...] = (), now: int = 0) -> int:
        number = self.trigger(now)
        self.ack(number, older, prepared)
        self.commit(number, now)
        return number


def file(number: int, slot: int = 0) -> str:
    return f"1/chk-{number}/w{slot}-1.state"


def path(number: int) -> str:
    return f"1/{number}.manifest"


def files(*numbers: int) -> list[str]:
    return sorted([path(n) for n in numbers] + [file(n, slot) for n in numbers for slot in range(2)])


# When.


def test_the_clock_decides_from_the_start_on() -> None:
    books = Books(interval=10 * S).books
    assert books.due_at() is None
    books.start(100 * S)
    assert books.due_at() == 110 * S


def test_without_an_interval_there_are_checkpoints_on_request_only() -> None:
    books = Books().books
    books.start(100 * S)
    assert books.due_at() is None
    books.requests.append("somebody")
    assert books.due_at() == 0, "at once"


def test_the_interval_is_from_trigger_to_trigger() -> None:
    b = Books(interval=10 * S, max_concurrent=2)
    b.books.start(0)
    b.trigger(10 * S)
    assert b.books.due_at() == 20 * S


def test_only_so_many_are_under_way_at_once() -> None:
    b = Books(interval=10 * S, max_concurrent=2)
    b.books.start(0)
    first = b.trigger(10 * S)
    b.trigger(20 * S)
    assert b.books.due_at() is None
    b.books.requests.append("somebody")
    assert b.books.due_at() is None
    b.books.abort(first, "why", 25 * S)
    assert b.books.due_at() == 25 * S, "who asked need not wait for the interval"


@pytest.mark.parametrize("ending", ["complete", "aborted"])
def test_the_pause_is_from_the_end_of_one_to_the_next(ending: str) -> None:
    b = Books(interval=1 * S, min_pause=30 * S)
    b.books.start(0)
    number = b.trigger(1 * S)
    if ending == "complete":
        b.ack(number)
        b.commit(number, 5 * S)
    else:
        b.books.abort(number, "why", 5 * S)
    assert b.books.due_at() == 35 * S
    b.books.requests.append("somebody")
    assert b.books.due_at() == 35 * S


def test_while_the_last_one_is_under_way_no_other_begins() -> None:
    b = Books(interval=1 * S, max_concurrent=5)
    b.books.start(0)
    b.trigger(1 * S, final=True)
    assert b.books.due_at() is None


def test_a_checkpoint_times_out_unless_its_manifest_is_on_its_way() -> None:
    b = Books(timeout=60 * S, max_concurrent=3)
    assert b.books.timeout_at() is None
    first, second = b.trigger(0), b.trigger(10 * S)
    assert b.books.timeout_at() == 60 * S
    assert (b.books.timed_out(60 * S - 1), b.books.timed_out(60 * S), b.books.timed_out(70 * S)) == (
        [],
        [first],
        [first, second],
    )
    b.books.pending[first].committing = True
    assert b.books.timed_out(70 * S) == [second] and b.books.timeout_at() == 70 * S


# What.


def test_numbers_grow_and_are_not_used_again() -> None:
    b = Books()
    assert [b.trigger(), b.trigger()] == [1, 2]
    b.books.abort(2, "why", 0)
    assert b.trigger() == 3


def test_who_asked_is_told_of_the_checkpoint_that_was_triggered_next() -> None:
    b = Books()
    b.books.requests += ["one", "two"]
    number = b.trigger()
    assert b.books.pending[number].waiting == ["one", "two"] and b.books.requests == []
    b.books.requests.append("three")
    assert b.books.pending[number].waiting == ["one", "two"]


def test_it_is_ready_when_every_worker_has_acked() -> None:
    b = Books(slots=3)
    number = b.trigger()
    acks = [b.books.ack(slot, Ack(number, file(number, slot), 1)) for slot in (2, 0, 2)]
    assert acks == [False, False, False] and b.books.ready() is None
    assert b.books.ack(1, Ack(number, file(number, 1), 1))
    ready = b.books.ready()
    assert ready is not None and ready.id == number


def test_an_ack_of_none_that_is_pending_is_nothing() -> None:
    b = Books(slots=1)
    assert not b.books.ack(0, Ack(7, "7", 1))
    number = b.trigger()
    b.books.abort(number, "why", 0)
    assert not b.books.ack(0, Ack(number, "late", 1))


def test_one_manifest_is_written_at_a_time_and_the_older_one_first() -> None:
    b = Books(max_concurrent=3)
    for number in (b.trigger(), b.trigger(), b.trigger()):
        if number != 1:
            b.ack(number)
    ready = b.books.ready()
    assert ready is not None and ready.id == 2
    ready.committing = True
    b.ack(1)
    assert b.books.ready() is None
    assert not b.books.ack(0, Ack(2, "another", 1)), "what is being written does not change any more"


def test_the_manifest_says_what_there_is() -> None:
    b = Books()
    number = b.trigger(7 * S, final=True)
    tables = [TableInfo("counts")]
    for slot in (1, 0):
        operators = [
            OperatorAck("count", "count", 2, slot == 1, True, tables),
            OperatorAck("sink", "files", 2, slot == 1),
        ]
        done = SubtaskAck(0, slot, 10 * (slot + 1), 20, 30, 400, operators)
        b.books.ack(
            slot,
            Ack(number, file(number, slot), 500 + slot, ["x", f"y{slot}"], [done], [Transaction("sink", b"%d" % slot)]),
        )
    ready = b.books.ready()
    assert ready is not None
    manifest = b.books.manifest(ready, [], 4)
    assert (manifest.job, manifest.run_id, manifest.incarnation, manifest.checkpoint) == ("job", "run", 4, 1)
    assert (manifest.timestamp, manifest.slots, manifest.max_parallelism, manifest.final) == (7 * S + 5, 2, 128, True)
    assert [(one.slot, one.name, one.size) for one in manifest.files] == [(0, file(1), 500), (1, file(1, 1), 501)]
    assert manifest.older == ["x", "y0", "y1"] and manifest.size == 1001
    count, sink = manifest.operators
    assert (count.uid, count.parallelism, count.finished, count.tables, count.stateful) == (
        "count",
        2,
        [False, True],
        tables,
        True,
    )
    assert (sink.uid, sink.name, sink.stateful) == ("sink", "files", False)
    assert manifest.prepared == [Prepared("sink", b"0"), Prepared("sink", b"1")]


def test_the_figures_are_those_of_the_slowest() -> None:
    b = Books()
    number = b.trigger(0)
    for slot in range(2):
        done = SubtaskAck(0, slot, 10 + slot, 20 - slot, 30 + slot, 400, [])
        b.books.ack(slot, Ack(number, file(number, slot), 100, [], [done], [], 5))
    stats = b.commit(number, now=100).stats
    # Encoding is counted from the cut, the freeze in it.
    assert (stats.duration, stats.alignment, stats.freeze, stats.write) == (100, 11, 20, 31 - 19 + 5)
    assert stats.trigger == 100 - 11 - 20 - 17
    assert (stats.size, stats.full_size, stats.path) == (200, 200, f"url/{path(1)}")
    second = b.trigger(0)
    b.ack(second, older=[file(1)])
    assert b.commit(second).stats.full_size == 300, "with what it refers to"


@pytest.mark.parametrize(
    ("early", "overtaken", "policy"),
    [(False, {}, "aligned"), (True, {}, "unaligned"), (False, {"count": 7}, "unaligned")],
)
def test_they_say_what_was_overtaken_and_how_the_checkpoint_ended(
    early: bool, overtaken: dict[str, int], policy: str
) -> None:
    b = Books()
    number = b.trigger(0)
    for slot in range(2):
        done = SubtaskAck(0, slot, overtook=early and slot == 1)
        b.books.ack(
            slot,
            Ack(number, file(number, slot), 100, [], [done], inflight=5 + sum(overtaken.values()), overtaken=overtaken),
        )
    stats = b.commit(number).stats
    assert (stats.policy, stats.inflight_by) == (policy, {uid: 2 * size for uid, size in overtaken.items()})
    assert stats.inflight == 10 + 2 * sum(overtaken.values()), "with what was on its way around loops"


def test_the_last_ones_are_remembered() -> None:
    b = Books()
    for _ in range(REMEMBERED + 3):
        b.complete()
    assert [b.books.past[0].id, b.books.past[-1].id, len(b.books.past)] == [4, REMEMBERED + 3, REMEMBERED]
    assert (b.books.completed, b.books.last) == (REMEMBERED + 3, REMEMBERED + 3)


def test_failures_in_a_row_are_forgotten_by_a_good_one() -> None:
    b = Books()
    b.books.failures = 3
    b.complete()
    assert b.books.failures == 0


# What sinks prepared.


def test_what_was_prepared_goes_with_every_manifest_until_it_is_published() -> None:
    b = Books()
    b.complete(prepared=(b"a",))
    number = b.trigger()
    b.ack(number, prepared=(b"b",))
    assert [one.data for one in b.manifest().prepared] == [b"a", b"b"]
    b.commit(number)
    assert b.unpublished == [b"a", b"b"]
    b.output.publication_done(Published(1), 0, 0)
    assert b.unpublished == [b"b"]
    b.complete()
    assert b.unpublished == [b"b"]
    b.output.publication_done(Published(2), 0, 0)
    assert b.unpublished == []


# Files.


def test_so_many_complete_ones_are_kept_and_the_files_of_older_ones_go() -> None:
    b = Books(keep=2)
    for number in (1, 2):
        assert b.complete() == number and b.surplus() == []
    b.complete()
    assert b.surplus() == files(1)
    assert b.surplus() == [], "once"
    assert b.books.needed == files(2, 3)


def test_a_file_that_a_kept_one_refers_to_stays_until_none_does() -> None:
    b = Books(keep=1)
    b.complete()
    b.complete(older=[file(1, 1)])
    assert b.surplus() == [path(1), file(1, 0)]
    b.complete(older=[file(1, 1), file(2, 0)])
    assert b.surplus() == [path(2), file(2, 1)]
    b.complete()
    gone = b.surplus()
    assert file(1, 1) in gone and file(2, 0) in gone and set(files(3)) <= set(gone)
    assert b.books.needed == files(4)


def test_pointers_go_when_there_is_a_manifest_behind_them() -> None:
    """In front of a manifest that does not follow the one before it the storage makes a pointer, and the first one of an
    incarnation follows none. Who claims looks at the last slot that is taken, so nobody needs it any more."""
    b = Books(keep=5)
    b.complete()
    assert b.books.surplus(()) == ["1/0.manifest"]
    b.complete()
    assert b.books.surplus(()) == []
    for _ in range(3):
        b.books.abort(b.trigger(), "why", 0)
    b.complete()
    assert b.books.surplus(()) == ["1/3.manifest"]
    b.complete()
    assert b.books.surplus(()) == [] and b.books.last == 7


def test_what_one_under_way_may_build_on_stays() -> None:
    b = Books(keep=1, max_concurrent=2)
    b.complete()
    slow = b.trigger()
    fast = b.trigger()
    b.ack(fast)
    b.commit(fast)
    assert b.surplus() == [path(2)], "a pointer; 1 is what the slow one builds on"
    aborted = b.books.abort(slow, "why", 0)
    assert aborted is not None and aborted.gone == files(1)


def test_one_under_way_may_build_on_what_was_completed_since_it_began() -> None:
    b = Books(keep=1, max_concurrent=3)
    slow = b.trigger()
    for _ in range(2):
        b.complete()
        assert b.surplus() == []
    assert b.books.pending[slow].base == set(files(2, 3))
    aborted = b.books.abort(slow, "why", 0)
    assert aborted is not None and sorted(aborted.gone) == sorted(files(2))


def test_what_an_ack_refers_to_stays_while_its_checkpoint_is_pending() -> None:
    """Worker 1 does not know that 2 and 3 are complete when it encodes 4, and builds on what it wrote for 1. It wrote 3
    as a whole, so no complete checkpoint names that file any more once 2 is out of sight: it was deleted, and then 4
    became complete, which nobody could restore."""
    b = Books(keep=1, max_concurrent=2)
    b.complete()
    b.trigger(), b.trigger()
    b.ack(2)
    b.books.ack(1, Ack(3, file(3, 1), 100))
    b.commit(2)
    assert b.surplus() == [], "3 may yet refer to what 1 has"
    assert b.trigger() == 4
    late = Ack(4, file(4, 1), 100, [file(1, 1)])
    assert b.books.refusal(1, late) is None
    b.books.ack(1, late)
    b.books.ack(0, Ack(3, file(3), 100, [file(2)]))
    b.commit(3)
    assert file(1, 1) not in b.surplus()
    b.books.ack(0, Ack(4, file(4), 100, [file(2)]))
    b.commit(4)
    assert file(1, 1) not in b.surplus() and file(1, 1) in b.books.needed
    b.complete()
    assert file(1, 1) in b.surplus()


def test_what_an_aborted_checkpoint_referred_to_goes_with_it() -> None:
    b = Books(keep=1, max_concurrent=3)
    b.complete()
    b.trigger()
    b.ack(2)
    b.commit(2)
    assert b.trigger() == 3
    b.books.ack(1, Ack(3, file(3, 1), 100, [file(1, 1)]))
    assert file(1, 1) not in b.surplus()
    aborted = b.books.abort(3, "why", 0)
    assert aborted is not None and aborted.gone == [file(1, 1), file(3, 1)]


def test_a_later_checkpoint_may_refer_to_what_an_aborted_one_has_written() -> None:
    """Two overlap. What was in flight at both is written with the first, and that one is given up when the second is
    complete: its file stays as long as it is needed, and goes then."""
    b = Books(keep=1, max_concurrent=2)
    b.trigger(), b.trigger()
    b.books.ack(1, Ack(1, file(1, 1), 100))
    late = Ack(2, file(2, 1), 10, [file(1, 1)])
    aborted = b.books.abort(1, "the newer checkpoint 2 is complete", 0, failure=False)
    assert aborted is not None and aborted.gone == [] and b.books.refusal(1, late) is None
    b.books.ack(1, late)
    b.books.ack(0, Ack(2, file(2), 10))
    b.commit(2)
    assert b.surplus() == [] and file(1, 1) in b.books.needed
    b.complete()
    assert file(1, 1) in b.surplus()


def test_a_file_that_is_acked_for_an_aborted_checkpoint_goes() -> None:
    """The worker has acked before it received the abort, and leaves the file to the coordinator."""
    b = Books(keep=1, max_concurrent=2)
    b.trigger(), b.trigger()
    b.books.abort(1, "why", 0)
    assert b.books.unneeded_files(Ack(1, file(1, 1), 100)) == [], "2 may refer to it"
    aborted = b.books.abort(2, "why", 0)
    assert aborted is not None and aborted.gone == [file(1, 1)]
    b.trigger()
    b.books.abort(3, "why", 0)
    assert b.books.unneeded_files(Ack(3, file(3, 1), 100)) == [file(3, 1)]


def test_a_manifest_on_its_way_may_refer_to_a_file_of_an_earlier_checkpoint_that_a_restart_ends() -> None:
    """2 is all acked before 1, and what was in flight at both is in a file of 1. Then the job is restarted: 1 is over, but
    a claim may find 2."""
    b = Books(keep=1, max_concurrent=2)
    b.trigger(), b.trigger()
    b.books.ack(1, Ack(1, file(1, 1), 100))
    b.ack(2, older=[file(1, 1)])
    ready = b.books.ready()
    assert ready is not None and ready.id == 2
    ready.committing, manifest = True, b.manifest()
    assert [type(one) for one in b.books.attempt_over("the job was restarted", 0)] == [CheckpointEnded, CheckpointEnded]
    b.books.claim_done(manifest, path(2))
    assert file(1, 1) not in b.surplus()


@pytest.mark.parametrize("written", [True, False])
def test_what_a_manifest_on_its_way_needs_stays_until_a_claim_has_answered(written: bool) -> None:
    """A restart comes while the manifest of 3 is on its way, which builds on a file of 1: a worker did not know that 2
    is complete. Before the claim an older manifest is marked as published, and what nobody needs goes. The manifest of
    3 was written: the claim found it, and nobody could restore it."""
    b = Books(keep=1, max_concurrent=3)
    b.complete()
    b.trigger(), b.trigger()
    b.ack(2)
    b.ack(3, older=[file(1, 1)])
    b.commit(2)
    ready = b.books.ready()
    assert ready is not None and ready.id == 3
    ready.committing, manifest = True, b.manifest()
    b.books.attempt_over("the job was restarted", 0)
    assert file(1, 1) not in b.surplus()
    b.books.claim_done(manifest if written else None, path(3))
    assert (file(1, 1) in b.surplus()) is not written
    assert (file(1, 1) in b.books.needed) is written


def test_what_builds_on_a_deleted_file_is_noticed() -> None:
    b = Books(keep=1)
    b.complete()
    b.complete()
    assert b.surplus() == files(1)
    assert b.trigger() == 3
    refused = b.books.refusal(0, Ack(3, file(3), 1, [file(2), file(1)]))
    assert refused == f"the file of worker 0 refers to {file(1)}, which is deleted"
    assert b.books.refusal(0, Ack(3, file(3), 1, [file(2)])) is None


def test_files_of_another_run_are_nobodys_to_delete() -> None:
    b = Books(keep=1)
    b.complete()
    b.complete(older=["other/1/chk-9/w0-1.state"])
    b.complete()
    assert not any(name.startswith("other") for name in b.surplus() + b.books.give_up_all())


def test_a_checkpoint_found_after_a_restart_is_kept_like_any_other() -> None:
    b = Books(keep=1)
    b.complete()
    number = b.trigger()
    b.ack(number)
    manifest = b.manifest()
    b.books.abort(number, "why", 0)  # no ack reported that it was written
    b.books.adopt(manifest, path(number))
    assert b.surplus() == files(1) and b.books.needed == files(2)
    b.books.adopt(manifest, path(number))
    b.complete()
    assert b.surplus() == files(2)


def test_giving_up_all_of_them_gives_every_file_back() -> None:
    b = Books(keep=5)
    for _ in range(3):
        b.complete()
    b.trigger()
    assert b.books.give_up_all() == [_POINTER, *files(1, 2, 3)]
    assert b.books.needed == [] and b.books.give_up_all() == []


def test_the_parts_are_never_more_than_the_whole() -> None:
    b = Books()
    number = b.trigger(0)
    for slot in range(2):
        done = SubtaskAck(0, slot, 40, 30, 50, 400, [])
        b.books.ack(slot, Ack(number, file(number, slot), 100, [], [done], [], 50))
    stats = b.commit(number, now=100).stats
    assert stats.trigger + stats.alignment + stats.freeze + stats.write == stats.duration == 100
