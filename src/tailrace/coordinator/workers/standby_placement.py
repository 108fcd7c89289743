"""The placement of slices' state on standbys. It is made anew when processes come and go; a process keeps the slices that
it holds already, where that is allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Executor = tuple[str, str]
"""An executor: (its host, its name there)."""


def deal(
    executors: Mapping[int, Executor],
    holds: Mapping[int, Sequence[int]],
    homes: Sequence[Executor | None],
    replicas: int,
    most: int,
    followed: Mapping[int, int] | None = None,
) -> dict[int, list[int]]:
    """The slices of each process. `executors`: where those processes run that can hold something. `holds`: the slices that
    they hold already. `homes`: where the worker of each slice runs, as far as that is known. `most`: the most slices that a
    process has, however few processes there are. `followed`: the slice of each process that follows its worker: it keeps
    that one, and has no other."""
    found = _Deal(executors, homes, replicas, most, followed or {})
    found.keep(holds)
    found.give_out()
    found.level()
    return {process: sorted(slots) for process, slots in found.has.items()}


class _Deal:
    """One placement under construction.

    Invariant Y9: two replicas of a slice are in two processes, and, where processes are in several executors, in two
    executors. A replica is beside the slice's own worker only where no process in another executor has room for it, or
    where it follows that worker and began to when none had.
    """

    def __init__(
        self,
        executors: Mapping[int, Executor],
        homes: Sequence[Executor | None],
        replicas: int,
        most: int,
        followed: Mapping[int, int],
    ) -> None:
        self.has: dict[int, list[int]] = {
            process: [followed[process]] if process in followed else [] for process in sorted(executors)
        }
        self._followed = followed
        self._kept: dict[int, list[int]] = {process: [] for process in executors}
        self._held: Mapping[int, Sequence[int]] = {}
        self._executors, self._homes = executors, homes
        several = len(set(executors.values()))
        self._apart = several > 1
        self._replicas = min(replicas, several if self._apart else len(executors))
        """The number of replicas that a slice can have."""
        self._most = most

    def keep(self, holds: Mapping[int, Sequence[int]]) -> None:
        """Keeps the slices that processes hold already, unless a slice's own worker is beside the process."""
        self._held = holds
        for process, has in self.has.items():
            for slot in holds.get(process, ()):
                if self._may_have(process, slot) and len(has) < self._most and not self._at_home(slot, process):
                    has.append(slot)
            self._kept[process] = [*has]

    def give_out(self) -> None:
        """Gives each slice its first replica before any gets its second one."""
        for replica in range(self._replicas):
            # Better not with the slice's own worker, which would be lost together with its replica.
            for away in (True, False):
                for slot in range(len(self._homes)):
                    if sum(slot in has for has in self.has.values()) <= replica:
                        self._place(slot, away, set())

    def level(self) -> None:
        """Moves slices from processes with more of them to processes with fewer, as long as that improves the balance."""
        while any(self._gives(one, other) for one in self._by_load()[::-1] for other in self._by_load()):
            pass

    def _gives(self, one: int, other: int) -> bool:
        """Moves a slice from one process to another; False if there is none to move. It prefers a slice whose state the
        process does not hold yet, or that is beside its worker."""
        has = self.has[one]
        if len(has) < len(self.has[other]) + 2:
            return False
        order = sorted(has, key=lambda slot: (slot in self._kept[one], not self._at_home(slot, one), slot))
        for slot in order:
            has.remove(slot)
            if self._may_have(other, slot) and self._at_home(slot, other) <= self._at_home(slot, one):
                self.has[other].append(slot)
                return True
            has.append(slot)
        return False

    def _by_load(self) -> list[int]:
        return sorted(self.has, key=lambda process: (len(self.has[process]), process))

    def _place(self, slot: int, away: bool, seen: set[int]) -> bool:
        """Finds a process for a slice, if need be one that gives up another slice for which there is a process, too."""
        fit = [
            process
            for process in self.has
            if process not in seen and self._may_have(process, slot) and not (away and self._at_home(slot, process))
        ]
        fit.sort(key=lambda process: (self._at_home(slot, process), *self._cost(slot, process)))
        for process in fit:
            if len(self.has[process]) < self._most:
                self.has[process].append(slot)
                return True
        for process in fit:
            seen.add(process)
            if any(self._exchange(process, other, slot, away, seen) for other in self._loose(process)):
                return True
        return False

    def _cost(self, slot: int, process: int) -> tuple[bool, int, int]:
        """The order of the processes for a slice: first those that have read its state, then those with few slices."""
        return slot not in self._held.get(process, ()), len(self.has[process]), process

    def _exchange(self, process: int, old: int, new: int, away: bool, seen: set[int]) -> bool:
        has = self.has[process]
        has.remove(old)
        has.append(new)
        if self._place(old, away, seen):
            return True
        has.remove(new)
        has.append(old)
        return False

    def _loose(self, process: int) -> list[int]:
        """Slices of a process whose state it does not hold yet."""
        return [slot for slot in self.has[process] if slot not in self._kept[process]]

    def _may_have(self, process: int, slot: int) -> bool:
        where = self._executors[process]
        others = [one for one, has in self.has.items() if slot in has]
        if process in self._followed:
            return False
        return process not in others and not (self._apart and where in [self._executors[one] for one in others])

    def _at_home(self, slot: int, process: int) -> bool:
        return self._homes[slot] == self._executors[process]
