"""Starts of a job from any moment of its life: what users do with checkpoints, and what readers do with output.

At some moments of a simulated run the world is kept: the folder of checkpoints and the output, as a crash of everything
would leave them. From there a *history* goes on. It has starts from the newest checkpoint or an older one: in the same
folder, in a copy of it, as another job, beside each other, or without the sink. Some starts are left alone, and readers
take output away in between. Take the last checkpoint of a start that comes to its end: all that was prepared up to it, by
its run and by those that it goes on from, is the output, and was visible once.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from unittest import mock

from search.ends import FINISHED, NOTHING, found_by, leaves, mistake, mistaken, newest_committed
from search.watchers.checker import BOOKS, Book, Ledger, WatchedFiles
from tailrace.api.restore.identity import dataflow_of
from tailrace.coordinator.job.lifecycle import JobStatus
from tailrace.errors import IncompatibleState, TailraceError
from tailrace.state.paths import ended_mark, manifest_place, published_mark
from tailrace.storage.manifest_slots import holds_manifest
from tailrace.testing.faults import Fault
from tailrace.testing.simulator import Simulation

KEPT = 16
"""Number of moments of a run that are kept, chosen by chance from all at which anything has changed."""
SINK = "ledger"
"""The uid of the sink."""
ATTEMPTS = 60
"""Number of failures after which a job counts as one that fails for ever: its faults would have been over long ago."""
TURNS = 150_000
"""Number of turns after which a start that has not come to its end counts as one that never will."""


@dataclass(frozen=True)
class Moment:
    """The world as it was at some moment."""

    at: str
    contents: dict[str, bytes | bytearray]
    claims: int
    lineage: dict[str, frozenset[bytes]]
    prepared: dict[bytes, list[Any]]
    published: dict[bytes, list[Any]]
    traces: frozenset[bytes]
    committed: frozenset[bytes]
    incarnation: int


class Moments:
    """An observer of one simulated run that keeps some moments of it."""

    def __init__(self, files: WatchedFiles, book: Book, chance: random.Random) -> None:
        self.files, self.book, self.chance = files, book, chance
        self.kept: list[Moment] = []
        self._seen = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A context in which it observes."""
        with contextlib.ExitStack() as stack:
            for what in ("create", "delete"):
                stack.enter_context(mock.patch.object(self.files, what, self._after(getattr(self.files, what), what)))
            for what in ("publish", "settled", "recover"):
                stack.enter_context(mock.patch.object(Ledger, what, self._of_sinks(getattr(Ledger, what), what)))
            yield

    def _after(self, act: Callable[..., Any], what: str) -> Callable[..., Any]:
        def acting(*args: Any) -> Any:
            found = act(*args)
            self.pass_moment(f"{what} {args[0]}")
            return found

        return acting

    def _of_sinks(self, act: Callable[..., Any], what: str) -> Callable[..., Any]:
        def acting(sink: Ledger, *args: Any) -> Any:
            found = act(sink, *args)
            if sink.book is self.book:
                self.pass_moment(what)
            return found

        return acting

    def pass_moment(self, at: str) -> None:
        """Decides whether to keep this moment, at which something has changed in the world."""
        if not self.files.lineage:
            return  # there is no checkpoint to start from
        self._seen += 1
        if len(self.kept) < KEPT:
            self.kept.append(self._moment(at))
        elif self.chance.random() < KEPT / self._seen:
            self.kept[self.chance.randrange(KEPT)] = self._moment(at)

    def _moment(self, at: str) -> Moment:
        files, book = self.files, self.book
        return Moment(
            at,
            {name: bytes(data) for name, data in files.contents.items()},
            files.claims,
            dict(files.lineage),
            dict(book.prepared),
            dict(book.published),
            frozenset(book.traces),
            frozenset(book.committed or ()),
            book.incarnation,
        )


@dataclass(frozen=True)
class Again:
    """The way in which the job of a run is started again, and the check of its output."""

    build: Callable[..., Simulation]
    """Makes a simulation from the name of a book and a folder. Its options are options of a simulation and three more:
    `sink` is the uid of the sink, with `late` it takes no checkpoint before its last one, and `keep_runs` is as in
    `CheckpointSettings`."""
    check: Callable[[Book], list[str]]
    refused: Callable[[str], bool] = lambda message: False
    """True for the error of a failed start that is right, since the dataflow cannot go on there."""


def start_again(
    moments: list[Moment], again: Again, chance: random.Random, covered: Counter[str], most: int
) -> list[str]:
    """Goes on from some of these moments, and returns descriptions of what is wrong with the results."""
    wrong = []
    possible = [moment for moment in moments if manifests(moment.contents)]
    for moment in chance.sample(possible, min(most, len(possible))):
        history = _History(moment, again, chance)
        wrong += history.errors()
        covered["went on from some moment"] += 1
        covered.update(f"started {what}" for what in history.done)
        covered.update(f"found {what}" for what in history.found)
    return wrong


class _History:
    """The events from one moment on."""

    def __init__(self, moment: Moment, again: Again, chance: random.Random) -> None:
        self.moment, self.again, self.chance = moment, again, chance
        self.book = Book(
            dict(moment.prepared),
            dict(moment.published),
            traces=set(moment.traces),
            incarnation=moment.incarnation,
            committed=set(moment.committed),
        )
        self.files = WatchedFiles([self.book])
        self.files.contents, self.files.claims = dict(moment.contents), moment.claims
        self.files.lineage = dict(moment.lineage)
        self.starts = 0
        self.renamed: set[str] = set()
        """Checkpoints of starts without the sink."""
        self.done: list[str] = []
        """Names of what the user has done."""
        self.found: list[str] = []
        """Results of other starts with the same command."""
        self.story = [f"as it was after {moment.at}"]
        self.wrong: list[str] = []
        self.last: Simulation | None = None
        """The newest start in the job's own folder."""
        self._before: tuple[frozenset[bytes], JobStatus | None] = (frozenset(), None)
        """Transactions that had been prepared when the newest start began, and the status with which the start before it
        had ended."""
        self.rest = random.Random(f"once more {chance.getstate()[1][:2]} {moment.at}")
        """Generator for what comes after the history: its draws change nothing of the history."""

    def errors(self) -> list[str]:
        """Runs the history. Returns descriptions of everything that is wrong, with the story."""
        BOOKS["again"] = self.book
        try:
            self._go()
        finally:
            del BOOKS["again"]
        story = ", ".join(self.story)
        return [
            f"the job, started again ({story}): {one}" for one in [*self.wrong, *self.book.wrong, *self.files.wrong]
        ]

    def _go(self) -> None:
        acts = [self.same, self.same, self.elsewhere, self.copy, self.beside, self.without]
        chosen = [self.chance.choice(acts) for _ in range(self.chance.choice([0, 0, 1, 2]))]
        for act in chosen:
            self.reader()
            self.done.append(act.__name__)
            act()
            if self.wrong:
                return
        self.reader()
        self.same(to_the_end=True)
        self.once_more()

    # The reader's actions.

    def reader(self) -> None:
        """Takes away some of the visible output."""
        share = self.chance.choice([0.0, 0.5, 1.0])
        self.book.taken.update(token for token in self.book.published if self.chance.random() < share)

    # The user's actions.

    def same(self, to_the_end: bool = False) -> None:
        """Starts in the same folder, mostly from the newest checkpoint. The start comes to its end, or is left alone."""
        name = self._checkpoint()
        what = f"from {name}"
        world = self.last = self._build(self.files, (self.files, name), what, faults=self._faults())
        if world is not None:
            self._run(world, self.files, what, None if to_the_end else self._turns())

    def elsewhere(self) -> None:
        """Starts another job from a checkpoint, in a folder of its own."""
        name = self._checkpoint()
        files, what = WatchedFiles([self.book], f"memory:{self.starts}"), f"another job from {name}"
        world = self._build(files, (self.files, name), what, name="another", faults=self._faults())
        if world is not None:
            self._run(world, files, what, self._turns())

    def copy(self) -> None:
        """Copies the folder, and starts the job in the copy."""
        name = self._checkpoint()
        files, what = WatchedFiles([self.book], f"memory:{self.starts}"), f"in a copy from {name}"
        files.contents, files.claims = dict(self.files.contents), self.files.claims
        files.lineage = dict(self.files.lineage)
        world = self._build(files, (files, name), what, faults=self._faults())
        if world is not None:
            self._run(world, files, what, self._turns())

    def beside(self) -> None:
        """Starts two jobs from one checkpoint. Another job has begun from it, and has no checkpoint of its own yet. The
        job itself goes on from it, too. A reader takes everything. Then a worker of the other job dies."""
        name = self._checkpoint()
        files, what = WatchedFiles([self.book], f"memory:{self.starts}"), f"another job from {name}, beside it"
        other = self._build(files, (self.files, name), what, name="another", late=True)
        if other is None:
            return
        self._run(other, files, what, until=JobStatus.RUNNING)
        world = self._build(self.files, (self.files, name), f"from {name}")
        if self.wrong or world is None:
            return
        self._run(world, self.files, f"from {name}", self._turns())
        self.book.taken.update(self.book.published)
        if not self.wrong and not other.coordinator.status.final:
            other.strike(Fault(0, "kill", self.chance.randrange(6)))
            self._run(other, files, what)

    def without(self) -> None:
        """Starts with another uid of the sink. Such a start is refused where the sink has output that may still have to be
        published. Or the user gives that output up, and then starts from the same checkpoint with the sink after all."""
        name, given_up = self._checkpoint(), self.chance.random() < 0.6
        what = f"from {name} without the sink" + (", given up" if given_up else "")
        world = self._build(self.files, (self.files, name), what, sink="renamed", allow=(SINK,) if given_up else ())
        if world is None:
            return
        manifest = None if world.driver.origin is None else world.driver.origin.manifest
        waits = manifest is not None and (len(manifest.prepared) or manifest.in_flight.get(SINK, 0))
        if waits and not given_up:
            self.wrong.append(f"it began {what}, and would lose {waits} transactions, or bytes in flight to the sink")
            return
        before = set(manifests(self.files.contents))
        self._run(world, self.files, what, self._turns(), whole=not waits)
        self.renamed |= set(manifests(self.files.contents)) - before
        if given_up and not self.wrong:
            self.reader()
            again = self._build(self.files, (self.files, name), f"from {name}")
            if again is not None:
                self._run(again, self.files, f"from {name}")

    def once_more(self) -> None:
        """Starts again with the same command, `latest`, some times after the last start is over. Now and then the start
        begins anew where the job has finished, and is left alone or cancelled on its way."""
        chance, left = self.rest, None
        counts: JobStatus | None = None
        for _ in range(chance.choice([2, 3, 4])):
            world = self.last
            if self.wrong or world is None or newest_committed(self.files) in self.renamed:
                return
            ended = world.coordinator.status if world.coordinator.status.final else None
            if ended is not None and left is not world:
                left = world
                self.story.append(f"it left {leaves(world, chance)}")
                counts = self._forget_unseen(ended)
            ended = counts if left is world else ended
            found = found_by(self.files, dataflow=dataflow_of(world.plan.graph))
            self.found.append(found if found in (FINISHED, NOTHING) else "a checkpoint" if found else "the beginning")
            wrong = mistake(found, self.files, ended) or (mistaken(world, self.files) if found == FINISHED else None)
            if wrong is not None:
                self.wrong.append(wrong)
                return
            if found in (FINISHED, NOTHING) and chance.random() < 0.7:
                found = found_by(self.files, start_again=True)
            if found not in (FINISHED, NOTHING):
                self._latest(found, ended)

    def _latest(self, found: str, ended: JobStatus | None) -> None:
        """Goes on from the checkpoint found, until its end, or until it is cancelled or left alone."""
        before, keep = newest_committed(self.files), self.rest.choice([0, 1, 2])
        what = f"once more from {found or 'the beginning'}" + (f", keeping {keep} runs" if keep else "")
        world = self._build(self.files, (self.files, found) if found else None, what, keep_runs=keep)
        if world is None:
            return
        self._run(world, self.files, what, self.rest.choice([None, 100, 250, 600]))
        if not (self.wrong or world.coordinator.status.final) and self.rest.random() < 0.8:
            world.coordinator.cancel(world.now)
            world.coordinate(world.driver)
            self._run(world, self.files, f"{what}, cancelled", cancelled=True)
        if newest_committed(self.files) != before:
            self.last, self._before = world, (self.files.lineage.get(found, frozenset()), ended)

    def _forget_unseen(self, ended: JobStatus) -> JobStatus | None:
        """Status of the newest run that counts. One checkpoint does not: complete when its job was cancelled, before its
        job had learned of it, and gone by now. Nothing of it was visible, and all is as before its run."""
        lineage, newest = self.files.lineage, newest_committed(self.files)
        before, earlier = self._before
        seen = any(token in self.book.published for token in lineage[newest] - before)
        incarnation = (manifest_place(newest) or (0, 0))[0]
        learned = ended_mark(incarnation) in self.files.contents
        if newest in self.files.contents or ended is not JobStatus.CANCELLED or seen or learned:
            return ended
        del lineage[newest]
        return earlier

    # Details of a start.

    def _checkpoint(self) -> str:
        """Name of a checkpoint: mostly the newest one, or one whose output may have to be published again."""
        found = [name for name in manifests(self.files.contents) if name not in self.renamed]
        if self.chance.random() < 0.5:
            return found[-1]
        unmarked = [name for name in found if published_mark(name) not in self.files.contents]
        return self.chance.choice(unmarked if unmarked and self.chance.random() < 0.5 else found)

    def _turns(self) -> int | None:
        """Number of turns after which a start is left alone; None: it is not left alone."""
        return self.chance.choice([None, None, 60, 200, 600, 1_500])

    def _faults(self) -> tuple[Fault, ...]:
        """Draws the faults of a start."""
        chance = self.chance
        soon, which = chance.randint(0, 80), chance.randint(0, 5)
        kill = Fault(soon, "kill", which, after="RUNNING")
        trouble = Fault(0, "storage", duration=chance.choice([5, 20, 60]), chance=0.7, after="Publish", outcome="any")
        return chance.choice(
            [(), (), (kill,), (trouble,), (trouble, kill), (Fault(soon, "crash-driver", after="Publish"),)]
        )

    def _build(
        self, files: WatchedFiles, origin: Any, what: str, late: bool = False, **options: Any
    ) -> Simulation | None:
        """A start that has not begun; None where it is refused, and rightly so. `late`: it takes no checkpoint before its
        last one."""
        self.starts += 1
        self.story.append(what)
        try:
            return self.again.build("again", files, origin=origin, run_id=f"again{self.starts}", late=late, **options)
        except IncompatibleState as error:
            if options.get("sink", SINK) == SINK:
                self.wrong.append(f"it was refused: {error.args[0]}")
            return None

    def _run(
        self,
        world: Simulation,
        files: WatchedFiles,
        what: str,
        turns: int | None = None,
        until: JobStatus | None = None,
        whole: bool = True,
        cancelled: bool = False,
    ) -> None:
        """Runs a start until its end, or for so many turns, or until a status. Where it ends, all of its lineage (`whole`)
        must be visible."""
        try:
            if world.coordinator.status is JobStatus.CREATED:
                world.start()
            while not (world.coordinator.status.final or turns == 0 or world.coordinator.status is until):
                world.turn()
                turns = turns if turns is None else turns - 1
                if len(world.causes) > ATTEMPTS:
                    self.wrong.append(f"{what}, it starts again and again: {world.causes[-1].message}")
                    return
        except TailraceError as error:
            # A driver that follows one which crashed may find what a start without the sink has left as the newest.
            rightly = isinstance(error, IncompatibleState) and self.renamed and "(uid 'renamed')" in error.args[0]
            if not rightly:
                self.wrong.append(f"{type(error).__name__}: {error.args[0]}")
            return
        status, cause = world.coordinator.status, world.coordinator.cause
        if status is JobStatus.FINISHED:
            self.wrong += [*self._judge(files), *self._traces(world)] if whole else []
        elif status.final and not cancelled and not self.again.refused("" if cause is None else cause.message):
            self.wrong.append(f"{what}, it ended as {status}: {cause.message if cause is not None else 'no cause'}")
        if files is not self.files:
            self.wrong += files.wrong

    def _judge(self, files: WatchedFiles) -> list[str]:
        newest = manifests(files.contents)[-1]
        lineage, published = files.lineage[newest], self.book.published
        return self.again.check(Book(published={token: published[token] for token in published if token in lineage}))

    def _traces(self, world: Simulation) -> list[str]:
        """Errors for traces of the run that a start has gone on from: the start has finished, and no other one removes
        them."""
        output = world.coordinator.durability.output
        restored, run = output.origin.manifest, "" if output.origin.manifest is None else output.origin.manifest.run_id
        there = any(node.uid == SINK for node in world.plan.graph.nodes)
        if restored is None or output.origin.spare or not output._origin_is_here or not there:
            return []
        left = sorted(token for token in self.book.traces if token.decode().split("|")[1] == run)
        return [f"traces of {run} are left beside the output for ever, such as {left[0]!r}"] if left else []


def manifests(contents: Mapping[str, bytes | bytearray]) -> list[str]:
    """The checkpoints in a folder, the oldest first."""
    found = sorted((place, name) for name in contents if (place := manifest_place(name)) is not None)
    return [name for _, name in found if holds_manifest(bytes(contents[name]))]
