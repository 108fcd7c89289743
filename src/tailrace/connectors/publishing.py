"""The publication of finished files: each becomes visible once, even if readers take visible files away.

A file that is to become visible lies *under cover* (see `connectors.folders`). To make it visible takes its cover away: that
is one atomic act, a rename or the completion of an upload. So a file that is neither under cover nor visible was published
and then taken by a reader, or it was lost before any reader saw it. To distinguish the two, a publisher leaves a *trace*
beside the file before it makes it visible, and only of a file that it has seen under cover:

| under cover | visible | trace | what the file is |
|---|---|---|---|
| yes | | no | not published |
| yes | no | yes | not published: a publisher was stopped in between |
| no | yes | | published |
| no | no | yes | published, and taken by a reader |
| no | no | no | lost |

The trace is removed when the file need not be published again (`Sink.settled`). Two cases are not recognised. (1) Another
program removes a file under cover between the publisher's look at it and its rename: the file counts as published. (2) On
stores that have neither rename nor uploads, a publisher is stopped between the copy and the removal of the cover, and a
reader takes the copy meanwhile: the file is published once more. A reader of such a store must not take files that young.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


class Finished:
    """One finished file that is to be published."""

    name: str
    """Plain name of the file: a path or URL."""
    trace: str
    """Path or URL of the file's trace."""

    def is_covered(self) -> bool:
        """True if the file is under cover."""
        raise NotImplementedError

    def visible(self) -> bool:
        """True if the file exists under its plain name."""
        raise NotImplementedError

    def has_trace(self) -> bool:
        """True if the trace of the file exists."""
        raise NotImplementedError

    def leave_trace(self) -> None:
        """Makes the trace, durable once `sync` has returned. Does nothing if it exists."""
        raise NotImplementedError

    def uncover(self) -> None:
        """Makes the file visible and takes its cover away. Does nothing if it is not under cover any more."""
        raise NotImplementedError

    def remove_trace(self) -> None:
        """Removes the trace, if it exists."""
        raise NotImplementedError

    def sync(self) -> None:
        """Makes changes of names in the file's folder durable."""


def one_by_one(do: Callable[[Finished], object], files: Sequence[Finished]) -> None:
    """Applies a function to each file, in order."""
    for one in files:
        do(one)


def make_visible(
    files: Sequence[Finished], each: Callable[[Callable[[Finished], object], Sequence[Finished]], None] = one_by_one
) -> None:
    """Makes finished files visible, except files that were published before. Raises `FileNotFoundError` if one is lost,
    before it makes any of them visible. `each` applies a function to each file, in any order."""
    waiting: list[Finished] = []
    lost: list[Finished] = []

    def look(one: Finished) -> None:
        if one.is_covered():
            waiting.append(one)
        elif not one.visible() and not one.has_trace():
            lost.append(one)

    each(look, files)
    if lost:
        raise FileNotFoundError(_loss_text(sorted(lost, key=lambda one: one.name)))
    each(lambda one: one.leave_trace(), waiting)
    _sync(waiting)
    each(lambda one: one.uncover(), waiting)
    _sync(waiting)


def settle(
    files: Sequence[Finished], each: Callable[[Callable[[Finished], object], Sequence[Finished]], None] = one_by_one
) -> None:
    """Removes the traces of files that need not be published again."""
    each(lambda one: one.remove_trace(), files)


def _sync(files: Sequence[Finished]) -> None:
    """Makes changes of names durable, once for each folder."""
    for one in {one.name.rpartition("/")[0]: one for one in files}.values():
        one.sync()


def _loss_text(lost: list[Finished]) -> str:
    names = ", ".join(one.name for one in lost[:5]) + (f" and {len(lost) - 5} more" if len(lost) > 5 else "")
    return (
        f"{names}: prepared by a sink, now neither hidden nor visible, and without a trace that it was published. Somebody "
        f"has removed it, or a rule of the store has (for old hidden files, or for incomplete uploads), and its records "
        f"are lost, unless another start of the job has taken over and published it. If you know that it was visible "
        f"before, create the empty file {lost[0].trace}, which says so, and start again"
    )
