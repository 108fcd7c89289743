"""A checkpoint that was copied by hand is worth what it was: a job is left alone at some moment, another one goes on from a
copy of its newest checkpoint, and together they emit the right output, once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

import tailrace as tr
from search.programs.golden import PROGRAMS
from search.watchers.checker import BOOKS, Book, Ledger
from tailrace.state.paths import SAVEPOINT
from tailrace.statedata.newcheckpoint import CheckpointPlan, complete
from tailrace.statedata.stored import StoredCheckpoint
from tailrace.storage.reading import verify
from tailrace.storage.savepoints import begin
from tailrace.storage.store import Store
from tailrace.testing.inprocess import prepared_simulation
from tailrace.testing.memorystore import MemoryFiles


def taken(files: MemoryFiles, number: int) -> bool:
    """Whether the checkpoint of this number is complete."""
    return any(name.endswith(f"/{number}.manifest") for name in files.contents)


def copied(files: MemoryFiles) -> tuple[MemoryFiles, str]:
    """The newest checkpoint of a job in a folder of its own."""
    store = Store("memory", "x", folder=files)
    newest = store.latest()
    assert newest is not None
    folder = MemoryFiles(url="copy:")
    copy = Store("copy", "x", folder=folder)
    begin(folder)
    base = StoredCheckpoint(store, newest[0])
    complete(copy, CheckpointPlan("x", base.manifest.max_parallelism, base=base), [], 0, "by-hand")
    made = copy.manifest(SAVEPOINT)
    assert made.older == [] and set(folder.contents) == {SAVEPOINT, *(file.name for file in made.files)}
    verify(copy, made)
    return folder, SAVEPOINT


MODES = ("aligned", "unaligned")
WAYS = [(mode, seed) for seed in range(3) for mode in MODES]
"""Modes of checkpoints, and seeds. With seed n the checkpoint n + 1 is copied."""


@pytest.mark.parametrize("program", sorted(PROGRAMS))
def test_a_job_goes_on_from_a_copy(program: str, exhaustive: bool) -> None:
    golden, went_on = PROGRAMS[program], 0
    for mode, seed in WAYS if exhaustive else zip(MODES, (0, 1), strict=True):
        name = f"copy-{program}-{mode}-{seed}"
        book = BOOKS[name] = Book()
        origin: Any = None
        for number in range(2):
            config = tr.CheckpointConfig(dir="memory", interval=0.004, mode=mode)
            restart = tr.FixedDelay(attempts=50, delay=0.0)
            env = tr.Environment(parallelism=2, checkpoint=config, restart=restart)
            golden.build(env, golden.n, 4_000.0).sink_to(Ledger(name), uid="ledger")
            files = MemoryFiles(url=f"memory{number}:")
            options = {"seed": 10 * seed + number, "files": files, "origin": origin, "small": 0}
            job = prepared_simulation(env, name="x", run_id=f"run{number}", **options)
            if number:
                job.run()
                break
            job.start()
            while not job.coordinator.status.final and not taken(files, 1 + seed):
                job.turn()
            if job.coordinator.status.final:
                break
            origin = copied(files)
            went_on += 1
        assert job.coordinator.status.name == "FINISHED", job.coordinator.status
        assert Counter(book.records()) == golden.expected(golden.n), f"seed {seed}"
        del BOOKS[name]
    assert went_on, "no job had a checkpoint and was not over by then: this shows nothing"
