"""Numbers of bytes as text, in the units of the settings: KiB, MiB and GiB."""

from __future__ import annotations


def size_text(count: float) -> str:
    """A number of bytes for people: `17 B`, `13.7 KiB`, `64 MiB`."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if round(size, 1) < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"
