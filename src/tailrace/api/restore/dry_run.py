"""The result of a dry run of a restore."""

from __future__ import annotations

from dataclasses import dataclass

from tailrace.passwords import hide_passwords, hides_passwords


@hides_passwords
@dataclass(frozen=True)
class RestoreCheck:
    """The result of `check_restore`: the parts of a checkpoint that fit a dataflow and the parts that do not, as sentences.
    `str` gives all of it as a text."""

    path: str
    """Path of the manifest that was read."""
    misfits: tuple[str, ...]
    """The parts that do not fit, with what to do about each. A start would be refused if there are any."""
    restored: tuple[str, ...]
    """The operators that would go on with their state in the checkpoint."""
    fresh: tuple[str, ...]
    """The operators and states that would begin empty, because the checkpoint has nothing of them."""
    dropped: tuple[str, ...]
    """The parts that would be left behind, because `allow_dropped_state` allows it."""

    @property
    def fits(self) -> bool:
        """True if a start would not be refused, as far as that can be known before anything runs."""
        return not self.misfits

    def __str__(self) -> str:
        text = [f"{self.path} {'fits' if self.fits else 'does not fit'} the dataflow"]
        for title, lines in (
            ("does not fit", self.misfits),
            ("goes on", self.restored),
            ("begins anew", self.fresh),
            ("is left behind", self.dropped),
        ):
            text += [f"{title}:", *(f"  - {line}" for line in lines)] if lines else []
        return hide_passwords("\n".join(text))
