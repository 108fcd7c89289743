"""Who holds an incarnation, and whether that process still lives."""

from __future__ import annotations

import os
import socket
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """What a claim holds."""

    job: str
    run_id: str
    host: str
    pid: int
    started: str
    """When the process began, in whatever form its machine says it: with the pid it is unique on that machine."""
    nonce: str = ""
    """Tells one attempt to claim from every other."""
    root: str = ""
    """The folder of the job when this was written: a copy of it, beside the original, says another one."""
    term: int = 0
    """How many coordinators of this run were lost before the one that claims."""


@dataclass(frozen=True)
class ProcessId:
    """A process, as its owner text names it."""

    host: str
    pid: int
    started: str

    def lives(self, owner: Owner) -> bool:
        """Whether the owner's process lives, as far as it can be known: only on this host it can."""
        return owner.host == self.host and started(owner.pid) == owner.started


def this_process() -> ProcessId:
    """The one that asks."""
    return ProcessId(socket.gethostname(), os.getpid(), started(os.getpid()) or "")


def started(pid: int) -> str | None:
    """When a process of this machine began; None where there is none, or it has ended and waits to be collected."""
    if Path("/proc/self/stat").exists():
        try:
            text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return None
        fields = text[text.rindex(")") + 2 :].split()  # the name before may hold anything
        return None if fields[0] in "ZX" else f"{fields[19]} {boot()}"
    done = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, since = done.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else since.strip()


@cache
def boot() -> str:
    """What tells this start of the machine from every other, for all containers on it; nothing where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
