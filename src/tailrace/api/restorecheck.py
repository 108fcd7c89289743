"""What a dry run tells of a checkpoint and a dataflow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestoreCheck:
    """What of a checkpoint would fit a dataflow that is started from it, and what not; each a sentence for people. `str` of
    it tells all."""

    path: str
    """The manifest that was looked at."""
    misfits: tuple[str, ...]
    """What does not fit, and what to do about it: a start would be refused."""
    restored: tuple[str, ...]
    """The operators that would go on with what the checkpoint has of them."""
    fresh: tuple[str, ...]
    """The operators and states that would begin empty, because the checkpoint has nothing of them."""
    dropped: tuple[str, ...]
    """What would be left behind, as it was allowed."""

    @property
    def fits(self) -> bool:
        """Whether a start would not be refused, as far as that can be known before anything runs."""
        return not self.misfits

    def __str__(self) -> str:
        said = [f"{self.path} {'fits' if self.fits else 'does not fit'} the dataflow"]
        for title, lines in (
            ("does not fit", self.misfits),
            ("goes on", self.restored),
            ("begins anew", self.fresh),
            ("is left behind", self.dropped),
        ):
            said += [f"{title}:", *(f"  - {line}" for line in lines)] if lines else []
        return "\n".join(said)
