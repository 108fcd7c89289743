"""How much a worker keeps for those that take the place of another one, as it reports it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tailrace.elements.entrylog import EACH
from tailrace.protocol.deployment import Progress
from tailrace.protocol.replay import Gained
from tailrace.task.contract.events import ReportDue
from tailrace.task.failover.replayable_slice import ReplayableSlice
from tailrace.task.journal.history import Flushed, History
from tailrace.task.journal.replayable_outbox import outbox_of
from tests.task.worker.test_restore import Crew, counted


def crew(depth: int) -> Crew:
    made = Crew(counted, 2, count=600)
    made.spec = replace(made.spec, depth=depth)
    return made.deploy()


def reported(made: Crew) -> list[tuple[int, int, int]]:
    """(entries, bytes of them, bytes kept for others) of each worker."""
    for worker in made.workers:
        worker.handle(ReportDue({}, 1))
    made.carry()
    text = [message for _, message in made.said if isinstance(message, Progress)][-2:]
    return [(one.log_entries, one.log_bytes, one.kept_bytes) for one in text]


def there(made: Crew) -> list[tuple[int, int, int]]:
    """What `reported` gives, counted."""
    found = []
    for worker in made.workers:
        assert isinstance(worker.slice, ReplayableSlice)
        kept = sum(item.size for task in worker.slice.tasks for item in outbox_of(task).kept_items())
        entries = worker.slice.history.entries
        found.append((len(entries), sum(map(len, entries)), kept))
    return found


def test_a_worker_reports_what_it_has_kept_since_the_newest_complete_checkpoint() -> None:
    made = crew(depth=1)
    made.run()
    before = reported(made)
    assert before == there(made)
    assert all(entries and size for entries, size, _ in before) and all(kept for _, _, kept in before)
    made.checkpoint()
    after = reported(made)
    assert after == there(made)
    assert all(kept == 0 and size < more for (_, size, kept), (_, more, _) in zip(after, before, strict=True))


def test_what_is_left_for_a_history_is_what_it_does_not_take_of_its_share() -> None:
    history = History(1_000)
    history.add(Flushed())
    assert history.left == 1_000 - EACH - len(history.entries[0])
    assert History().left is None


@pytest.mark.parametrize("workers", [2, 5])
def test_what_a_worker_may_remember_does_not_shrink_with_the_number_of_workers(workers: int) -> None:
    made = Crew(counted, workers, count=60)
    made.spec = replace(made.spec, depth=1, history_bytes=1 << 20)
    made.deploy().run()
    reported(made)
    text = [message for _, message in made.said if isinstance(message, Progress)][-workers:]
    assert {one.log_left + one.log_bytes + EACH * one.log_entries for one in text if one.log_left} == {1 << 20}
    for worker, one in zip(made.workers, text, strict=True):
        assert isinstance(worker.slice, ReplayableSlice)
        known = [entry for copy in worker.slice.copies.values() for entry in copy.entries]
        assert one.copied_bytes == sum(map(len, known)) + EACH * len(known) > 0


def test_one_whose_loss_is_a_restart_keeps_nothing() -> None:
    made = crew(depth=0)
    made.run()
    assert reported(made) == [(0, 0, 0), (0, 0, 0)]


@pytest.mark.parametrize("came", [0, 2])
def test_what_goes_once_more_is_counted_once(came: int) -> None:
    made = crew(depth=1)
    made.run()
    worker = made.workers[0]
    assert worker.slice is not None
    for task in worker.slice.tasks:
        for ident, channel in task.outbox.channels.items():
            if not channel.local:
                outbox_of(task).receiver_replaced(ident, came)
    assert reported(made) == there(made)


def test_a_slice_that_was_done_again_has_the_history_that_was_done_again() -> None:
    history = History()
    history.add(Flushed())
    history.go_on_from(Gained(5, [b"abc", b"de"]), received=0, since=0)
    assert (len(history.entries), history.size) == (2, 5)
    history.add(Flushed())
    assert history.size == 5 + len(history.entries[-1])
