"""The enumerator of a source, which finds splits while the job runs."""

from __future__ import annotations

from tailrace.api.connectors import Enumerator, Source, SplitsChange
from tailrace.elements.valuepickling import dump_described, load_described
from tailrace.task.operators.contracts import enumerator_of, list_of, of_class


class Finder:
    """The enumerator of the user. It is made for the first new request: while what an enumerator found is repeated there is
    none. Its methods call user code, so they are called within a call of the world outside."""

    def __init__(self, source: Source, parallelism: int, position: bytes | None) -> None:
        self._source, self._parallelism = source, parallelism
        self.position = position
        """Position that the enumerator had when it was last requested, pickled; None at its beginning."""
        self.is_there = False
        """True if there is an enumerator, here or in the worker whose place this one takes."""
        self._enumerator: Enumerator | None = None

    @property
    def opened(self) -> list[Enumerator]:
        """The enumerator, if it is made: it is to be closed."""
        return [] if self._enumerator is None else [self._enumerator]

    def exists(self) -> bool:
        """True if the source has an enumerator."""
        return self._make() is not None

    def discover(self, now: float) -> SplitsChange | None:
        """The change of splits since the last call; None if there will be no more."""
        enumerator = self._existing()
        given, who = enumerator.discover(now), f"{of_class(enumerator)}.discover"
        if not isinstance(given, SplitsChange):
            return None if given is None else SplitsChange(list_of(given, who))
        new, gone, moved = (list_of(one, who) for one in (given.new, given.gone, given.moved))
        return SplitsChange(new, gone, [(before, now_) for before, now_ in moved])

    def next_at(self, now: float) -> float:
        """The time of the next `discover`, in seconds since 1970."""
        return self._existing().next_at(now)

    def note_end(self, split: bytes) -> None:
        """Reports that a split has ended."""
        self._existing().ended(load_described(split))

    def new_position(self) -> bytes | None:
        """The position of the enumerator, pickled; None if it is as it was."""
        at = dump_described(self._existing().position)
        return None if at == self.position else at

    def _make(self) -> Enumerator | None:
        if self._enumerator is None:
            at = None if self.position is None else load_described(self.position)
            made = self._source.enumerator(self._parallelism, at)
            self._enumerator = enumerator_of(made, f"{of_class(self._source)}.enumerator")
        return self._enumerator

    def _existing(self) -> Enumerator:
        enumerator = self._make()
        if enumerator is None:
            raise ValueError(f"{of_class(self._source)}.enumerator gave None where it had given an enumerator before")
        return enumerator
