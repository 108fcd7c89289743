"""A job goes on from the checkpoint of a program that assigned event time, and does not assign any itself; then it loses a
worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

import tailrace as tr
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.coordinator.durability.stopping import Aim
from tailrace.state.paths import SAVEPOINT
from tailrace.testing.faults import Fault
from tailrace.testing.inprocess import prepared_simulation

pytestmark = pytest.mark.search
END = 1_000
FIRST, SECOND = "timed before", "timed no more"


class Passes(tr.KeyedProcessFunction):
    """Counts what it passes on."""

    count = tr.ValueState(int, default=0)

    def process(self, value: int, ctx: Any) -> Any:
        self.count.value += 1
        yield value


def flow(book: str, *, timed: bool, **settings: Any) -> tr.Environment:
    env = tr.Environment(parallelism=2, checkpoint=tr.CheckpointConfig("memory", interval=0.03), **settings)
    stream = env.from_source(tr.sources.Sequence(0, END, rate=20_000.0), uid="numbers")
    if timed:
        stream = stream.assign_timestamps(float, uid="times")
    for uid, keys in (("one", 7), ("two", 5), ("three", 6), ("four", 6)):
        stream = stream.key_by(lambda n, keys=keys: n % keys).process(Passes(), uid=uid)
    stream.sink_to(Ledger(book), uid="ledger")
    return env


@pytest.fixture
def books() -> Iterator[dict[str, Book]]:
    made = {name: Book() for name in (FIRST, SECOND)}
    BOOKS.update(made)
    yield made
    for name in made:
        del BOOKS[name]


def stopped(book: Book) -> WatchedFiles:
    """The folder of a savepoint of the program that assigns event time."""
    world = prepared_simulation(flow(FIRST, timed=True), name="first", seed=4, files=WatchedFiles([book]))
    assert world.run_until("v1[0] read")
    for _ in range(200):
        world.turn()
    world.coordinator.stop(lambda ended: None, Aim(savepoint="memory:backup"), world.now)
    world.coordinate(world.driver)
    while not world.coordinator.status.final:
        world.turn()
    files = WatchedFiles([], "memory:moved")
    files.contents = {name: bytes(data) for name, data in world.storage.savepoints["memory:backup"].contents.items()}
    files.lineage[SAVEPOINT] = frozenset()
    return files


def test_a_worker_is_replaced_that_tells_of_event_time_which_nobody_assigns_any_more(books: dict[str, Book]) -> None:
    """Operators are where they were in event time, and report it once, behind records that had come by then. Each task
    did its part for itself, and a watermark that had no frame to end was taken for a bug of ours: the job had
    failed."""
    folder = stopped(books[FIRST])
    before = Counter(books[FIRST].records())
    assert 0 < before.total() < END
    for seed in (0, 5, 10):
        book = BOOKS[SECOND] = Book()
        env = flow(SECOND, timed=False, standby=tr.StandbyConfig(replicas=0), restart=tr.FixedDelay(attempts=3))
        world = prepared_simulation(
            env,
            name="second",
            seed=seed,
            run_id="second",
            files=WatchedFiles([book], "memory:second"),
            origin=(folder, SAVEPOINT),
            small=0,
            faults=[Fault(300, "kill", which=1)],
            allow_dropped_state=("times",),
        )
        world.run()
        assert world.coordinator.status.name == "FINISHED", world.coordinator.cause
        assert world.causes == [], "it was replaced"
        assert before + Counter(book.records()) == Counter(range(END)) and book.wrong == []
