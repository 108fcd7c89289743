"""Redistribution of records that were on their way, after a restore: at another parallelism, or in a changed dataflow."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tailrace.elements.batches import Batch
from tailrace.errors import IncompatibleState
from tailrace.graph.operators import Broadcast, Custom, Hash, Partitioning
from tailrace.task.channels.channel_logs import LogFrame, log_frame
from tailrace.task.channels.partition import ByFunction, ByKey, Partitioner, make_partitioner
from tailrace.task.channels.services import Services
from tailrace.task.channels.written_records import Indexes

_MODULUS = 1 << 256


@dataclass(frozen=True, slots=True)
class Dealt:
    """Part of a frame that one subtask takes."""

    frame: LogFrame | None
    """The frame itself, or one with the subtask's own records, or None."""
    chosen: Indexes | None = None
    """For a frame of its own: the positions of its records in the whole frame, if the key groups there determine them."""


class Redistribution:
    """Part that one subtask takes of the logs of all old ones: feedback for the head of a loop, for other subtasks what
    barriers have overtaken. `edges`: how feedback comes to the tail, or the one edge that leads to the subtask.

    - By key: each record is partitioned anew. Keys are read from the record: feedback may have been partitioned otherwise
      in the dataflow that wrote the checkpoint.
    - By the user's function: at the same parallelism each record stays where it was. At another one each subtask calls
      the function for itself. A function that is not deterministic would give a record to two subtasks, or to none: a
      function that gives two answers for one record is refused.
    - Broadcast: at the same parallelism each subtask has its own copies. At another one every subtask gets one copy of
      each record that all of the old ones had unread. If some had read theirs and others had not, no answer is right: it
      is refused.
    - By a number only: the whole log of an old subtask goes to one of the new ones.
    - Streams that are fed back in different ways: it is unknown which record came by which. At the same parallelism each
      record stays where it was, at another one it is refused.
    """

    def __init__(
        self,
        edges: Iterable[Partitioning],
        who: str,
        subtask: int,
        parallelism: int,
        services: Services,
        receiver: str = "",
        brought: Callable[[Batch], Batch] = lambda batch: batch,
    ) -> None:
        """`receiver`: the receiver of the records, in words; a loop if there is none. `brought`: converts records to what
        they are today, before their keys are read."""
        self._brought = brought
        self._receiver = receiver or f"loop {who!r}"
        kinds = set(edges)
        telling: set[Partitioning] = {kind for kind in kinds if isinstance(kind, Hash | Custom | Broadcast)}
        self.who, self.subtask, self.parallelism = who, subtask, parallelism
        self._partitioner: Partitioner | None = None
        self._copies = bool(telling) and telling == kinds and all(isinstance(kind, Broadcast) for kind in kinds)
        self._mixed = not self._copies and bool(telling) and (len(telling) > 1 or _only_some(kinds, telling))
        if not self._mixed and not self._copies and telling:
            chance = services.max_parallelism, services.random
            self._partitioner = make_partitioner(next(iter(telling)), who, subtask, parallelism, *chance)
            assert isinstance(self._partitioner, ByKey | ByFunction)
        self._held: dict[int, tuple[int, int]] = {}
        """For copies, by old subtask: how many its log holds, and a sum over what they are, in whatever order."""
        self._old = parallelism

    def mine(self, subtask: int, parallelism: int, frame: LogFrame) -> list[LogFrame]:
        """Part of a frame of an old subtask that is this one's now: a frame or none. Raises `IncompatibleState` if it is
        unknown which records these are."""
        found = self.deal(subtask, parallelism, frame).frame
        return [] if found is None else [found]

    def deal(self, subtask: int, parallelism: int, frame: LogFrame) -> Dealt:
        """Part of a frame of an old subtask that is this one's now, with the positions of its records if their key groups
        there determine them. Raises `IncompatibleState` if it is unknown which records these are."""
        self._old = parallelism
        by = self._partitioner
        if isinstance(by, ByKey):
            return self._by_key(by, frame)
        if by is not None and parallelism != self.parallelism:
            batch = self._batch(frame)
            if isinstance(by, ByFunction) and by.targets(batch) != by.targets(batch):
                raise self._refusal(parallelism, "the function of its partition_by gives two answers for one record")
            part = dict(by.split(batch)).get(self.subtask)
            return Dealt(None if part is None else log_frame(part, frame.round, self.who, self.subtask))
        return Dealt(self._whole(subtask, parallelism, frame))

    def _by_key(self, by: ByKey, frame: LogFrame) -> Dealt:
        batch = self._brought(self._batch(frame))
        groups = by.reader.groups(batch)
        mine = by.owners[groups] == self.subtask
        as_written = batch.groups is not None and np.array_equal(batch.groups, groups)
        if as_written and mine.all():
            return Dealt(frame)
        part = dict(by.split(batch)).get(self.subtask)
        chosen = np.flatnonzero(mine) if as_written else None
        return Dealt(None if part is None else log_frame(part, frame.round, self.who, self.subtask), chosen)

    def _whole(self, subtask: int, parallelism: int, frame: LogFrame) -> LogFrame | None:
        if parallelism != self.parallelism and self._copies:
            self._count(subtask, frame)
            return frame if subtask == 0 else None
        if parallelism != self.parallelism and self._mixed and frame.count:
            raise self._refusal(parallelism, "its feedback comes from streams that are partitioned in different ways")
        return frame if subtask % self.parallelism == self.subtask else None

    def check(self) -> None:
        """Raises `IncompatibleState` if some old subtasks had read copies of records that others had not. Called when
        everything was read."""
        if self._held and len({self._held.get(subtask) for subtask in range(self._old)}) > 1:
            raise self._refusal(self._old, "some of its subtasks had read broadcast feedback that others had not")

    def _refusal(self, old: int, why: str) -> IncompatibleState:
        return IncompatibleState(
            f"{self._receiver} cannot go on from this checkpoint at parallelism {self.parallelism}: {why}; start it at "
            f"parallelism {old}, at which the checkpoint was taken, or from a checkpoint without records on their way"
        )

    def _count(self, subtask: int, frame: LogFrame) -> None:
        rows = self._batch(frame).to_rows()
        times = [None] * len(rows) if rows.times is None else rows.times.tolist()
        count, total = self._held.get(subtask, (0, 0))
        for value, time in zip(rows.values, times, strict=True):
            digest = hashlib.sha256(pickle.dumps((frame.round, time, value), 5)).digest()
            count, total = count + 1, (total + int.from_bytes(digest)) % _MODULUS
        self._held[subtask] = (count, total)

    def _batch(self, frame: LogFrame) -> Batch:
        return frame.batch(f"the log of records on their way to {self._receiver}")


def _only_some(kinds: set[Partitioning], telling: set[Partitioning]) -> bool:
    """True if a partitioning that determines a record's subtask is beside one that does not. A partitioning by key may
    be: a receiver that requires records by key gets them by key."""
    return kinds != telling and not all(isinstance(kind, Hash) for kind in telling)
