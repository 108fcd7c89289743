"""A whole job, coordinator and workers, in one thread: the machines of production under a seeded network and scheduler and
a virtual clock.

At each turn the simulation picks, by its seed, one of the things that may happen now (a message arrives, a worker takes a
step, the storage answers), and writes one line about it to the trace. Messages cross each link in order. How long they
take, how many records a step may take, and which party goes first follow from the seed alone. Faults are data: see
`testing.faults`. Its parts are `cluster`, `workers`, `drivers`, `storing` and `strikes`.

Once the last fault is over the job must live. It ends within so many turns (`patience`), or the simulation reports what
each party waits for. Turns in which a standby reads ahead do not count: there are more of them the more standbys and state
there are, however fast the job goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailrace.coordinator.durability.checkpoints import CheckpointSettings
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.coordinator.job.restarts import Strategy
from tailrace.coordinator.job.timeouts import Limits
from tailrace.coordinator.loops.termination import WavePace
from tailrace.coordinator.machine import Coordinator
from tailrace.coordinator.workers.autoscaling import LOOKS
from tailrace.coordinator.workers.rescaling import ElasticSizes
from tailrace.errors import InternalError, TailraceError
from tailrace.graph.plan import Plan
from tailrace.task.contract.jobspec import JobSpec
from tailrace.task.contract.tuning import Tuning
from tailrace.task.worker.machine import Worker
from tailrace.testing.cluster import Cluster, Later
from tailrace.testing.drivers import Drivers
from tailrace.testing.faults import Fault
from tailrace.testing.memorystore import MemoryFiles
from tailrace.testing.recording import Recordings
from tailrace.testing.setting import DrivenJob, From, Setting
from tailrace.testing.sizes import rescale
from tailrace.testing.storing import Storage, Trouble
from tailrace.testing.strikes import Strikes
from tailrace.testing.waiting import waits
from tailrace.testing.workers import Workers
from tailrace.testing.world import (
    Conditions,
    Driver,
    Event,
    Observer,
    SimulatedLink,
    SimulatedProcess,
    StoreWork,
    line_about,
)


class SimulationStalled(TailraceError):
    """The error for a job that is disturbed by no fault any more and does not end. Its story lists what each party waits
    for."""

    def __init__(self, what: str, story: list[str]) -> None:
        self.what = what
        self.story = story
        super().__init__("\n  ".join([what, *story]))


class Simulation:
    """One job on a simulated cluster. `run()` brings it to its end.

    Constants of production are values here: the sizes that workers go by (`tuning`), how soon waves follow each other
    (`pace`), up to how many entries state is written as a whole (`small`), and a folder for state on disk (`disk`).
    """

    def __init__(
        self,
        plan: Plan,
        load: Callable[[], JobSpec],
        *,
        seed: int = 0,
        name: str = "simulated",
        conditions: Conditions | None = None,
        limits: Limits | None = None,
        keep_trace: bool = True,
        checkpoints: CheckpointSettings | None = None,
        restarts: Callable[[], Strategy] | None = None,
        files: MemoryFiles | None = None,
        origin: From | None = None,
        allow_dropped_state: bool | tuple[str, ...] = False,
        faults: Sequence[Fault] = (),
        run_id: str = "run",
        tuning: Tuning | None = None,
        pace: WavePace | None = None,
        small: int | None = None,
        disk: str | None = None,
        recordings: Recordings | None = None,
        patience: int | None = None,
        replaces: bool = False,
        spares: int = 0,
        depth: int = 0,
        hot: bool = False,
        ahead: int = 0,
        log: int | None = None,
        elastic: ElasticSizes | None = None,
    ) -> None:
        """Makes a simulation that has not begun. `replaces`: lost workers are replaced while the others go on; the job
        must be one whose workers keep histories. `spares`: number of processes that stand by for that; `depth`: number of
        executors whose workers may be lost at once; `hot`: the processes that stand by do what the workers do. `ahead`:
        microseconds by which the wall clocks of all machines are ahead of the right time. `log`: bytes of the coordinator's
        log between two of its bases, in a job whose workers wait for another coordinator where theirs is lost; None: they
        do not. `elastic`: the sizes of a job that changes its size by itself."""
        self.plan = plan
        self.seed = seed
        self.name = name
        self.settings = checkpoints
        self.files = files if files is not None else MemoryFiles()
        self.patience = patience
        """Number of turns after the last fault, without those in which a standby reads ahead, after which a job that has not
        ended counts as one that never will; None: only `max_turns` counts."""
        self._quiet = 0
        """Number of these turns so far."""
        cluster = self.cluster = Cluster(
            seed, conditions if conditions is not None else Conditions(), keep_trace, ahead
        )
        self.storage = Storage(cluster, name, self.files)
        kept = None if checkpoints is None else self.storage
        scale = None if elastic is None else elastic.scale
        reports = 0 if scale is None else max(1, scale.cooldown // (2 * LOOKS))
        self._workers = Workers(cluster, kept, name, load, Setting(tuning, small, disk, reports), recordings)
        standbys = spares if replaces else None
        copied = 0 if tuning is None else tuning.copied or 0
        rest = pace, standbys, elastic, hot, depth, copied, log
        job = DrivenJob(plan, name, run_id, limits, checkpoints, restarts, origin, allow_dropped_state, *rest)
        self._drivers = Drivers(cluster, self.storage, self._workers, job)
        self._strikes = Strikes(cluster, self.storage, self._workers, self._drivers, faults)
        self._drivers.begin(origin)

    # The parties, and what has happened.

    @property
    def now(self) -> int:
        """The virtual clock, int64 microseconds: the right time, which no fault changes. Coordinators wait by it."""
        return self.cluster.now

    @now.setter
    def now(self, time: int) -> None:
        self.cluster.now = time

    @property
    def ahead(self) -> int:
        """Microseconds by which the clock of the newest driver's job is ahead of the right time."""
        return self.cluster.driver.clocks.ahead

    @property
    def turns(self) -> int:
        """Number of turns so far."""
        return self.cluster.turns

    @property
    def driver(self) -> Driver:
        """The newest driver."""
        return self.cluster.driver

    @property
    def coordinator(self) -> Coordinator:
        """The coordinator of the newest driver."""
        return self.cluster.driver.coordinator

    @property
    def processes(self) -> dict[int, SimulatedProcess]:
        """The processes of the workers that are there."""
        return self.cluster.processes

    @property
    def links(self) -> dict[tuple[int, int], SimulatedLink]:
        """The links, with the items under way, by (sender, receiver)."""
        return self.cluster.links

    @property
    def covered(self) -> Counter[str]:
        """Counts of events: checkpoints, aborts, restarts, …"""
        return self.cluster.covered

    @property
    def trace(self) -> list[str]:
        """The events of the run, one line each."""
        return self.cluster.trace

    @property
    def digest(self) -> str:
        """A hash over the whole trace."""
        return self.cluster.digest

    @property
    def causes(self) -> list[Any]:
        """Causes of the restarts of the job, and failures for which a worker was replaced, in order."""
        return self._drivers.causes

    @property
    def reports(self) -> list[Any]:
        """The last figures of every subtask, taken when its worker left."""
        return self._workers.reports

    @property
    def disturbed(self) -> bool:
        """True where a fault is still to come at some turn, or lasts. A fault that waits for a line that never comes does
        not count."""
        return self._strikes.to_come or self.storage.troubled or self.cluster.frozen

    def workers(self) -> list[Worker]:
        """The machines of the workers that are there."""
        return [process.machine for process in self.processes.values()]

    def watch(self, observer: Observer) -> None:
        """Adds an observer, which sees all events from now on."""
        self.cluster.observers.append(observer)

    # Running.

    def run(self) -> JobStatus:
        """Brings the job to its end and returns its final status. Raises `InternalError` when it never ends,
        `SimulationStalled` where nothing disturbs it."""
        self.start()
        while not self.coordinator.status.final:
            self.turn()
        return self.coordinator.status

    def run_until(self, text: str) -> bool:
        """Runs until a new line of the trace has this text in it (True), or the job has ended (False). Starts the job
        where it has not begun."""
        if self.coordinator.status is JobStatus.CREATED:
            self.start()
        seen = len(self.trace)
        while not self.coordinator.status.final:
            self.turn()
            for line in self.trace[seen:]:
                if text in line:
                    return True
            seen = len(self.trace)
        return False

    def start(self) -> None:
        """Starts the job."""
        self._drivers.start(self.driver)

    def turn(self) -> None:
        """Lets one thing happen."""
        cluster = self.cluster
        cluster.turns += 1
        if cluster.turns > cluster.conditions.max_turns:
            raise InternalError(f"the simulation with seed {self.seed} did not end", self.trace[-40:])
        self._strikes.strike_those_due()
        self._check_that_it_lives()
        choice = cluster.next()
        if choice is None:
            if not cluster.sleep():
                raise InternalError(f"the simulation with seed {self.seed} stands still", self.trace[-40:])
        elif isinstance(choice, Driver):
            self._drivers.tick(choice)
        elif isinstance(choice, SimulatedProcess):
            self._workers.step(choice)
        elif isinstance(choice, Later):
            cluster.note(choice.what)
            choice.act()
        else:
            self._deliver(*choice)

    def _deliver(self, source: int, target: int) -> None:
        cluster = self.cluster
        item = cluster.receive((source, target))
        if isinstance(item, Event) and item.reads_ahead:
            self._quiet -= 1
        cluster.note(f"{cluster.who(source)} => {cluster.who(target)} {line_about(item)}")
        if target < 0:
            self._drivers.deliver(source, cluster.drivers[target], item)
        elif target in cluster.processes:
            process = cluster.processes[target]
            if source >= 0 or process.called is None or isinstance(item, Event) or source == process.called.party:
                self._workers.deliver(process, item)  # else it has hung up on that coordinator
        elif isinstance(item, StoreWork):
            item.orphan()

    def _check_that_it_lives(self) -> None:
        if self.patience is None:
            return
        if self.disturbed:
            self._quiet = 0
            return
        self._quiet += 1
        if self._quiet > self.patience:
            what = f"the job did not end within {self.patience} turns behind the last fault"
            raise SimulationStalled(what, waits(self.cluster))

    def drain(self) -> None:
        """Runs what is left after the end of the job: old drivers, and workers that received no request to leave, come to
        their own ends. No more faults happen."""
        cluster = self.cluster
        self._strikes.stop()
        self.storage.trouble, self.patience = Trouble(), None
        while True:
            if cluster.turns >= cluster.conditions.max_turns:
                raise InternalError(
                    f"what the simulation with seed {self.seed} left behind does not end", self.trace[-40:]
                )
            if cluster.busy:
                self.turn()
                continue
            cluster.turns += 1
            if not cluster.sleep():
                return

    # Interventions of tests.

    def coordinate(self, driver: Driver) -> None:
        """Carries out the actions of a coordinator, after a harness has called it directly."""
        self._drivers.coordinate(driver)

    def kill(self, process: SimulatedProcess) -> None:
        """Kills a worker's process."""
        self.cluster.kill(process, "killed", cut=True, announced=True)

    def rescale(self, sizes: int | Mapping[str, int], who: Callable[[Any], None] | None = None) -> None:
        """Requests another size of the job: a parallelism, or some by uid. `who` takes the answer."""
        rescale(self.cluster, self._drivers.job, sizes, who)

    def strike(self, fault: Fault) -> None:
        """Lets a fault happen now."""
        self._strikes.strike(fault)

    def count(self, what: str) -> None:
        """Counts an event."""
        self.cluster.count(what)
