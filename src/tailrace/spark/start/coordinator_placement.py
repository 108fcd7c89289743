"""The place of a job's coordinator: this program, or an executor."""

from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import uuid
from dataclasses import replace
from functools import partial
from itertools import count

from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.view.jobview import JobView
from tailrace.coordinator.view.view_makers import hand_on
from tailrace.graph.plan import Plan
from tailrace.runtime.driver.coordinator import JobRunner
from tailrace.runtime.driver.machine_settings import strategy_of
from tailrace.runtime.driver.monitor import ProgramMonitor
from tailrace.runtime.driver.user_requests import Runner
from tailrace.runtime.network.tls import SETTING as TLS
from tailrace.runtime.network.tls import choose
from tailrace.runtime.outpost.hosted_folder import host_of
from tailrace.runtime.outpost.job_follower import Follower, Succession
from tailrace.runtime.outpost.mailbox import Begin, StoreAt
from tailrace.spark.cluster.application import Application
from tailrace.spark.cluster.capacity import notices_after
from tailrace.spark.data.places import Places
from tailrace.spark.outpost.remote import FarPost
from tailrace.spark.slots.driver_address import allowed_ports
from tailrace.spark.start.allocation import Allocated, ClaimedFolder
from tailrace.spark.start.checks import Checked
from tailrace.spark.start.files import results_of


def place(
    checked: Checked, allocated: Allocated, monitor: ProgramMonitor, undo: contextlib.ExitStack
) -> InProgram | OnExecutor:
    """Finds the place of a job's coordinator. It is an executor if executors do not reach this program; `undo` leaves it."""
    return OnExecutor(checked, allocated, monitor, undo) if allocated.far else InProgram(checked, allocated, monitor)


class InProgram:
    """A coordinator in this program."""

    def __init__(self, checked: Checked, allocated: Allocated, monitor: ProgramMonitor) -> None:
        self._checked, self._allocated, self._monitor = checked, allocated, monitor

    def places(self, claimed: ClaimedFolder) -> Places:
        """The places of the job's files."""
        env, store, allocated = self._checked.submission.env, self._checked.store, self._allocated
        return Places(allocated.spark, env.work_dir, store, claimed.incarnation, allocated.slots.listen_at())

    def run(self, machine: Coordinator, claimed: ClaimedFolder) -> Runner:
        """Starts the job."""
        runner = JobRunner(machine, self._allocated.slots, self._monitor, self._checked.store)
        if runner.store is not None and claimed.origin is not None:
            runner.store.origin_marked = claimed.origin.marked
        runner.start()
        return runner


class OnExecutor:
    """A coordinator on an executor. Its process is there, and followed, from the beginning."""

    def __init__(
        self, checked: Checked, allocated: Allocated, monitor: ProgramMonitor, undo: contextlib.ExitStack
    ) -> None:
        self._checked, self._allocated = checked, allocated
        self._tls = choose(os.environ.get(TLS))  # workers trust one authority, whichever coordinator they go on with
        self._post = self._outpost(checked.submission.env.slot_timeout)
        bring = partial(_bring, allocated.app, checked.submission.plan, self._post)
        self._follower = Follower(self._post, allocated.slots, monitor, bring)
        self._follower.start()
        undo.callback(self._follower.abandon)

    def _outpost(self, patience: float) -> FarPost:
        """A process for the coordinator."""
        slots, ship = self._allocated.slots, self._allocated.ship
        return FarPost(slots.spark, slots.tag, slots.name, allowed_ports(), self._tls, patience, ship=ship)

    def places(self, claimed: ClaimedFolder) -> Places:
        """The places of the job's files."""
        env, store = self._checked.submission.env, self._checked.store
        return Places(self._allocated.spark, env.work_dir, store, claimed.incarnation, None, self._post.place)

    def run(self, machine: Coordinator, claimed: ClaimedFolder) -> Runner:
        """Starts the job. If it has checkpoints it goes on with another coordinator when the first one is lost."""
        spec, env, app = self._checked.spec, self._checked.submission.env, self._allocated.app
        if spec.checkpoint_dir is None:
            self._follower.begin(Begin(machine, None))
            return self._follower
        start = None if claimed.origin is None else (claimed.origin.folder, claimed.origin.path)
        store = StoreAt(spec.checkpoint_dir, machine.job, spec.storage_options, start)
        fresh, terms = pickle.dumps(machine, 5), count(1)

        def another(why: str, seen: JobView) -> tuple[FarPost, Begin]:
            post = self._outpost(env.slot_timeout + notices_after(app.master, app.setting))
            other: Coordinator = pickle.loads(fresh)
            hand_on(seen, other)
            lost = f"the executor that ran the job's coordinator was lost: {why}"
            return post, Begin(other, replace(store, term=next(terms)), lost)

        self._follower.begin(Begin(machine, store), Succession(strategy_of(env.restart), another))
        return self._follower


def _bring(app: Application, plan: Plan, post: FarPost) -> None:
    """Copies results from the machine of a coordinator's process to this machine, before that process ends."""
    there = {
        sink.directory: sink for sink in results_of(plan) if sink.directory and host_of(sink.directory) == post.host
    }
    if there:
        copy = os.path.join(app.folder(), f"fetched-{uuid.uuid4().hex}")
        try:
            post.fetch(list(there), copy)
            for sink in there.values():
                sink.bring(os.path.join(app.folder(), f"brought-{uuid.uuid4().hex}"))
        finally:
            shutil.rmtree(copy, ignore_errors=True)
