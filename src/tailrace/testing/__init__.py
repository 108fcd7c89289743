"""For the tests of your own dataflows: run a job inside this process, drive a function by hand, simulate a cluster.

`run(env)` runs everything that is pending in this process and this thread: breakpoints and print work, and no Spark is
started. `harness(fn, key=...)` drives one process function by hand. `simulate(env, seed=...)` runs the job on a simulated
cluster, with a network and a scheduler that follow the seed; the same seed gives the same trace.
`audit(env)` lets another process do a job again, and names the operators that emit something else.
`check_sink(make)` checks that a sink keeps its guarantee while processes and its server are killed.

- `inprocess`, `job`: `run` and `simulate`, and the handle of the job. `harness`: one function, by hand.
- `simulator`, `cluster`, `world`: a simulated job, its cluster, and the parts of that. `drivers`, `workers`: the drivers of
  the two machines in it, with `clocks`, `storing`, `memorystore`, `publishing`, `calls` and `background` for what these wait
  for; `setting`: what a worker is made with.
- `faults`, `strikes`: faults as data, and their effects. `sizes`, `successions`: changes of size, and lost coordinators.
  `waiting`: what holds a job that does not end.
- `auditing`, `auditagain`, `recording`, `emissions`, `otherprocess`: `audit`, and the process that does a job again.
- `backends`, `sinkchecks`, `sinkworkers`: `check_backend` and `check_sink`.
"""

from tailrace.runtime.capsules.rerun import CapsuleHarness, read_capsule
from tailrace.testing.auditing import Audit, Differs, audit
from tailrace.testing.faults import Fault
from tailrace.testing.harness import Harness, harness
from tailrace.testing.inprocess import run, simulate
from tailrace.testing.job import SimulatedJob
from tailrace.testing.simulator import Simulation
from tailrace.testing.sinkchecks import SinkFault, SinkReport, check_sink
from tailrace.testing.world import Conditions

__all__ = [
    "Audit",
    "CapsuleHarness",
    "Conditions",
    "Differs",
    "Fault",
    "Harness",
    "SimulatedJob",
    "Simulation",
    "SinkFault",
    "SinkReport",
    "audit",
    "check_sink",
    "harness",
    "read_capsule",
    "run",
    "simulate",
]
