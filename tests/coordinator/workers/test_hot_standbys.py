"""Which standby follows the worker of which slice, and what becomes of it when workers are lost."""

from __future__ import annotations

from typing import Any

import pytest

from tailrace.coordinator.actions import NotHot
from tailrace.protocol.hot_standby import Feed, Feeds, Follow, NotFollowed
from tailrace.protocol.replay import Gained, Replaced, Resume
from tailrace.protocol.standby import Hold, StateHeld, TakeSlot
from tests.coordinator.workers.test_standbys import Standing


class Hot(Standing):
    """A job of two slots whose standbys hold the state of checkpoint 1, that of worker 0 in place 2."""

    def __init__(self, **options: Any) -> None:
        super().__init__(hot=True, **options)
        self.run()
        self.stands_by(2)
        self.stands_by(3)
        self.histories(1)
        self.complete()
        self.actions()

    def histories(self, checkpoint: int) -> None:
        for slot in range(2):
            self.says(slot, Gained(0, [b"a cut"], [(checkpoint, 0)]))

    def holds(self, checkpoint: int = 1) -> None:
        for place in (2, 3):
            self.says(place, StateHeld(checkpoint, [place - 2]))

    def follows(self, place: int) -> Follow:
        """Lets a standby follow the worker of its slice."""
        self.says(place - 2, Feeds(place, 1))
        (follow,) = self.said(Follow)
        return follow


def test_a_worker_feeds_the_standby_that_holds_its_state() -> None:
    job = Hot()
    job.holds()
    feeds = job.said(Feed)
    assert [(one.peer.slot, one.peer.host, one.checkpoint) for one in feeds] == [(2, "h2", 1), (3, "h3", 1)]
    follow = job.follows(2)
    resume = follow.resume
    assert (follow.slot, resume.checkpoint, resume.history) == (0, 1, Gained(0, [b"a cut"], [(1, 0)]))
    assert [peer.slot for peer in resume.deploy.peers] == [0]
    assert resume.deploy.own and resume.deploy.attempt > 0


def test_behind_another_coordinator_a_standby_follows_under_the_incarnation_of_its_worker() -> None:
    job = Hot()
    job.machine.go_on(7, None, "", "", job.now)
    job.complete()
    job.actions()
    for place in (2, 3):
        job.says(place, StateHeld(job.machine.durability.newest[0], [place - 2]))
    (feed, _) = job.said(Feed)
    job.histories(feed.checkpoint)
    job.says(0, Feeds(2, feed.checkpoint))
    (follow,) = job.said(Follow)
    assert job.machine.incarnation == 7 and follow.resume.deploy.incarnation == 1


def test_only_a_job_with_hot_standbys_has_any() -> None:
    job = Standing().run()
    job.stands_by(2)
    job.complete()
    job.actions()
    job.says(2, StateHeld(1, [0]))
    assert job.said(Feed) == []


def test_a_standby_that_follows_takes_the_place_of_its_worker_hot() -> None:
    job = Hot()
    job.holds()
    job.actions()
    follow = job.follows(3)
    job.lose(1)
    assert job.said(TakeSlot) == [TakeSlot(1)]
    assert job.comes(3, slot=1) is not None
    job.survivor_knows(1)
    said = job.said()
    (resume,) = [one for one in said if isinstance(one, Resume)]
    (replaced,) = [one for one in said if isinstance(one, Replaced)]
    assert resume.hot == resume.deploy.attempt == follow.resume.deploy.attempt
    assert replaced.hot


def test_a_standby_that_was_not_fed_begins_with_the_checkpoint() -> None:
    job = Hot()
    job.holds()
    job.lose(1)
    assert job.comes(3, slot=1) is not None
    job.survivor_knows(1)
    said = job.said()
    (resume,) = [one for one in said if isinstance(one, Resume)]
    (replaced,) = [one for one in said if isinstance(one, Replaced)]
    assert resume.hot == 0 and not replaced.hot


@pytest.mark.parametrize("reason", ["", "it raised"])
def test_a_standby_that_gives_up_follows_again_behind_the_next_checkpoint(reason: str) -> None:
    job = Hot()
    job.holds()
    job.actions()
    job.follows(2)
    job.says(2, NotFollowed(0, reason))
    assert [one for one in job.actions() if isinstance(one, NotHot)] == [NotHot(2, 0, reason)] * bool(reason)
    job.histories(2)
    job.complete()
    assert job.said(Hold), "it is a standby like any other one"
    job.actions()
    job.says(2, StateHeld(2, [0]))
    assert [one.checkpoint for one in job.said(Feed)] == [2]


def test_a_worker_that_cannot_feed_its_standby_is_asked_again_behind_the_next_checkpoint() -> None:
    job = Hot()
    job.holds()
    job.actions()
    job.says(0, Feeds(2, 1, possible=False))
    assert job.said(Follow) == []
    job.histories(2)
    job.complete()
    job.actions()
    job.says(2, StateHeld(2, [0]))
    assert [one.checkpoint for one in job.said(Feed)] == [2]


def test_a_standby_does_not_begin_with_a_checkpoint_that_is_not_the_newest() -> None:
    job = Hot()
    job.holds()
    job.complete()
    job.actions()
    job.says(0, Feeds(2, 1))
    assert job.said(Follow) == []


def test_a_restart_of_all_ends_following() -> None:
    job = Hot()
    job.holds()
    job.actions()
    job.follows(2)
    job.lose(0)
    job.lose(1)
    assert all(one.follows is None for one in job.machine.roster.standbys.all)


def test_who_leaves_first_at_the_end_of_the_job_is_no_reason_to_warn() -> None:
    job = Hot()
    job.holds()
    job.actions()
    job.follows(2)
    job.machine.cancel(job.now)
    job.says(0, Feeds(2, 1, False, "it has lost the connection to its worker"))
    job.says(2, NotFollowed(0, "the connection is closed"))
    assert [one for one in job.actions() if isinstance(one, NotHot)] == []
