"""Two drivers that both believe they own the job, at every point where one can overtake the other.

Drivers run in threads of their own that take turns: each operation on the files waits until it is its driver's turn, so a
schedule (a sequence of drivers) is all there is to an interleaving.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, product
from queue import SimpleQueue
from typing import Any

import pytest

from tailrace.errors import CheckpointNotFound, CheckpointsRemoved, Fenced
from tailrace.state.manifest import Manifest, encode_manifest
from tailrace.state.paths import manifest_name
from tailrace.storage.origins import later
from tailrace.storage.store import Store
from tailrace.testing.memorystore import Fault, MemoryFiles, MemoryStore, StoreFault

pytestmark = pytest.mark.search

Making = Callable[..., Manifest]


class Turns:
    """Lets drivers do one operation each, in the order of a schedule, then all others in the order of drivers."""

    def __init__(self, drivers: int) -> None:
        self._drivers = drivers
        self._told: SimpleQueue[int] = SimpleQueue()
        """A driver that requests its turn; one that is over sends a number below zero."""
        self._go: list[SimpleQueue[None]] = [SimpleQueue() for _ in range(drivers)]
        self.used: list[int] = []

    def wait(self, driver: int) -> None:
        self._told.put(driver)
        self._go[driver].get(timeout=30)

    def end(self, driver: int) -> None:
        self._told.put(-1)

    def run(self, schedule: Sequence[int]) -> None:
        """Every driver that is not over waits for its turn before the next one goes: nothing depends on the machine."""
        pending = iter(schedule)
        asking = {self._told.get(timeout=30) for _ in range(self._drivers)} - {-1}
        while asking:
            wished = next((one for one in pending if one in asking), None)
            allowed = min(asking) if wished is None else wished
            self.used.append(allowed)
            self._go[allowed].put(None)
            asking = (asking - {allowed}) | ({self._told.get(timeout=30)} - {-1})


def interleave(
    files: MemoryFiles, drivers: Sequence[Callable[[MemoryStore], Any]], schedule: Sequence[int]
) -> list[int]:
    turns = Turns(len(drivers))
    errors: list[BaseException] = []

    def drive(i: int) -> None:
        def mine(operation: str, name: str) -> Fault:
            turns.wait(i)
            return None

        try:
            drivers[i](MemoryStore("job", files, fail=mine))
        except BaseException as error:  # reported in the test's thread
            errors.append(error)
        finally:
            turns.end(i)

    threads = [threading.Thread(target=drive, args=(i,)) for i in range(len(drivers))]
    for thread in threads:
        thread.start()
    turns.run(schedule)
    for thread in threads:
        thread.join(30)
    assert not errors, errors
    return turns.used


def schedules(first: int, second: int) -> Iterator[list[int]]:
    """All orders in which two drivers can do so many operations each."""
    for places in combinations(range(first + second), first):
        yield [0 if place in places else 1 for place in range(first + second)]


@pytest.mark.parametrize("numbers", [(1, 2, 3), (1, 2, 4), (1, 4), (7,), (7, 8)])
def test_an_old_driver_that_wakes_at_any_point_is_fenced_or_found(numbers: tuple[int, ...], manifest: Making) -> None:
    """The old driver commits checkpoints while the new one claims and reads: one or two more, or the first ones of its
    incarnation; between some of them others were aborted, so that a pointer goes before the manifest. Whatever was committed
    is found; what was not found is fenced. Every interleaving is tried."""
    outcomes: set[tuple[int, int | None]] = set()
    longest = (0, 0)
    before = [n for n in numbers if n == 1]

    def one(schedule: Sequence[int]) -> None:
        nonlocal longest
        files = MemoryFiles()
        setup = MemoryStore("job", files)
        setup.claim("old")
        for n in before:
            setup.commit(1, 0, n, encode_manifest(manifest(n, run_id="old")))
        committed: list[int] = [0, *before]
        found: list[int] = []

        def old(store: MemoryStore) -> None:
            for n in numbers[len(before) :]:
                try:
                    store.commit(1, committed[-1], n, encode_manifest(manifest(n, run_id="old")))
                except Fenced:
                    return
                committed.append(n)

        def new(store: MemoryStore) -> None:
            store.claim("new")
            latest = store.latest()
            found.append(0 if latest is None else latest[1].checkpoint)

        used = interleave(files, [old, new], schedule)
        longest = max(longest[0], used.count(0)), max(longest[1], used.count(1))
        assert found == [committed[-1]], (schedule, committed)
        outcomes.add((committed[-1], found[0]))

    one([])
    one([1] * 30)
    steps = longest
    for schedule in schedules(*steps):
        one(schedule)
    assert longest[0] <= steps[0] + 4
    assert outcomes == {(n, n) for n in (numbers if before else (0, *numbers))}


def test_a_coordinator_that_was_given_up_as_lost_never_fences_its_successor(manifest: Making) -> None:
    """The lost coordinator restarts the job, and commits, while its successor claims and commits: each is stopped once,
    anywhere. The successor finds what the lost one has committed, is never fenced, and restarts the job itself later."""
    outcomes: set[tuple[str, int]] = set()
    longest = (0, 0)

    def one(schedule: Sequence[int]) -> None:
        nonlocal longest
        files = MemoryFiles()
        program = MemoryStore("job", files)
        program.claim("run")
        ended: list[str] = []
        found: list[int] = []
        committed: list[int] = []

        def lost(store: MemoryStore) -> None:
            store.hold("run")
            try:
                incarnation = store.claim("run")
                store.commit(incarnation, 0, 1, encode_manifest(manifest(1, incarnation, run_id="run")))
                committed.append(1)
            except Fenced:
                ended.append("fenced")

        def successor(store: MemoryStore) -> None:
            store.hold("run", term=1)
            incarnation = store.claim("run")
            latest = store.latest()
            found.append(0 if latest is None else latest[1].checkpoint)
            store.commit(incarnation, 0, 2, encode_manifest(manifest(2, incarnation, run_id="run")))
            again = store.claim("run")
            store.commit(again, 0, 3, encode_manifest(manifest(3, again, run_id="run")))

        used = interleave(files, [lost, successor], schedule)
        longest = max(longest[0], used.count(0)), max(longest[1], used.count(1))
        assert found == [max(committed, default=0)], (schedule, committed)
        newest = MemoryStore("job", files).latest()
        assert newest is not None and newest[1].checkpoint == 3, schedule
        outcomes.add((ended[0] if ended else "committed", found[0]))

    one([])
    one([1] * 60)
    first, second = longest
    for a, b in product(range(first), range(second)):
        one([0] * a + [1] * b + [0] * 60)
        one([1] * b + [0] * a + [1] * 60)
    assert outcomes == {("committed", 1), ("fenced", 0)}


def test_of_drivers_that_start_together_one_is_last_and_the_others_are_fenced(manifest: Making) -> None:
    """Three start at once, under random interleavings: incarnations differ, and only the newest commits after all have
    claimed."""
    for seed in range(300):
        files, rng = MemoryFiles(), random.Random(seed)
        claimed: dict[str, int] = {}
        stores: dict[str, MemoryStore] = {}

        def start(
            store: MemoryStore, run: str, claimed: dict[str, int] = claimed, stores: dict[str, MemoryStore] = stores
        ) -> None:
            claimed[run] = store.claim(run)
            stores[run] = store

        drivers = [lambda store, run=run, start=start: start(store, run) for run in "abc"]
        interleave(files, drivers, [rng.randrange(3) for _ in range(60)])
        assert len(set(claimed.values())) == 3
        later = MemoryStore("job", files)
        for run, incarnation in claimed.items():
            data = encode_manifest(manifest(1, incarnation, run_id=run))
            if incarnation == max(claimed.values()):
                assert later.commit(incarnation, 0, 1, data)
            else:
                with pytest.raises(Fenced):
                    later.commit(incarnation, 0, 1, data)


@pytest.mark.parametrize("fault", [None, "error", "unknown-done", "unknown-not-done"])
@pytest.mark.parametrize("number", [1, 3])
def test_a_commit_that_is_requested_twice_is_done_once_or_fenced(fault: Fault, number: int, manifest: Making) -> None:
    """A driver that has claimed loses the answer to its commit and commits again, while another one claims and reads,
    in every interleaving. What the other one has found stays, and the commit has succeeded; what it has not found is
    fenced."""
    outcomes: set[tuple[str, int]] = set()
    longest = (0, 0)

    def one(schedule: Sequence[int]) -> None:
        nonlocal longest
        files = MemoryFiles()
        found: list[int] = []
        answers_: list[str] = []
        ready = MemoryStore("job", files)
        assert ready.claim("old") == 1

        def old(store: MemoryStore) -> None:
            ready.folder, ready._claims._folder = (
                store.folder,
                store.folder,
            )  # it has claimed, and takes turns from here on
            data = encode_manifest(manifest(number, run_id="old"))
            create, faults = store.folder.create, [fault]

            def once(name: str, given: bytes) -> None:
                wrong = faults.pop() if faults and name == f"1/{number}.manifest" else None
                if wrong in (None, "unknown-done"):
                    create(name, given)
                if wrong is not None:
                    raise TimeoutError("no answer")

            store.folder.create = once  # type: ignore[method-assign]
            for _ in range(2):
                try:
                    ready.commit(1, 0, number, data)
                    answers_.append("done")
                    return
                except Fenced:
                    answers_.append("fenced")
                    return
                except TimeoutError:
                    pass

        def new(store: MemoryStore) -> None:
            store.claim("new")
            latest = store.latest()
            found.append(0 if latest is None else latest[1].checkpoint)

        used = interleave(files, [old, new], schedule)
        longest = max(longest[0], used.count(0)), max(longest[1], used.count(1))
        outcomes.add((answers_[0], found[0]))
        assert (answers_, found) in ((["done"], [number]), (["fenced"], [0])), (schedule, answers_, found)
        if found == [number]:
            assert files.contents[f"1/{number}.manifest"] == encode_manifest(manifest(number, run_id="old"))

    one([])
    one([1] * 30)
    rng = random.Random(f"{fault} {number}")
    every = list(schedules(*longest))
    for schedule in rng.sample(every, min(len(every), 120)):
        one(schedule)
    assert outcomes == {("done", number), ("fenced", 0)}


@pytest.mark.parametrize("fault", ["error", "unknown-done", "unknown-not-done"])
def test_whatever_fails_while_claiming_a_second_try_fences_and_finds(fault: Fault, manifest: Making) -> None:
    """The claim of a restart fails at each operation in turn; the next claim repairs everything."""
    for at in range(40):
        files = MemoryFiles()
        old = MemoryStore("job", files)
        old.claim("old")
        old.commit(1, 0, 1, encode_manifest(manifest(1, run_id="old")))
        count = iter(range(1000))
        armed = [True]

        def fail(
            operation: str, name: str, at: int = at, count: Iterator[int] = count, armed: list[bool] = armed
        ) -> Fault:
            return fault if armed and next(count) == at else None

        new = MemoryStore("job", files, fail=fail)
        try:
            incarnation = new.claim("new")
        except StoreFault:
            armed.clear()
            incarnation = new.claim("new")
        armed.clear()
        assert new.latest() == ("1/1.manifest", manifest(1, run_id="old"))
        with pytest.raises(Fenced):
            old.commit(1, 1, 2, encode_manifest(manifest(2, run_id="old")))
        assert new.commit(incarnation, 0, 1, encode_manifest(manifest(2, incarnation, run_id="new")))
        if next(count) <= at:  # the claim had fewer operations: each has failed once
            assert at > 10
            return
    raise AssertionError("a claim has no end")


@pytest.mark.parametrize("slot", ["1/0.manifest", "1/1.manifest"])
@pytest.mark.parametrize("fault", ["error", "unknown-done", "unknown-not-done"])
def test_a_commit_of_unknown_outcome_is_settled_by_the_next_claim(fault: Fault, slot: str, manifest: Making) -> None:
    files = MemoryFiles()
    faults = [fault]
    store = MemoryStore("job", files, fail=lambda o, n: faults.pop() if faults and n.endswith(slot) else None)
    store.claim("run")
    data = encode_manifest(manifest(1))
    with pytest.raises(StoreFault):
        store.commit(1, 0, 1, data)
    assert store.claim("run") == 2
    found = store.latest()
    if fault == "unknown-done" and slot == "1/1.manifest":  # the one in front of it is a pointer
        assert found == ("1/1.manifest", manifest(1))
        assert store.commit(1, 0, 1, data) == "1/1.manifest"  # the same commit, come late, changes nothing
    else:
        assert found is None
        with pytest.raises(Fenced):
            store.commit(1, 0, 1, data)


def test_old_manifests_that_are_deleted_while_sealing_do_not_open_a_slot(manifest: Making) -> None:
    """The old driver goes on committing and deleting what is older, as retention does."""
    for schedule_seed in range(200):
        files, rng = MemoryFiles(), random.Random(schedule_seed)
        MemoryStore("job", files).claim("old")
        committed: list[int] = []
        found: list[int | None] = []

        def old(store: MemoryStore, committed: list[int] = committed) -> None:
            last = 0
            for n in (3, 4, 6, 7, 10, 11):
                try:
                    store.commit(1, last, n, encode_manifest(manifest(n, run_id="old")))
                except Fenced:
                    return
                committed.append(n)
                following = last + 1 if last else 0
                store.delete([manifest_name(1, slot) for slot in {last, following} - {n}])
                last = n

        def new(store: MemoryStore, found: list[int | None] = found) -> None:
            store.claim("new")
            latest = store.latest()
            found.append(None if latest is None else latest[1].checkpoint)

        interleave(files, [old, new], [rng.randrange(2) for _ in range(40)])
        assert found == [committed[-1] if committed else None]


def test_a_claim_looks_no_further_back_than_needed() -> None:
    files = MemoryFiles()
    store = MemoryStore("job", files)
    counts = []
    for _ in range(30):
        operations: list[str] = []
        files.fail = lambda operation, name, operations=operations: operations.append(operation)  # type: ignore[misc]
        store.claim("run")
        counts.append(len(operations))
    assert counts[29] == counts[2]


def test_a_folder_whose_slots_were_counted_is_sealed_and_read(manifest: Making) -> None:
    """Before manifests had the numbers of their checkpoints they were 0, 1, 2, ... in each incarnation. Such checkpoints
    can be named, and gone on from; and a driver of that version that wakes up is fenced."""
    files = MemoryFiles()
    counted = MemoryStore("job", files)
    counted.claim("counted")
    for k, n in enumerate((41, 44, 45)):
        files.create(f"1/{k}.manifest", encode_manifest(manifest(n, run_id="counted")))
    files.delete(["1/0.manifest"])
    store = MemoryStore("job", files)
    assert store.claim("new") == 2
    assert files.contents["1/3.manifest"] == b"tailrace-seal by 2\n"
    assert store.latest() == ("1/2.manifest", manifest(45, run_id="counted"))
    assert [name for name, _ in later(store, "1/1.manifest")] == ["1/2.manifest"]
    assert store.commit(2, 0, 46, encode_manifest(manifest(46, 2, run_id="new"))) == "2/46.manifest"
    assert [name for name, _ in later(store, "1/1.manifest")] == ["1/2.manifest", "2/46.manifest"]


def test_a_manifest_has_the_number_of_its_checkpoint_whatever_went_before(manifest: Making) -> None:
    """A user met checkpoint 45 as `3/41.manifest`. Where others were aborted before it, or it is the first one of its
    incarnation, a pointer names where the slots go on."""
    files = MemoryFiles()
    store = MemoryStore("job", files)
    store.claim("run")
    last = 0
    for n in (41, 42, 45):
        assert store.commit(1, last, n, encode_manifest(manifest(n))) == f"1/{n}.manifest"
        last = n
    slots = {name: data for name, data in files.contents.items() if name.endswith(".manifest")}
    pointers = {name: data for name, data in slots.items() if name not in {f"1/{n}.manifest" for n in (41, 42, 45)}}
    assert pointers == {"1/0.manifest": b"tailrace-next 41\n", "1/43.manifest": b"tailrace-next 45\n"}
    with pytest.raises(CheckpointNotFound, match=r"1/43.manifest is not a checkpoint: the next one .* is 45"):
        store.manifest("1/43.manifest")
    store.delete(pointers)
    assert store.claim("run") == 2 and files.contents["1/46.manifest"] == b"tailrace-seal by 2\n"


def test_a_claim_seals_what_a_pointer_points_to(manifest: Making) -> None:
    """The driver was killed, or sleeps, between the two."""
    for before, slot in (([], "1/0.manifest"), ([41], "1/42.manifest")):
        files = MemoryFiles()
        old = MemoryStore("job", files)
        old.claim("old")
        for n in before:
            old.commit(1, 0, n, encode_manifest(manifest(n, run_id="old")))
        files.create(slot, b"tailrace-next 45\n")
        MemoryStore("job", files).claim("new")
        assert files.contents["1/45.manifest"] == b"tailrace-seal by 2\n"
        with pytest.raises(Fenced):
            MemoryStore("job", files).commit(1, *(before or [0]), 45, encode_manifest(manifest(45, run_id="old")))


# Where somebody has removed what fences.


@pytest.mark.parametrize("what", ["the manifests", "everything but the claim", "the whole incarnation", "the job"])
@pytest.mark.parametrize("newer", ["manifest", "nothing yet"])
@pytest.mark.parametrize("following", [4, 6])
def test_whatever_somebody_deletes_by_hand_an_old_driver_commits_nothing(
    what: str, newer: str, following: int, manifest: Making
) -> None:
    """Seals are called like manifests. Who deletes old manifests deletes them too, and the driver that was asleep found its
    next slot free: it committed, and published beside the job that had taken over."""
    files = MemoryFiles()
    asleep, awake = MemoryStore("job", files), MemoryStore("job", files)
    asleep.claim("asleep")
    for k in range(3):
        asleep.commit(1, k, k + 1, encode_manifest(manifest(k + 1, run_id="asleep")))
    awake.claim("awake")
    if newer == "manifest":
        awake.commit(2, 0, 1, encode_manifest(manifest(4, 2, run_id="awake")))
    gone = {
        "the manifests": lambda name: name.startswith("1/") and name.endswith(".manifest"),
        "everything but the claim": lambda name: name.startswith("1/") and name != "1/claim",
        "the whole incarnation": lambda name: name.startswith("1/"),
        "the job": lambda name: True,
    }[what]
    files.delete([name for name in list(files.contents) if gone(name)])
    if what == "the job":
        awake = MemoryStore("job", files)
        assert awake.claim("begun anew") == 1, "the same number as the one that sleeps"
    before = dict(files.contents)
    with pytest.raises((Fenced, CheckpointsRemoved), match=r"taken over|was removed|started again"):
        asleep.commit(1, 3, following, encode_manifest(manifest(following, run_id="asleep")))
    assert files.contents == before
    with pytest.raises((Fenced, CheckpointsRemoved)):
        asleep.claim("asleep")
    assert files.contents == before
    assert awake.commit(awake.incarnations()[-1], 1, 2, encode_manifest(manifest(5, 2, run_id="awake")))


def test_a_start_that_has_not_come_to_its_end_fences_by_its_seals_only(manifest: Making) -> None:
    """A driver elsewhere claims, and dies before it has sealed anything: nobody has taken over."""
    files = MemoryFiles()
    store = MemoryStore("job", files)
    store.claim("run")
    dying = MemoryStore("job", files, fail=lambda operation, name: "error" if name == "1/0.manifest" else None)
    with pytest.raises(StoreFault):
        dying.claim("dying")
    assert "2/claim" in files.contents and "2/ready" not in files.contents
    assert store.commit(1, 0, 1, encode_manifest(manifest(1)))


def test_another_process_of_a_run_goes_on_under_its_claims(manifest: Making) -> None:
    """The one that has claimed for it may live, and be on this machine: it is no other start of the job."""
    files = MemoryFiles()
    first, second = MemoryStore("job", files), MemoryStore("job", files)
    first.claim("run")
    second.hold("run")
    assert second.commit(1, 0, 1, encode_manifest(manifest(1)))
    assert second.claim("run") == 2
    with pytest.raises(Fenced):
        first.commit(1, 1, 2, encode_manifest(manifest(2)))
    third = MemoryStore("job", files)
    third.hold("run")
    assert third.claim("run") == 3
    with pytest.raises(CheckpointsRemoved, match="no claim of run other"):
        MemoryStore("job", files).hold("other")
    MemoryStore("job", files).claim("other", takeover=True)
    with pytest.raises(Fenced):
        third.claim("run")


@pytest.mark.parametrize("act", ["commit", "claim"])
def test_a_folder_that_is_removed_while_its_job_runs_is_reported(act: str, manifest: Making) -> None:
    """What was made in the emptied folder would be called complete, and name files that are gone; and a restart would find
    no checkpoint, begin anew, and publish everything once more."""
    files = MemoryFiles()
    store = MemoryStore("job", files)
    store.claim("run")
    store.commit(1, 0, 1, encode_manifest(manifest(1)))
    files.contents.clear()
    with pytest.raises(
        CheckpointsRemoved, match="was removed, or a part of it, while job 'job' ran: the claim 1/claim is"
    ):
        store.commit(1, 1, 2, encode_manifest(manifest(2))) if act == "commit" else store.claim("run")
    store.release(1)
    assert files.contents == {}


@pytest.mark.parametrize("lost", ["1/chk-1/w0-1.state", "1/chk-2/w1-1.state"])
def test_no_manifest_names_a_file_that_is_gone(lost: str, url: str, manifest: Making) -> None:
    """A user, or a rule of the bucket, deletes old files under a running job."""
    store = Store(url, "job")
    store.claim("run")
    needs = ["1/chk-1/w0-1.state", "1/chk-1/w1-1.state", "1/chk-2/w0-1.state", "1/chk-2/w1-1.state"]
    for name in needs:
        writer = store.writer(name)
        writer.append(b"x")
        writer.close()
    assert store.commit(1, 0, 1, encode_manifest(manifest(1)), needs)
    store.folder.delete([lost])
    with pytest.raises(CheckpointsRemoved, match=f"the next checkpoint needs {lost}. Has somebody cleaned up by hand"):
        store.commit(1, 1, 2, encode_manifest(manifest(2)), needs)
    assert "1/2.manifest" not in store.names(1)


def test_a_look_at_a_claim_finds_any_newer_start_and_no_claim_of_its_own_run() -> None:
    files = MemoryFiles()
    first = MemoryStore("job", files)
    held = first.claim("run")
    first.check_claim(held)
    again = first.claim("run")
    first.check_claim(again)
    first.check_claim(held)
    second = MemoryStore("job", files)
    newer = second.claim("other", takeover=True)
    with pytest.raises(Fenced, match=r"a newer start of job 'job' \(run other, .*\) has taken over with incarnation 3"):
        first.check_claim(again)
    second.check_claim(newer)
    second.release(newer)
    with pytest.raises(Fenced, match="a newer start"):
        first.check_claim(again)
    files.contents.clear()
    with pytest.raises(CheckpointsRemoved, match=r"the claim 3/claim\S* is gone"):
        second.check_claim(newer)


def test_a_look_at_a_claim_finds_the_successor_of_a_coordinator_that_seemed_lost() -> None:
    files = MemoryFiles()
    lost, successor = MemoryStore("job", files), MemoryStore("job", files)
    held = lost.claim("run")
    successor.hold("run", term=1)
    lost.check_claim(held)
    claimed = successor.claim("run")
    with pytest.raises(Fenced, match="has taken over"):
        lost.check_claim(held)
    successor.check_claim(claimed)
