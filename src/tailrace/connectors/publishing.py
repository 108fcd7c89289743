"""How finished files become visible so that each does once, also where readers take visible files away.

A file that is to become visible lies *under cover* (see `connectors.folders`). Making it visible takes its cover away: that
is one atomic act, a rename or the completion of an upload. So a file that is neither under cover nor visible was published
and then taken by a reader; or it was lost, and nobody has ever seen it. To tell the two apart a publisher leaves a *trace*
beside the file before it makes it visible, and only of a file that it has seen under cover:

| under cover | visible | trace | what the file is |
|---|---|---|---|
| yes | | no | not published |
| yes | no | yes | not published: a publisher was stopped in between |
| no | yes | | published |
| no | no | yes | published, and taken by a reader |
| no | no | no | lost |

The trace goes when nobody will ask again (`Sink.settled`). Two things cannot be told from a publication: a file under cover
that somebody else removes between our look at it and our rename; and, on stores that know neither rename nor upload, a
publisher that was stopped between the copy and the removal of the cover, when a reader has taken the copy meanwhile. The
first counts as published. The second is published once more: a reader of such a store must not take files that young.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Finished:
    """One finished file on its way to be seen."""

    name: str
    """Its plain name: a path or URL."""
    trace: str
    """The path or URL of its trace."""

    def covered(self) -> bool:
        """Whether it is under cover."""
        raise NotImplementedError

    def visible(self) -> bool:
        """Whether it is there under its plain name."""
        raise NotImplementedError

    def traced(self) -> bool:
        """Whether its trace is there."""
        raise NotImplementedError

    def leave_trace(self) -> None:
        """Leaves the trace, durable once `sync` has returned. Where it is already, nothing changes."""
        raise NotImplementedError

    def uncover(self) -> None:
        """Makes it visible and takes its cover away. Nothing happens where it is not under cover any more."""
        raise NotImplementedError

    def remove_trace(self) -> None:
        """Removes the trace, if it is there."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes durable what was done to names."""


def one_by_one(do: Callable[[Finished], object], files: Sequence[Finished]) -> None:
    """Applies a function to each file."""
    for one in files:
        do(one)


def make_visible(
    files: Sequence[Finished], each: Callable[[Callable[[Finished], object], Sequence[Finished]], None] = one_by_one
) -> None:
    """Makes finished files visible, those that are not. Raises `FileNotFoundError`, before any of them is, where one is
    lost. `each` applies a function to each of them, in whatever order."""
    waiting: list[Finished] = []
    lost: list[Finished] = []

    def look(one: Finished) -> None:
        if one.covered():
            waiting.append(one)
        elif not one.visible() and not one.traced():
            lost.append(one)

    each(look, files)
    if lost:
        raise FileNotFoundError(_told(sorted(lost, key=lambda one: one.name)))
    each(lambda one: one.leave_trace(), waiting)
    _sync(waiting)
    each(lambda one: one.uncover(), waiting)
    _sync(waiting)


def settle(
    files: Sequence[Finished], each: Callable[[Callable[[Finished], object], Sequence[Finished]], None] = one_by_one
) -> None:
    """Nobody will ask for these any more: removes their traces."""
    each(lambda one: one.remove_trace(), files)


def _sync(files: Sequence[Finished]) -> None:
    """Once for each folder."""
    for one in {one.name.rpartition("/")[0]: one for one in files}.values():
        one.sync()


def _told(lost: list[Finished]) -> str:
    names = ", ".join(one.name for one in lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
    return (
        f"{names}: prepared by a sink, now neither hidden nor visible, and without a trace that it was published. Somebody "
        f"has removed it, or a rule of the store has (for old hidden files, or for incomplete uploads), and its records "
        f"are lost, unless another start of the job has taken over and published it. If you know that it was visible "
        f"before, create the empty file {lost[0].trace}, which says so, and start again"
    )
